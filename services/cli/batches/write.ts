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
import { Failures } from '#services/cli/client/batch-text.ts'
import { CommandError, EXIT, fileError, usageError } from '#services/cli/text/output.ts'
import { type AnswerForm, type Cells, EMPTY_PROMPT, NO_RESULT, RowCounts } from '#shared/tables/answers.ts'
import { FORMATS, OutputLines } from '#shared/tables/output.ts'
import type { Answers } from './answers.ts'
import { type Converted, rowText } from './convert.ts'
import { rowsOf, type Table } from './input.ts'

const UNREADABLE: Cells = { ...NO_RESULT, error: 'invalid_result: The result cannot be read.' }

export class Written extends RowCounts {
  readonly failures = new Failures()

  addRow(row: number, cells: Cells): void {
    this.add(cells)
    if (cells.error !== '' && cells !== EMPTY_PROMPT) this.failures.add(row, cells.error)
  }
}

export interface OutputRows {
  readonly columns: readonly string[]
  readonly keys: readonly string[]
  readonly form: AnswerForm
}

export async function* outputLines(
  table: Table,
  { columns, keys, form }: OutputRows,
  answers: Answers,
  out: string,
  written = new Written(),
  rowsHash?: Hash,
): AsyncGenerator<string> {
  await using results = await open(answers.path, 'a+')
  const found = answers.assign(keys)
  const format = FORMATS[extname(out).toLowerCase()]
  const output = new OutputLines({ format, delimiter: table.delimiter, columns, form, hasMark: table.hasMark })
  yield output.header()
  let nth = 0
  for await (const row of rowsOf(table)) {
    rowsHash?.update(rowText(row))
    const line = found[nth]
    const missing = keys[nth] === '' ? EMPTY_PROMPT : NO_RESULT
    const cells = line ? ((await answers.cellsAt(results, line)) ?? UNREADABLE) : missing
    written.addRow(++nth, cells)
    yield output.row(row, cells)
  }
}

/**
 * Writes the output of a table.
 *
 * @throws CommandError if the input has changed
 */
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
    yield* outputLines(table, { columns, keys, form: task.form }, answers, out, written, hash)
    if (hash.digest('hex') === rowsHash) return
    const message = `${table.path} changed while the batch ran, so its rows may not match the results.`
    const next = 'To run only the new and changed rows: repeat the command'
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
