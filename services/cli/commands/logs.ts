import { setTimeout as delay } from 'node:timers/promises'
import {
  ActiveRequestListAnswer,
  type FailedAttempt,
  RequestAnswer,
  RequestListAnswer,
} from '#schemas/admin/requests.ts'
import { ERRORS } from '#schemas/error.ts'
import { type HttpClient, isTemporary } from '#services/cli/client/http.ts'
import {
  CommandError,
  EXIT,
  type ExitCode,
  type Format,
  type Layout,
  layoutOf,
  linesOf,
  type Output,
  plain,
  printable,
  tableOf,
  timeOf,
  usageError,
} from '#services/cli/text/output.ts'
import { csvLine } from '#shared/lib/csv.ts'
import { durationText } from '#shared/lib/duration.ts'
import { logStartText } from '#shared/usage/comparison.ts'
import { type Command, noArguments, type Values } from './command.ts'

const PATH = '/v1/admin/requests'
const PAGE_MAX = 100
const LIMIT_DEFAULT = 50
const LIMIT_MAX = 100_000
const FOLLOW_INTERVAL_MS = 1_500
const RETRY_DELAY_MS = 2_000
/**
 * Overlap of consecutive polls of `--follow`, in seconds. Without an overlap, rows that appear late would be missed. The row of a call is
 * written up to a second after the call has ended, and the clocks of processes differ.
 */
const REREAD_SECONDS = 10
/** Values of `--status` for calls that have not ended. */
const ACTIVE: ReadonlySet<string> = new Set(['active', 'waiting', 'running'])
/** Options that can be combined with a status in {@link ACTIVE}. */
const ACTIVE_FILTERS: readonly string[] = ['status', 'model', 'project']
/** Options of this command, by the query parameter that each option sets. */
const FILTERS = {
  ...{ status: 'status', model: 'model', endpoint: 'endpoint', server: 'server', project: 'project', key: 'key-id' },
  ...{
    error_code: 'error-code',
    job_id: 'job',
    batch_id: 'batch',
    trace_id: 'trace',
    min_duration_ms: 'min-duration-ms',
  },
} as const

export const logs: Command = {
  summary: 'Show ended calls: status, times, tokens and cost',
  isList: true,
  help: `Usage: sluice logs [options]
       sluice logs REQUEST

Shows the latest ended calls and durable jobs of your key's project, the newest last. With REQUEST, shows all fields and the failed attempts of this call.
REQUEST is the id of a request (x-request-id), of a durable job, or of an answer such as chatcmpl-…. The next step and the page of the console are printed on stderr. A key with the admin scope sees every project. The output is a table on
a terminal and JSON lines otherwise.

Options:
  --follow             keep running and print calls as they end; short: -f
  --status STATUS      a status such as 429, a class such as 5xx, or failed for 400 and above
                       (without cancelled calls and calls without a valid key). Or waiting,
                       running or active: calls that have not ended, the oldest first
  --model MODEL        only this model
  --endpoint PATH      only this endpoint, such as /v1/chat/completions
  --server SERVER      only this upstream server of the model, such as 0
  --error-code CODE    only this error code, such as rate_limit_exceeded; several with commas
  --project P          only this project, by id or name; requires the admin scope
  --key-id ID          only this API key
  --job JOB            only this durable job
  --batch BATCH        only the lines of this batch
  --batch-lines        the lines of batches instead of the batches. Default: a batch is one row,
                       unless a filter such as --status failed, --model or --batch selects lines
  --trace ID           only this trace, by its 32 hexadecimal digits
  --min-duration-ms N  only calls that took at least N milliseconds
  --since TIME         only calls that ended at or after this time, or within this time until now, such as 1h
  --until TIME         only calls that ended before this time
  --limit N            maximum number of calls (default ${LIMIT_DEFAULT})

Examples:
  sluice logs --status failed --since 1h
  sluice logs --follow --model qwen3-8b
  sluice logs --since 1d --limit 10000 -o csv > calls.csv`,
  options: {
    ...Object.fromEntries(Object.values(FILTERS).map((option) => [option, { type: 'string' }] as const)),
    ...{ since: { type: 'string' }, until: { type: 'string' }, limit: { type: 'string' } },
    follow: { type: 'boolean', short: 'f' },
    'batch-lines': { type: 'boolean' },
  },
  async run({ values, args, api, out, commandLine }): Promise<ExitCode> {
    const format = formatOf(values, out)
    const [id, ...more] = args
    noArguments(more)
    if (id !== undefined) return await showOne(api.http, id, format, out)
    const query = queryOf(values)
    if (ACTIVE.has(query.get('status') ?? '')) {
      checkActive(values)
      return await showActive(api.http, query, format, out)
    }
    const printer = new Printer(format, out, values.has('follow'))
    const limit = values.count('limit', 1, LIMIT_MAX) ?? LIMIT_DEFAULT
    const { rows, logSince } = await readPages(api.http, query, limit)
    await printer.print(rows)
    const start = query.has('since') && rows.length < limit ? logStartText(logSince, Number(query.get('since'))) : ''
    if (start && format === 'table') out.note(start)
    if (values.has('follow')) {
      const newest = await follow(api.http, query, { rows, isCut: rows.length >= limit }, printer, out)
      const since = new Date(1_000 * newest).toISOString()
      const next = `To continue from the last printed call: ${printable(commandLine.text([], { '--since': since }))}`
      throw new CommandError(EXIT.interrupted, 'Stopped following the log.', next)
    }
    if (rows.length === 0 && format === 'table') out.note('No calls in the log match the options.')
    return EXIT.ok
  },
}

/** @throws CommandError for an option that cannot be combined with a status in {@link ACTIVE} */
function checkActive(values: Values): void {
  const names = ['follow', 'since', 'until', 'limit', 'batch-lines', ...Object.values(FILTERS)]
  const misplaced = names.find((name) => !ACTIVE_FILTERS.includes(name) && values.given().includes(name))
  if (misplaced === undefined) return
  const message = `--${misplaced} applies to ended calls, so it cannot be used with --status ${values.text('status')}.`
  throw usageError(message, 'Filters for calls that have not ended: --model and --project.')
}

function formatOf(values: Values, out: Output): Format {
  if (values.text('output') === 'csv') return 'csv'
  return out.isHumanReadable ? 'table' : 'json'
}

function queryOf(values: Values): URLSearchParams {
  const query = new URLSearchParams()
  for (const [name, option] of Object.entries(FILTERS)) {
    const value = values.text(option)
    if (value !== undefined) query.set(name, value)
  }
  if (values.has('batch-lines')) query.set('batch_lines', 'true')
  for (const option of ['since', 'until']) {
    const text = values.text(option)
    if (text !== undefined) query.set(option, String(timeOf(option, text, Date.now(), -1)))
  }
  return query
}

/** Returns at most `limit` rows that match, the newest last, and the start of the log. */
async function readPages(http: HttpClient, query: URLSearchParams, limit: number) {
  const rows: RequestAnswer[] = []
  let logSince: number | null = null
  for (let after: string | null = null; rows.length < limit; ) {
    const page = new URLSearchParams(query)
    page.set('limit', String(Math.min(PAGE_MAX, limit - rows.length)))
    if (after !== null) page.set('after', after)
    const { data, has_more, last_id, log_since } = await http.json(RequestListAnswer, `${PATH}?${page}`)
    rows.push(...data)
    logSince = log_since
    if (!has_more) break
    after = last_id
  }
  return { rows: rows.reverse(), logSince }
}

interface FirstPage {
  readonly rows: readonly RequestAnswer[]
  /** True if the log may have older rows that match. */
  readonly isCut: boolean
}

/**
 * Polls for rows of calls that ended after the printed rows. Consecutive polls overlap, but each row is printed once.
 * If the first page did not contain all matching rows, then older rows are not printed. The command continues if the
 * service restarts or refuses a poll because of a rate limit.
 *
 * @returns After Ctrl-C, the end of the newest printed call in Unix seconds
 */
async function follow(
  http: HttpClient,
  query: URLSearchParams,
  { rows: printed, isCut }: FirstPage,
  printer: Printer,
  out: Output,
): Promise<number> {
  const stop = new AbortController()
  process.once('SIGINT', () => stop.abort())
  const seen = new Map(printed.map(({ id, ended_at }) => [`${id} ${ended_at}`, ended_at]))
  const oldest = (isCut ? printed[0]?.ended_at : undefined) ?? 0
  let newest = printed.at(-1)?.ended_at ?? http.serverTimeMs / 1_000
  let isFailing = false
  for (;;) {
    // Ctrl-C ends only this delay. If it ended a poll, then the poll's rows would be printed only in part.
    await delay(isFailing ? RETRY_DELAY_MS : FOLLOW_INTERVAL_MS, undefined, { signal: stop.signal }).catch(() => {})
    if (stop.signal.aborted) return newest
    const since = newest - REREAD_SECONDS
    const next = new URLSearchParams(query)
    next.set('since', String(Math.max(since, Number(query.get('since') ?? 0))))
    const page = await readPages(http, next, LIMIT_MAX).catch((error: unknown) => {
      if (!isTemporary(error)) throw error
      if (!isFailing) out.note(`${plain((error as Error).message)} Trying again.`)
      return undefined
    })
    isFailing = page === undefined
    if (!page) continue
    const { rows } = page
    const fresh = rows.filter(({ id, ended_at }) => ended_at >= oldest && !seen.has(`${id} ${ended_at}`))
    for (const { id, ended_at } of fresh) seen.set(`${id} ${ended_at}`, ended_at)
    newest = Math.max(newest, rows.at(-1)?.ended_at ?? 0)
    for (const [key, endedAt] of seen) if (endedAt < newest - 2 * REREAD_SECONDS) seen.delete(key)
    await printer.print(fresh)
  }
}

async function showActive(http: HttpClient, query: URLSearchParams, format: Format, out: Output): Promise<ExitCode> {
  if (query.get('status') === 'active') query.delete('status')
  const { data, total, ingress } = await http.json(ActiveRequestListAnswer, `${PATH}/active?${query}`)
  const rows = data.map(({ object: _, ...row }) => ({ ...row, started_at: timeText(row.started_at) }))
  if (format === 'json') for (const row of data) await out.json(row)
  else if (format === 'csv') {
    if (rows[0]) await out.write([Object.keys(rows[0]), ...rows.map(Object.values)].map(csvLine).join(''))
  } else if (rows.length === 0)
    out.note(
      `No synchronous call waits or runs at the ingress ${plain(ingress)}. For durable jobs: sluice jobs --status in_progress.`,
    )
  else {
    const head = ['request', 'status', 'age', 'position', 'model', 'endpoint', 'project', 'reason']
    const cells = data.map(({ id, status, age_ms, position, model, endpoint, project_name, project, reason }) => {
      const where = [model, endpoint.replace('/v1/', ''), project_name ?? project]
      return [id, status, tookText(age_ms), String(position ?? ''), ...where, reason ?? '']
    })
    await out.write(
      tableOf({ head, rows: cells, spare: ['endpoint', 'project', 'reason'], cut: ['model', 'reason'] }, out.columns),
    )
    out.note(`Answered by the ingress ${plain(ingress)}, which lists only its own calls.`)
    if (total > data.length) out.note(`The oldest ${data.length} of ${total} calls are shown.`)
  }
  return EXIT.ok
}

async function showOne(http: HttpClient, id: string, format: Format, out: Output): Promise<ExitCode> {
  const row = await http.json(RequestAnswer, `${PATH}/${encodeURIComponent(id)}`)
  if (format !== 'table') await new Printer(format, out).print([row])
  else {
    const { failed_attempts = [] } = row
    const fields = Object.entries(shownOf(row)).filter(([, value]) => value !== null)
    await out.write(fields.map(([name, value]) => `${name.padEnd(20)}  ${plain(String(value))}\n`).join(''))
    if (failed_attempts.length > 0) await out.write(`\n${attemptTable(failed_attempts, out.columns)}`)
  }
  if (row.next_step) out.note(`Next step: ${row.next_step}`)
  out.note(`Console: ${http.url}/console/requests/${row.id}`)
  return EXIT.ok
}

export function attemptTable(attempts: readonly FailedAttempt[], columnsMax: number): string {
  const head = ['failed attempt', 'started', 'took', 'next after', 'server', 'worker', 'error', 'message']
  const rows = attempts.map((one) => {
    const times = [clockText(one.started_at), tookText(one.duration_ms), tookText(one.retry_delay_ms)]
    const message = one.upstream_message ?? one.error_message
    return [String(one.attempt), ...times, one.server ?? '', one.worker ?? '', one.error_code, message]
  })
  return tableOf({ head, rows, spare: ['worker', 'server'], cut: ['message'] }, columnsMax)
}

const HEAD = [
  'request',
  'ended',
  'status',
  'took',
  'queued',
  'first',
  'model',
  'endpoint',
  'tokens',
  'cost $',
  'project',
  'error',
  'message',
]
const SPARE = ['project', 'queued', 'first', 'cost $', 'endpoint', 'tokens', 'message', 'took', 'model']
const LONGEST_CODE = Object.keys(ERRORS).reduce((longest, code) => (code.length > longest.length ? code : longest))
/** Example row that determines the column widths for `--follow`, because later rows are not known when the first row is printed. */
const USUAL = [
  'req_0123456789abcdefghijklmn',
  '00:00:00',
  '200',
  '100 ms',
  '100 ms',
  '100 ms',
  'model-of-usual-size',
  'chat/completions',
  '1000 → 1000',
  '0.0001',
  'usual-project',
  LONGEST_CODE,
  'x'.repeat(80),
]

/** Prints rows in a format, with the head of a table or CSV before the first ones. */
class Printer {
  readonly #format: Format
  readonly #out: Output
  #layout: Layout | undefined
  readonly #isFollowing: boolean
  #hasHead = false

  constructor(format: Format, out: Output, isFollowing = false) {
    this.#isFollowing = isFollowing
    this.#format = format
    this.#out = out
  }

  async print(rows: readonly RequestAnswer[]): Promise<void> {
    const [first] = rows
    if (!first) return
    const isFirst = !this.#hasHead
    this.#hasHead = true
    if (this.#format === 'json') for (const row of rows) await this.#out.json(row)
    else if (this.#format === 'csv') {
      const head = isFirst ? csvLine(Object.keys(shownOf(first))) : ''
      await this.#out.write(head + rows.map((row) => csvLine(Object.values(shownOf(row)))).join(''))
    } else {
      const cells = rows.map(cellsOf)
      const sample = this.#isFollowing ? [...cells, USUAL] : cells
      const table = { head: HEAD, rows: sample, spare: SPARE, cut: ['model', 'message'] }
      this.#layout ??= layoutOf(table, this.#out.columns)
      await this.#out.write(linesOf(this.#layout, isFirst ? [HEAD, ...cells] : cells))
    }
  }
}

/** Returns the fields of a request for CSV, and for the table of one request. Times are converted to text. */
function shownOf({
  object: _type,
  failed_attempts: _attempts,
  next_step: _step,
  retried_by: retries,
  request_counts: counts,
  started_at,
  ended_at,
  ...row
}: RequestAnswer) {
  const { id, ...rest } = row
  const retried_by = retries?.map((retry) => `${retry.id} -> ${retry.status}`).join(', ') || 'none seen'
  const times = { started_at: timeText(started_at), ended_at: timeText(ended_at) }
  return { id, ...times, ...rest, batch_calls: countsText(counts), ...(retries && { retried_by }) }
}

/** Returns the counts of a batch as text. Null for a request that is not a batch. */
function countsText(counts: RequestAnswer['request_counts']): string | null {
  if (!counts) return null
  return `${counts.total} calls${counts.failed > 0 ? `, ${counts.failed} failed` : ''}`
}

function cellsOf(row: RequestAnswer): string[] {
  const { id, ended_at, status, duration_ms, queue_ms, first_output_ms, model, endpoint, error_code } = row
  const times = [duration_ms, queue_ms, first_output_ms].map(tookText)
  const tokens = `${row.input_tokens} → ${row.output_tokens}`
  const project = row.project_name ?? row.project ?? ''
  const error = [error_code, row.sdk_retry && `SDK retry ${row.sdk_retry}`].filter(Boolean).join(', ')
  const named = [model ?? '', endpoint.replace('/v1/', ''), tokens, row.cost_usd.toFixed(4), project, error]
  const counts = countsText(row.request_counts)
  const shownStatus = counts && status < 400 ? 'batch' : String(status)
  return [id, clockText(ended_at), shownStatus, ...times, ...named, row.error_message ?? counts ?? '']
}

function tookText(ms: number | null): string {
  if (ms === null) return ''
  if (ms >= 60_000) return durationText(ms / 1_000)
  return ms < 1_000 ? `${ms} ms` : `${(ms / 1_000).toFixed(1)} s`
}

/** Returns the local time, with the date unless the date is today. */
function clockText(seconds: number): string {
  const [date = '', time = ''] = localTime(seconds * 1_000).split(' ')
  return localTime(Date.now()).startsWith(date) ? time : `${date} ${time}`
}

function localTime(ms: number): string {
  return new Date(ms).toLocaleString('sv-SE')
}

function timeText(seconds: number): string {
  return new Date(seconds * 1_000).toISOString()
}
