/*
 * `sluice batch` for a table: one request per row, and one output row per input row.
 *
 * 1. The rows are converted to a file of requests, whose custom ids are the row numbers. Rows without a prompt are left out.
 * 2. The batch has the hash of this file in its metadata. A repeated command therefore finds its batch again after Ctrl-C, after a crash or on
 *    another machine, without a state file. A cancelled, failed or expired batch is not continued, but its answers are used.
 * 3. The batch is followed by polling, which survives restarts of the service.
 * 4. The table is uploaded too, and its file id is in the metadata. `sluice results --csv` and the console can therefore write the same output.
 * 5. The output is written from the results of this batch. For rows without an answer, earlier batches of the same table are searched.
 *
 * All batches of a table also have a second hash in their metadata, made from the file name and the options. The command finds earlier batches by
 * this hash, and reads their requests from their input files. The answer of a row is therefore found by the content of the row. Only rows that were
 * changed or added, and rows that failed, run. `--retry-failed` differs only in that it does not continue a batch of equal rows.
 */

import { createHash } from 'node:crypto'
import { createWriteStream, existsSync } from 'node:fs'
import { basename } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { ApiError, BatchesApi, type BatchView, isGone } from '#services/cli/client/http.ts'
import type { Invocation } from '#services/cli/commands/command.ts'
import { checkMetadata, METADATA_PAIRS_MAX, metadataWith } from '#services/cli/commands/submit.ts'
import { CommandError, EXIT, type Output, plain, printable, usageError } from '#services/cli/text/output.ts'
import {
  allText,
  cellText,
  customIdOf,
  FORM_KEY,
  formText,
  RETRY_OF_KEY,
  rowsText,
  TABLE_FILE_KEY,
} from '#shared/tables/answers.ts'
import { Answers } from './answers.ts'
import { type Converted, convertRows, keysIn, RunFiles, readLines, selectRequests } from './convert.ts'
import { BatchProgress, ENDED } from './follow-table.ts'
import { rowsOf, type Table } from './input.ts'
import type { TaskOptions } from './task.ts'
import { type Written, writeOutput } from './write.ts'

const INPUT_KEY = 'sluice_input'
const TABLE_KEY = 'sluice_table'
/** Maximum number of earlier batches of a table that are searched for answers. */
const EARLIER_MAX = 20

export interface TableOptions extends TaskOptions {
  readonly out: string
  readonly window: string
  readonly metadata: Readonly<Record<string, string>> | undefined
}

export interface TableResult {
  readonly batch: BatchView
  readonly written: Written
  /** All batches from which the answers in the output come. */
  readonly sources: readonly BatchView[]
}

/**
 * Runs a table to its end and writes the output.
 *
 * @throws CommandError
 */
export async function runTable(invocation: Invocation, table: Table, options: TableOptions): Promise<TableResult> {
  const { values, api, out, commandLine } = invocation
  const batches = new BatchesApi(api.http)
  await using files = await RunFiles.open()
  const continueText = () => {
    const state = existsSync(options.out) ? 'still has its earlier content' : 'does not exist yet'
    return `${plain(options.out)} ${state}. To continue and write the file: ${printable(commandLine.text(['--new']))}`
  }
  const follower = new BatchProgress(batches, out, {
    cancelOnInterrupt: values.has('cancel-on-interrupt'),
    continueText,
  })
  using _interrupts = onInterrupt(async () => {
    if (follower.isFollowing) return
    const { followed } = follower
    const before = followed === undefined ? 'the rows were submitted' : `the answers of ${followed} were written`
    out.note(`Stopped before ${before}.\n${continueText()}`)
    await files[Symbol.asyncDispose]()
    process.exit(EXIT.interrupted)
  })
  // The command stores two hashes in the metadata, so --metadata may set two pairs fewer than for other batches.
  checkMetadata(options.metadata, METADATA_PAIRS_MAX - 2)
  // Called before the upload, so that an unknown model is reported at once.
  const { hasStructuredOutput, isFailing } = await batches.model(options.model)
  if (isFailing)
    out.note(`Warning: the last calls to all servers of ${options.model} failed, so rows may wait and fail.`)
  const isJson = !(options.choices || options.schema) || hasStructuredOutput
  const converted = await convertRows(table, options, isJson, files.requests)
  const run = new TableRun({ batches, out, files, follower, table, options, converted })
  return values.has('retry-failed') ? await run.retry() : await run.run(values.has('new'))
}

/** Calls `handle` at each Ctrl-C until the result is disposed. */
function onInterrupt(handle: () => Promise<void>): Disposable {
  const listener = () => void handle()
  process.on('SIGINT', listener)
  return { [Symbol.dispose]: () => void process.off('SIGINT', listener) }
}

interface Parts {
  readonly batches: BatchesApi
  readonly out: Output
  readonly files: RunFiles
  readonly follower: BatchProgress
  readonly table: Table
  readonly options: TableOptions
  readonly converted: Converted
}

class TableRun {
  readonly #parts: Parts
  readonly #answers: Answers
  readonly #tableHash: string
  /** Batches whose results are in {@link #answers}, by their id. */
  readonly #added = new Map<string, BatchView>()
  /** By custom id: the newest earlier batch with this custom id, and the key of its request. */
  readonly #before = new Map<string, { readonly batch: string; readonly key: string }>()

  constructor(parts: Parts) {
    const { files, table, converted, options } = parts
    const { out: _, window: __, metadata: ___, ...task } = options
    this.#parts = parts
    this.#answers = new Answers(files.results, converted.task)
    this.#tableHash = createHash('sha256')
      .update(JSON.stringify([basename(table.path), task]))
      .digest('hex')
      .slice(0, 32)
  }

  /**
   * Continues the batch that was created from equal rows, if there is one. Otherwise, runs the rows that no earlier batch of this table has answered.
   *
   * @param isNew If true, then all rows run, and no earlier batch is used
   */
  async run(isNew: boolean): Promise<TableResult> {
    const { batches, converted, out } = this.#parts
    if (isNew) return await this.#runRest([])
    const [same] = await batches.findByMetadata(INPUT_KEY, converted.hash, 1)
    if (!same || ['failed', 'expired', 'cancelling', 'cancelled'].includes(same.status)) {
      return await this.#runRest(await this.#earlier())
    }
    out.note(`Continuing ${same.id}, which has the same rows. To run the rows again: repeat the command with --new`)
    const ended = await this.#follow(same)
    if (this.#unanswered().size > 0) {
      const earlier = await this.#earlier()
      await this.#addEarlier(earlier.filter(({ id, status }) => id !== ended.id && ENDED.has(status)))
    }
    return await this.#write(ended)
  }

  async retry(): Promise<TableResult> {
    const earlier = await this.#earlier()
    if (earlier.length > 0) return await this.#runRest(earlier)
    const message = `No earlier batch of ${this.#parts.table.path} with these options was found.`
    throw usageError(message, 'Run the command without --retry-failed.')
  }

  /** Runs the rows for which no earlier batch of this table has an answer. */
  async #runRest(earlier: readonly BatchView[]): Promise<TableResult> {
    const { converted, files, out } = this.#parts
    await this.#addEnded(earlier)
    const ids = this.#unanswered()
    const [newest] = earlier
    if (newest && ids.size === 0) {
      out.note('Every row has an answer, so no request runs.')
      return await this.#write(newest)
    }
    if (ids.size === converted.requests) {
      const total = newest?.request_counts.total
      if (newest?.invalid_answers && newest.invalid_answers === total) {
        out.note(
          `Warning: ${allText(total)} of ${newest.id} had an invalid answer. The rows run again with the same prompt.`,
        )
      }
      return await this.#write(await this.#follow(await this.#create(files.requests)))
    }
    out.note(this.#planText(ids))
    await selectRequests(readLines(files.requests), files.retry, ids)
    return await this.#write(await this.#follow(await this.#create(files.retry, ids.size, this.#retriedOf(earlier))))
  }

  /** Number and cost of the rows that will run, such as `480 rows are already answered, 1 changed, 19 new: 20 rows will run, about $0.0200`. */
  #planText(ids: ReadonlySet<string>): string {
    const { keys, requests } = this.#parts.converted
    const answered = requests - ids.size
    const present = new Set(keys)
    const found = this.#answers.assign(keys)
    const failed = keys.filter((_, nth) => ids.has(customIdOf(nth + 1)) && found[nth]).length
    const removed = [...this.#before.values()].filter(({ key }) => !present.has(key)).length
    const changed = Math.min(ids.size - failed, removed)
    const counts = { failed, changed, new: ids.size - failed - changed }
    const parts = Object.entries(counts).flatMap(([name, count]) => (count > 0 ? [`${count} ${name}`] : []))
    const priced = [...this.#added.values()].find(
      ({ cost_usd, request_counts }) => cost_usd != null && request_counts.completed > 0,
    )
    const usd = priced && ((priced.cost_usd ?? 0) / priced.request_counts.completed) * ids.size
    const run = `${rowsText(ids.size)} will run${usd === undefined ? '' : `, about $${usd.toFixed(4)}`}`
    const are = `${rowsText(answered)} ${answered === 1 ? 'is' : 'are'} already answered`
    return `${[are, ...parts].join(', ')}: ${run}. To run all rows: repeat the command with --new`
  }

  /**
   * Returns the id of the newest earlier batch, if the metadata of the new batch may name it as the batch that is retried. For each custom
   * id, which is a row number, the service then shows the newest result of the new batch and of all retried batches. Undefined if this
   * result would belong to another request than the row has now, because rows have moved or were changed back. Undefined also if an answer
   * is from a batch that the newest earlier batch does not retry.
   */
  #retriedOf(earlier: readonly BatchView[]): string | undefined {
    const retried = new Set<string>()
    for (let id = earlier[0]?.id; id !== undefined && !retried.has(id); ) {
      retried.add(id)
      id = this.#added.get(id)?.metadata?.[RETRY_OF_KEY]
    }
    const found = this.#answers.assign(this.#parts.converted.keys)
    const hasAll = found.every((one, nth) => {
      const customId = customIdOf(nth + 1)
      const isNewest = one?.customId === customId && one.batch === this.#before.get(customId)?.batch
      return !one?.isAnswer || (retried.has(one.batch) && isNewest)
    })
    return hasAll ? earlier[0]?.id : undefined
  }

  /**
   * Creates a batch of the requests in a file. The metadata of the batch contains the hash of all rows, also if only some rows run, so that a
   * repeated command finds this batch.
   */
  async #create(path: string, requests = this.#parts.converted.requests, retried?: string): Promise<BatchView> {
    const { batches, options, converted, table, out } = this.#parts
    const { endpoint, form } = converted.task
    const given = { ...options.metadata, [INPUT_KEY]: converted.hash, [TABLE_KEY]: this.#tableHash }
    const input_file_id = await batches.upload(path)
    const file = Object.keys(given).length < METADATA_PAIRS_MAX ? await this.#uploadTable() : undefined
    const own = {
      ...(file !== undefined && { [TABLE_FILE_KEY]: file }),
      [FORM_KEY]: formText(form),
      ...(retried !== undefined && { [RETRY_OF_KEY]: retried }),
      name: basename(table.path),
    }
    const metadata = metadataWith(given, own)
    const batch = await batches.create({ input_file_id, endpoint, completion_window: options.window, metadata })
    const skipped = converted.keys.length - converted.requests
    out.note(`${batch.id}: ${requests} requests${skipped > 0 ? `, ${skipped} skipped (empty prompt)` : ''}`)
    return batch
  }

  /**
   * Uploads the table. @returns Id of the file. Undefined if the service refused the file, which is no failure, because the batch does not need the
   * table
   */
  async #uploadTable(): Promise<string | undefined> {
    const { batches, table, files, out } = this.#parts
    const name = basename(table.path)
    try {
      if (table.format !== 'directory') return await batches.upload(table.path, 'user_data')
      const list = files.tableWith('.jsonl')
      await pipeline(directoryLines(table), createWriteStream(list))
      return await batches.upload(list, 'user_data', `${name}.jsonl`)
    } catch (error) {
      if (!(error instanceof ApiError)) throw error
      const next = `To get the results as a CSV with the columns of the table, run: sluice results BATCH --csv --input ${plain(table.path)}`
      out.note(`The table is not stored with the batch: ${error.message}\n${next}`)
      return undefined
    }
  }

  /** Follows a batch of this table to its end, and adds its results. */
  async #follow(opened: BatchView): Promise<BatchView> {
    const { batches, follower, converted } = this.#parts
    const ended = await follower.follow(opened)
    if (ended.status === 'failed') throw new CommandError(EXIT.failed, `${ended.id} failed.`, problemsOf(ended))
    const keys = new Map(converted.keys.map((key, nth) => [customIdOf(nth + 1), key]))
    await this.#answers.add(ended.id, (await batches.results(ended.id)).body, (id) => keys.get(id), true)
    this.#added.set(ended.id, ended)
    return ended
  }

  async #earlier(): Promise<BatchView[]> {
    return await this.#parts.batches.findByMetadata(TABLE_KEY, this.#tableHash, EARLIER_MAX)
  }

  /** Follows earlier batches that still run, and then adds the results of all earlier batches. */
  async #addEnded(earlier: readonly BatchView[]): Promise<void> {
    const { follower, out } = this.#parts
    const ended: BatchView[] = []
    for (const batch of earlier) {
      const isEnded = ENDED.has(batch.status)
      if (!isEnded) out.note(`${batch.id} still runs, and is followed first.`)
      ended.push(isEnded ? batch : await follower.follow(batch))
    }
    await this.#addEarlier(ended)
  }

  /** Adds the results of batches, newest first, until each row has an answer. */
  async #addEarlier(earlier: readonly BatchView[]): Promise<void> {
    const { batches, out } = this.#parts
    for (const batch of earlier) {
      const { id, input_file_id } = batch
      if (!input_file_id || this.#unanswered().size === 0) continue
      try {
        const keys = await keysIn((await batches.fileContent(input_file_id)).body)
        await this.#answers.add(id, (await batches.results(id)).body, (customId) => keys.get(customId))
        this.#added.set(id, batch)
        for (const [customId, key] of keys)
          if (!this.#before.has(customId)) this.#before.set(customId, { batch: id, key })
      } catch (error) {
        if (!isGone(error)) throw error
        out.note(`The files of ${id} were deleted or have expired, so its answers are not used.`)
      }
    }
  }

  /** Returns the custom ids of the rows without an answer. */
  #unanswered(): ReadonlySet<string> {
    const { keys } = this.#parts.converted
    const found = this.#answers.assign(keys)
    return new Set(keys.flatMap((key, nth) => (key === '' || found[nth]?.isAnswer ? [] : customIdOf(nth + 1))))
  }

  async #write(batch: BatchView): Promise<TableResult> {
    const { table, converted, options } = this.#parts
    const written = await writeOutput(table, converted, this.#answers, options.out)
    const used = new Set(this.#answers.assign(converted.keys).map((one) => one?.batch))
    const sources = [...this.#added.values()].filter(({ id }) => id === batch.id || used.has(id))
    return { batch, written, sources: sources.length > 0 ? sources : [batch] }
  }
}

const BEGINNING_CHARS = 100

/** Rows of a directory for its upload: the name and the beginning of each text. The whole texts are in the requests. */
async function* directoryLines(table: Table): AsyncGenerator<string> {
  for await (const row of rowsOf(table)) {
    const text = cellText(row.get('text')).trim().slice(0, BEGINNING_CHARS).toWellFormed()
    yield `${JSON.stringify({ file: row.get('file'), text })}\n`
  }
}

const PROBLEMS_MAX = 10

/** The problems of a batch whose input file is invalid. */
export function problemsOf({ errors }: BatchView): string {
  const problems = errors?.data ?? []
  const shown = problems.slice(0, PROBLEMS_MAX).map(({ line, message }) => {
    return plain(line == null ? message : `request ${line}: ${message}`)
  })
  const rest = problems.length > PROBLEMS_MAX ? [`and ${problems.length - PROBLEMS_MAX} more`] : []
  return [...shown, ...rest].join('\n')
}
