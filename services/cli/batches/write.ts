/*
 * The output of a table: one row per row of the input, in its order, with the cells of the answer.
 *
 * The input is read a second time, and each row is written with its result. Memory holds one complete row, and for all
 * other rows only the position of their result. The output replaces an existing file only when it is complete.
 */

import { createHash, type Hash } from 'node:crypto'
import { constants, createWriteStream, realpathSync } from 'node:fs'
import { access, open, rename, rm } from 'node:fs/promises'
import { dirname, extname, join, parse, resolve } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { CommandError, EXIT, fileError, usageError } from '#services/cli/text/output.ts'
import { ROW_COLUMNS } from '#shared/kinds/batch-row.ts'
import { exactLine, withoutFormula } from '#shared/lib/csv.ts'
import { type Answers, type Cells, isCut } from './answers.ts'
import { type Converted, rowText } from './convert.ts'
import { FORMATS, type Row, rowsOf, type Table } from './input.ts'
import { cellText } from './task.ts'

/** Failed rows with one error code. */
interface Failures {
  count: number
  /** First row with this code, from 1. */
  readonly row: number
  readonly message: string
}

const NO_ANSWER = { values: [], finishReason: '', inputTokens: null, outputTokens: null }
const EMPTY: Cells = { ...NO_ANSWER, error: 'empty_prompt: The prompt is empty, so no request was sent.' }
const NO_RESULT: Cells = { ...NO_ANSWER, error: 'no_result: The batch has no result for this row.' }
const UNREADABLE: Cells = { ...NO_ANSWER, error: 'invalid_result: The result cannot be read.' }

/** Counts of the written rows. */
export class Written {
  answered = 0
  failed = 0
  /** Rows without a prompt. */
  skipped = 0
  /** Number of truncated results, whose answers reached the maximum of output tokens. */
  cut = 0
  /** Output tokens of the longest result that is counted in {@link cut}. */
  cutTokens = 0
  readonly failures = new Map<string, Failures>()

  add(row: number, cells: Cells): void {
    if (isCut(cells)) {
      this.cut++
      this.cutTokens = Math.max(this.cutTokens, cells.outputTokens ?? 0)
    }
    if (cells === EMPTY) this.skipped++
    else if (cells.error === '') this.answered++
    else this.#addFailure(row, cells.error)
  }

  #addFailure(row: number, error: string): void {
    this.failed++
    const [code = '', ...message] = error.split(': ')
    const same = this.failures.get(code)
    if (same) same.count++
    else this.failures.set(code, { count: 1, row, message: message.join(': ') })
  }
}

export interface OutputRows {
  readonly columns: readonly string[]
  readonly keys: readonly string[]
  /** Names of the cells of an answer. */
  readonly names: readonly string[]
}

export async function* outputLines(
  table: Table,
  { columns, keys, names }: OutputRows,
  answers: Answers,
  out: string,
  written = new Written(),
  rowsHash?: Hash,
): AsyncGenerator<string> {
  await using results = await open(answers.path, 'a+')
  const found = answers.assign(keys)
  const format = new OutputFormat(out, table, columns, names)
  yield format.header()
  let nth = 0
  for await (const row of rowsOf(table)) {
    rowsHash?.update(rowText(row))
    const line = found[nth]
    const missing = keys[nth] === '' ? EMPTY : NO_RESULT
    const cells = line ? ((await answers.cellsAt(results, line)) ?? UNREADABLE) : missing
    written.add(++nth, cells)
    yield format.row(row, cells)
  }
}

/** Writes the output of a table. @throws CommandError if the input has changed */
export async function writeOutput(
  table: Table,
  { columns, keys, task, rowsHash }: Converted,
  answers: Answers,
  out: string,
): Promise<Written> {
  const part = `${out}.part`
  const written = new Written()
  const hash = createHash('sha256')
  const lines = async function* () {
    yield* outputLines(table, { columns, keys, names: task.columns }, answers, out, written, hash)
    if (hash.digest('hex') === rowsHash) return
    const message = `${table.path} changed while the batch ran, so its rows may not match the results.`
    const next = 'To run only the new and changed rows: repeat the command with --retry-failed'
    throw new CommandError(EXIT.failed, message, next)
  }
  await pipeline(lines, createWriteStream(part)).catch(async (error: unknown) => {
    await rm(part, { force: true })
    if ((error as NodeJS.ErrnoException).syscall === undefined) throw error
    throw fileError(out, error as Error, 'The batch has ended. To write its answers: repeat the command')
  })
  await rename(part, out)
  return written
}

/** CSV, TSV or JSON Lines, by the extension of the output. */
class OutputFormat {
  readonly #columns: readonly string[]
  readonly #values: readonly string[]
  readonly #names: readonly string[]
  readonly #isJson: boolean
  readonly #delimiter: string

  constructor(out: string, { delimiter }: Table, columns: readonly string[], values: readonly string[]) {
    const format = FORMATS[extname(out).toLowerCase()]
    this.#columns = columns
    this.#values = values
    this.#isJson = format === 'jsonl'
    this.#delimiter = format === 'tsv' ? '\t' : delimiter === ';' ? ';' : ','
    // If a column of the input has the name of an output column, then all output columns get other names. This happens
    // if the output of an earlier run is the input.
    const names = [...values, ...ROW_COLUMNS.slice(1)]
    const isTaken = names.some((name) => columns.includes(name))
    this.#names = names.map((name) => (isTaken ? freeName(name, columns) : name))
  }

  header(): string {
    return this.#isJson ? '' : exactLine([...this.#columns, ...this.#names], this.#delimiter)
  }

  row(row: Row, { values, error, finishReason, inputTokens, outputTokens }: Cells): string {
    const added = [...this.#values.map((_, nth) => values[nth] ?? ''), error, finishReason, inputTokens, outputTokens]
    if (!this.#isJson) {
      const given = this.#columns.map((name) => cellText(row.get(name)))
      return exactLine([...given, ...added.map(csvCell)], this.#delimiter)
    }
    const own = this.#columns.filter((name) => row.has(name)).map((name) => [name, row.get(name)] as const)
    const pairs = [...own, ...this.#names.map((name, nth) => [name, added[nth]] as const)]
    return `${JSON.stringify(Object.fromEntries(pairs))}\n`
  }
}

function csvCell(value: unknown): string | number | null {
  return value === null || typeof value === 'number' ? value : withoutFormula(cellText(value))
}

function freeName(name: string, columns: readonly string[]): string {
  for (let nth = 2; ; nth++) if (!columns.includes(`${name}_${nth}`)) return `${name}_${nth}`
}

/**
 * Returns the path of the output. Default: `prompts.answers.csv` next to `prompts.csv`.
 *
 * @throws CommandError if the path is the input, has another extension, cannot be written, or is in the input directory, whose files are all rows
 */
export async function outPathOf({ path, format }: Table, asked: string | undefined): Promise<string> {
  const { dir, name, ext } = parse(resolve(path))
  const out = asked ?? join(dir, `${name}.answers${format === 'directory' ? '.csv' : ext}`)
  if (resolve(out) === resolve(path)) throw usageError(`--out must not be the input ${path}.`)
  if (format === 'directory' && realPathOf(dirname(resolve(out))) === realPathOf(path)) {
    throw usageError(`--out must not be in the input directory ${path}; got '${out}'.`, 'Choose another directory.')
  }
  if (!Object.hasOwn(FORMATS, extname(out).toLowerCase())) {
    throw usageError(`--out must end in .csv, .tsv or .jsonl; got '${out}'.`)
  }
  // The output is written after the batch has ended, which may take hours. A folder without write permission is
  // therefore reported now, before the upload.
  const folder = dirname(resolve(out))
  await access(folder, constants.W_OK).catch((error: Error) => {
    throw fileError(folder, error, 'Create the folder, or choose another file with --out.')
  })
  return out
}

/** The path without symbolic links, or the given path if the file does not exist. */
function realPathOf(path: string): string {
  try {
    return realpathSync(path)
  } catch {
    return resolve(path)
  }
}
