/*
 * `sluice batch` for a table: one chat request per row, and one output row per input row.
 *
 * 1. The rows are converted to a file of requests, whose custom ids are the row numbers. Rows without a prompt are left out.
 * 2. The batch has the hash of this file in its metadata. A repeated command therefore finds its batch again
 *    after Ctrl-C, after a crash or on another machine, without a state file. A cancelled, failed or expired batch is not used again.
 * 3. The batch is followed by polling, which survives restarts of the service.
 * 4. The results are stored in a file, in the order of the service, with the offset of each row. The input is then read a
 *    second time, and each row is written with its result. Memory holds one row, and one number per row.
 */

import { createHash } from 'node:crypto'
import { createReadStream, createWriteStream, realpathSync } from 'node:fs'
import { type FileHandle, mkdtemp, open, rename, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, extname, join, parse, resolve } from 'node:path'
import { pipeline } from 'node:stream/promises'
import type { BatchesApi, BatchView } from '#services/cli/client/http.ts'
import { CommandError, EXIT, usageError } from '#services/cli/text/output.ts'
import { batchRowOf, ROW_COLUMNS } from '#shared/kinds/batch-row.ts'
import { exactLine, withoutFormula } from '#shared/lib/csv.ts'
import { promptColumnOf, type Row, rowsOf, type Table } from './input.ts'

const CHAT = '/v1/chat/completions'
export const ROWS_MAX = 50_000
const LINE_FEED = 0x0a

export interface TableOptions {
  readonly model: string
  readonly promptColumn: string | undefined
  readonly system: string | undefined
  readonly maxTokens: number | undefined
  readonly temperature: number | undefined
  readonly out: string
}

/** A directory for the files of one run, deleted at its end. */
export class RunFiles implements AsyncDisposable {
  readonly requests: string
  readonly results: string
  readonly #directory: string

  constructor(directory: string) {
    this.#directory = directory
    this.requests = join(directory, 'requests.jsonl')
    this.results = join(directory, 'results.jsonl')
  }

  static async open(): Promise<RunFiles> {
    return new RunFiles(await mkdtemp(join(tmpdir(), 'sluice-batch-')))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.#directory, { recursive: true, force: true })
  }
}

export interface Converted {
  readonly columns: readonly string[]
  readonly promptColumn: string
  readonly rows: number
  readonly requests: number
  /** Hash of the file of requests. */
  readonly hash: string
  /** Time of the last change of the input. */
  readonly changedMs: number
}

/** @throws CommandError for an input without rows, without the column of prompts, or with more than {@link ROWS_MAX} rows */
export async function convertRows(table: Table, options: TableOptions, to: string): Promise<Converted> {
  const columns = new Set<string>()
  const hash = createHash('sha256')
  const { mtimeMs: changedMs } = await stat(table.path)
  let [rows, requests, column] = [0, 0, '']
  async function* lines(): AsyncGenerator<string> {
    for await (const row of rowsOf(table)) {
      for (const name of row.keys()) columns.add(name)
      if (rows++ === 0) column = promptColumnOf(table, [...columns], options.promptColumn)
      if (rows > ROWS_MAX) {
        throw usageError(
          `${table.path} has more than ${ROWS_MAX} rows, which is the limit of a batch.`,
          'Split the file.',
        )
      }
      const prompt = promptOf(row.get(column))
      if (prompt.trim() === '') continue
      requests++
      const line = `${JSON.stringify(requestOf(rows, prompt, options))}\n`
      hash.update(line)
      yield line
    }
  }
  await pipeline(lines(), createWriteStream(to))
  if (rows === 0) throw usageError(`${table.path} has no rows.`)
  if (requests === 0) throw usageError(`${table.path} has no prompts: each cell of '${column}' is empty.`)
  const shown = table.format === 'directory' ? ['file'] : [...columns]
  return { columns: shown, promptColumn: column, rows, requests, hash: hash.digest('hex').slice(0, 32), changedMs }
}

function promptOf(cell: unknown): string {
  if (typeof cell === 'string') return cell
  return cell === undefined || cell === null ? '' : JSON.stringify(cell)
}

function requestOf(row: number, prompt: string, { model, system, maxTokens, temperature }: TableOptions): object {
  const messages = [
    ...(system === undefined ? [] : [{ role: 'system', content: system }]),
    { role: 'user', content: prompt },
  ]
  const body = {
    ...{ model, messages },
    ...(maxTokens !== undefined && { max_tokens: maxTokens }),
    ...(temperature !== undefined && { temperature }),
  }
  return { custom_id: customIdOf(row), method: 'POST', url: CHAT, body }
}

function customIdOf(row: number): string {
  return `row-${row}`
}

const INPUT_KEY = 'sluice_input'

interface OpenOptions {
  readonly window: string
  readonly metadata: Readonly<Record<string, string>> | undefined
  /** Ignore an earlier batch of the same input. */
  readonly isNew: boolean
}

/** The unfinished or completed batch of the same requests, or a new one. */
export async function openBatch(
  batches: BatchesApi,
  { hash }: Converted,
  requests: string,
  { window, metadata, isNew }: OpenOptions,
): Promise<{ readonly batch: BatchView; readonly isResumed: boolean }> {
  const earlier = isNew ? undefined : await batches.findByMetadata(INPUT_KEY, hash)
  if (earlier && !['failed', 'expired', 'cancelling', 'cancelled'].includes(earlier.status)) {
    return { batch: earlier, isResumed: true }
  }
  const input_file_id = await batches.upload(requests)
  const batch = await batches.create({
    ...{ input_file_id, endpoint: CHAT, completion_window: window },
    metadata: { ...metadata, [INPUT_KEY]: hash },
  })
  return { batch, isResumed: false }
}

export interface Written {
  readonly answered: number
  readonly failed: number
}

/** Writes the output: one row per row of the input, in its order. Replaces the file when the output is complete. */
export async function writeOutput(
  batches: BatchesApi,
  { id }: BatchView,
  table: Table,
  { columns, promptColumn, changedMs }: Converted,
  files: RunFiles,
  out: string,
): Promise<Written> {
  await pipeline((await batches.results(id)).body, createWriteStream(files.results))
  const offsets = await offsetsIn(files.results)
  if ((await stat(table.path)).mtimeMs !== changedMs) {
    const message = `${table.path} changed while the batch ran, so its rows may not match the results.`
    throw new CommandError(EXIT.failed, message, `To print the results: sluice results ${id}`)
  }
  const part = `${out}.part`
  let [answered, failed] = [0, 0]
  await using results = await open(files.results)
  async function* rows(): AsyncGenerator<string> {
    const format = new OutputFormat(out, table, columns)
    yield format.header()
    let number = 0
    for await (const row of rowsOf(table)) {
      const range = offsets.get(customIdOf(++number))
      const cells = range ? await cellsOf(results, range) : cellsWithout(promptOf(row.get(promptColumn)))
      if (cells.error === '') answered++
      else failed++
      yield format.row(row, cells)
    }
  }
  await pipeline(rows(), createWriteStream(part)).catch(async (error: unknown) => {
    await rm(part, { force: true })
    throw error
  })
  await rename(part, out)
  return { answered, failed }
}

interface Range {
  readonly start: number
  readonly length: number
}

/** Position of each result line, by custom id. */
async function offsetsIn(path: string): Promise<ReadonlyMap<string, Range>> {
  const offsets = new Map<string, Range>()
  let [start, at] = [0, 0]
  let held: Buffer[] = []
  for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) {
    let from = 0
    for (let end = chunk.indexOf(LINE_FEED); end >= 0; end = chunk.indexOf(LINE_FEED, from)) {
      held.push(chunk.subarray(from, end))
      const line = Buffer.concat(held)
      const customId = batchRowOf(JSON.parse(line.toString()))?.customId
      if (customId !== undefined) offsets.set(customId, { start, length: line.length })
      held = []
      from = end + 1
      start = at + from
    }
    held.push(chunk.subarray(from))
    at += chunk.length
  }
  return offsets
}

interface Cells {
  readonly answer: string
  readonly error: string
  readonly inputTokens: number | null
  readonly outputTokens: number | null
}

const NO_ANSWER = { answer: '', inputTokens: null, outputTokens: null }

async function cellsOf(results: FileHandle, { start, length }: Range): Promise<Cells> {
  const buffer = Buffer.alloc(length)
  await results.read(buffer, 0, length, start)
  const cells = batchRowOf(JSON.parse(buffer.toString()))
  return cells ?? { ...NO_ANSWER, error: 'invalid_result: The result cannot be read.' }
}

/** The cells of a row without a result. */
function cellsWithout(prompt: string): Cells {
  const isEmpty = prompt.trim() === ''
  const error = isEmpty
    ? 'empty_prompt: The prompt is empty, so no request was sent.'
    : 'no_result: The batch ended before this request.'
  return { ...NO_ANSWER, error }
}

/** CSV, TSV or JSON Lines, by the extension of the output. */
class OutputFormat {
  readonly #columns: readonly string[]
  readonly #names: readonly string[]
  readonly #isJson: boolean
  readonly #delimiter: string

  constructor(out: string, { delimiter }: Table, columns: readonly string[]) {
    const extension = extname(out).toLowerCase()
    this.#columns = columns
    this.#isJson = ['.jsonl', '.ndjson'].includes(extension)
    this.#delimiter = ['.tsv', '.tab'].includes(extension) ? '\t' : delimiter === ';' ? ';' : ','
    // An input may be the output of an earlier run.
    const isTaken = ROW_COLUMNS.some((name) => columns.includes(name))
    this.#names = ROW_COLUMNS.map((name) => (isTaken ? freeName(name, columns) : name))
  }

  header(): string {
    return this.#isJson ? '' : this.#line([...this.#columns, ...this.#names])
  }

  row(row: Row, { answer, error, inputTokens, outputTokens }: Cells): string {
    if (!this.#isJson) {
      const given = this.#columns.map((name) => promptOf(row.get(name)))
      return this.#line([...given, withoutFormula(answer), withoutFormula(error), inputTokens, outputTokens])
    }
    const added = [answer, error, inputTokens, outputTokens]
    const own = this.#columns.filter((name) => row.has(name)).map((name) => [name, row.get(name)] as const)
    return `${JSON.stringify(Object.fromEntries([...own, ...this.#names.map((name, nth) => [name, added[nth]] as const)]))}\n`
  }

  #line(cells: readonly (string | number | null)[]): string {
    return exactLine(cells, this.#delimiter)
  }
}

function freeName(name: string, columns: readonly string[]): string {
  for (let nth = 2; ; nth++) if (!columns.includes(`${name}_${nth}`)) return `${name}_${nth}`
}

/**
 * Default of --out: `prompts.answers.csv` next to `prompts.csv`.
 *
 * @throws CommandError if it is the input, or in the directory of the input, where it would become a row
 */
export function outPathOf({ path, format }: Table, asked: string | undefined): string {
  const { dir, name, ext } = parse(resolve(path))
  const out = asked ?? join(dir, `${name}.answers${format === 'directory' ? '.csv' : ext}`)
  if (resolve(out) === resolve(path)) throw usageError(`--out must not be the input ${path}.`)
  if (format === 'directory' && realPathOf(dirname(resolve(out))) === realPathOf(path)) {
    throw usageError(`--out must not be in the input directory ${path}; got '${out}'.`, 'Choose another directory.')
  }
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
