import { createHash } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { linesIn } from '#services/cli/client/http.ts'
import { usageError } from '#services/cli/text/output.ts'
import { customIdOf, type Row } from '#shared/tables/answers.ts'
import { keyOf } from './answers.ts'
import { rowsOf, type Table } from './input.ts'
import { type RowTask, type TaskOptions, taskOf } from './task.ts'

export const ROWS_MAX = 50_000

/** Temporary directory for the files of one run of the command. Deleted when the run ends. */
export class RunFiles implements AsyncDisposable {
  readonly requests: string
  /** Path of the file that contains only the requests to run again, for example after `--retry-failed`. */
  readonly retry: string
  readonly results: string
  readonly #directory: string

  constructor(directory: string) {
    this.#directory = directory
    this.requests = join(directory, 'requests.jsonl')
    this.retry = join(directory, 'retry.jsonl')
    this.results = join(directory, 'results.jsonl')
  }

  /** Path of a table that is uploaded or downloaded. */
  tableWith(extension: string): string {
    return join(this.#directory, `table${extension}`)
  }

  static async open(): Promise<RunFiles> {
    return new RunFiles(await mkdtemp(join(tmpdir(), 'sluice-batch-')))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.#directory, { recursive: true, force: true })
  }
}

export interface Converted {
  readonly task: RowTask
  readonly columns: readonly string[]
  /** For each row, the hash of its request. Empty for a row without a prompt, which has no request. */
  readonly keys: readonly string[]
  readonly requests: number
  /** Hash of the file of requests. A repeated command finds its batch by this hash, which is in the metadata of the batch. */
  readonly hash: string
  /** Hash of all rows of the input. The rows are read again for the output, and must then have the same hash. */
  readonly rowsHash: string
}

/**
 * Writes the requests of a table as JSON Lines.
 *
 * @throws CommandError for an input without rows, without a column, or with more than {@link ROWS_MAX} rows
 */
export async function convertRows(table: Table, options: TaskOptions, isJson: boolean, to: string): Promise<Converted> {
  const columns = new Set<string>()
  const keys: string[] = []
  const hash = createHash('sha256')
  const rowsHash = createHash('sha256')
  let [requests, task] = [0, undefined as RowTask | undefined]
  async function* lines(): AsyncGenerator<string> {
    for await (const row of rowsOf(table)) {
      rowsHash.update(rowText(row))
      for (const name of row.keys()) columns.add(name)
      task ??= taskOf(table, [...columns], options, isJson)
      if (keys.length === ROWS_MAX) {
        const message = `${table.path} has more than ${ROWS_MAX} rows, which is the limit of a batch.`
        throw usageError(message, 'Split the file.')
      }
      const body = task.bodyOf(row)
      keys.push(body ? keyOf(body) : '')
      if (!body) continue
      requests++
      const line = `${JSON.stringify({ custom_id: customIdOf(keys.length), method: 'POST', url: task.endpoint, body })}\n`
      hash.update(line)
      yield line
    }
  }
  await pipeline(lines(), createWriteStream(to))
  if (!task) throw usageError(`${table.path} has no rows.`, 'Add at least one row below the header.')
  if (requests === 0) throw usageError(`${table.path} has no prompts: each prompt is empty.`)
  const hashes = { hash: hash.digest('hex').slice(0, 32), rowsHash: rowsHash.digest('hex') }
  return { task, columns: task.form.shown ?? [...columns], keys, requests, ...hashes }
}

/** Returns a row as one line of JSON. The hash of a table ({@link Converted.rowsHash}) is computed over these lines. */
export function rowText(row: Row): string {
  return `${JSON.stringify([...row])}\n`
}

/** Copies the requests with these custom ids to the file `to`. */
export async function selectRequests(
  source: AsyncIterable<Buffer>,
  to: string,
  ids: ReadonlySet<string>,
): Promise<void> {
  async function* selected(): AsyncGenerator<Buffer> {
    for await (const line of linesIn(source)) {
      if (ids.has(requestOf(line)?.custom_id ?? '')) yield Buffer.concat([line, Buffer.from('\n')])
    }
  }
  await pipeline(selected(), createWriteStream(to))
}

/** Returns the key of each request in a file of requests, by custom id. The key is the hash of the request. */
export async function keysIn(source: AsyncIterable<Buffer>): Promise<ReadonlyMap<string, string>> {
  const keys = new Map<string, string>()
  for await (const line of linesIn(source)) {
    const request = requestOf(line)
    if (request) keys.set(request.custom_id, keyOf(request.body))
  }
  return keys
}

/** Parses a line of a file that the service has already validated. Undefined for a blank line. */
function requestOf(line: Buffer): { readonly custom_id: string; readonly body: unknown } | undefined {
  const text = line.toString().trim()
  return text === '' ? undefined : JSON.parse(text)
}

export function readLines(path: string): AsyncIterable<Buffer> {
  return createReadStream(path)
}
