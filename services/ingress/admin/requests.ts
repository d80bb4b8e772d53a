import { setImmediate as nextTurn } from 'node:timers/promises'
import {
  type ActiveRequest,
  type FailedAttempt,
  type FormatName,
  ListActiveRequests,
  ListFailures,
  ListRequests,
  type RequestAnswer,
  type RequestFailures,
} from '#schemas/admin/requests.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { callOfJob } from '#services/ingress/calls/answer.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { isCsvAsked, namesOf, projectFor, replyCsv } from '#services/ingress/endpoints/usage.ts'
import { addressesOf } from '#shared/engines/upstream/servers.ts'
import type { AttachedJob } from '#shared/jobs/attached/attached-job.ts'
import { hasScope, projectIdOf } from '#shared/keys/keys.ts'
import type { CsvCell } from '#shared/lib/csv.ts'
import { ServiceError } from '#shared/lib/error.ts'
import {
  isFailedStatus,
  type RequestCursor,
  type RequestLog,
  type RequestOutcome,
  type RequestQuery,
  type RequestRow,
} from '#shared/store/requests.ts'
import { NANOS_PER_USD } from '#shared/usage/usage.ts'
import { attemptsOfJob, requestBefore, retriesOf } from './attempts.ts'
import { audit } from './audit.ts'
import { nextStepOf } from './next-step.ts'

/**
 * Maximum time in ms of the search for the first match. After this time, the page is empty, and its cursor continues
 * the search.
 */
const SEARCH_MS = 60
/** Valid ids. Other texts are not looked up, because Postgres refuses some characters, such as NUL. */
const ID = /^[\w-]{1,256}$/

/**
 * GET /v1/admin/requests: the request log of the caller's project. Operators receive the log of all projects, or of the
 * project that they name.
 *
 * @throws ServiceError `permission_denied` for another project; `not_found` if the log is off; `jobs_unavailable`
 * without a store
 */
export async function listRequests(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListRequests, call.query)
  const asked = parseBody(ListRequests, { ...call.query }, 'openai')
  const log = requireLog(context)
  const project = projectFor(context, call, asked.project)
  const query = queryOf(context, asked, project)
  const { rows, next } =
    asked.request_id === undefined
      ? await search(log, query)
      : { rows: await findRows(log, asked.request_id, project), next: null }
  const hasCount = asked.count === 'true' && asked.after === undefined && asked.request_id === undefined
  const total = hasCount ? await log.count(query) : undefined
  const previews = new Map((await log.previews(rows.map(({ id }) => id))).map((preview) => [preview.id, preview]))
  const show = shownBy(context, call)
  const data = rows.map((row) => {
    const { promptPreview, answerPreview } = previews.get(row.id) ?? {}
    return {
      ...show(row),
      ...(promptPreview != null && { prompt_preview: promptPreview }),
      ...(answerPreview != null && { answer_preview: answerPreview }),
    }
  })
  const last_id = next && `${next.endedAtMs}_${next.n}`
  await call.reply.whole({
    ...{ object: 'list', data, first_id: data[0]?.id ?? null, last_id, has_more: next !== null },
    ...{ total: total?.count ?? null, total_is_lower_bound: total?.isLowerBound ?? false },
    log_since: await startOf(log),
  })
}

async function startOf(log: RequestLog): Promise<number | null> {
  const atMs = await log.startsAtMs()
  return atMs === undefined ? null : atMs / 1_000
}

/** Maximum reads of the log for one count of failures, each of at most 5,000 rows. */
const FAILURE_READS_MAX = 20
/**
 * Number of rows of the answer at which the count ends. Failures of different models are separate rows, and a caller may name a new unknown
 * model in each request.
 */
const FAILURE_ROWS = 10_000

/**
 * GET /v1/admin/requests/failures: failed requests by error code, model, project and key, the most frequent first, as JSON or CSV.
 *
 * @throws The errors of {@link listRequests}
 */
export async function listFailures(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListFailures, call.query)
  const asked = parseBody(ListFailures, { ...call.query }, 'openai')
  const log = requireLog(context)
  const project = projectFor(context, call, asked.project)
  const query = queryOf(context, { ...asked, status: 'failed', limit: 1 }, project)
  const counts = new Map<string, RequestOutcome>()
  const isOperator = hasScope(call.key, 'admin')
  let page = await log.outcomes(query, isOperator)
  for (let reads = 1; ; reads++) {
    for (const one of page.outcomes) addOutcome(counts, one)
    if (!page.next || reads === FAILURE_READS_MAX || counts.size >= FAILURE_ROWS) break
    await nextTurn()
    page = await log.outcomes({ ...query, after: page.next }, isOperator)
  }
  const [projectName, keyName] = [namesOf(context, 'project'), namesOf(context, 'key')]
  const data = [...counts.values()]
    .toSorted((a, b) => b.calls - a.calls || b.lastEndedAtMs - a.lastEndedAtMs)
    .map(
      (one): RequestFailures => ({
        ...{ object: 'request.failures', project: one.project || null, project_name: projectName(one.project) },
        ...{ key_id: one.keyId || null, key_name: keyName(one.keyId) },
        ...{ model: one.model, status: one.status, error_code: one.errorCode, count: one.calls },
        ...{ first_ended_at: one.firstEndedAtMs / 1_000, last_ended_at: one.lastEndedAtMs / 1_000 },
        ...{ message: one.message, newest_id: one.newestId },
      }),
    )
  const has_more = page.next !== null
  if (isCsvAsked(call, asked))
    return await replyCsv(call, `failures${has_more ? '-incomplete' : ''}.csv`, failuresTable(data))
  await call.reply.whole({ object: 'list', data, has_more, log_since: await startOf(log) })
}

/** Columns of the CSV. Times are ISO 8601 in UTC. */
function failuresTable(data: readonly RequestFailures[]): CsvCell[][] {
  const timeOf = (seconds: number) => new Date(seconds * 1_000).toISOString()
  const amounts = data.map((row) => [
    ...[row.status >= 500 ? 'server error' : 'refused', row.status, row.error_code, row.model],
    ...[row.project, row.project_name, row.key_id, row.key_name, row.count],
    ...[timeOf(row.first_ended_at), timeOf(row.last_ended_at), row.newest_id, row.message],
  ])
  const names = ['kind', 'status', 'error_code', 'model', 'project', 'project_name', 'key', 'key_name', 'count']
  return [[...names, 'first_ended_at', 'last_ended_at', 'newest_id', 'message'], ...amounts]
}

function addOutcome(counts: Map<string, RequestOutcome>, one: RequestOutcome): void {
  const key = JSON.stringify([one.project, one.keyId, one.model, one.status, one.errorCode])
  const before = counts.get(key)
  if (!before) return void counts.set(key, one)
  const isSameMessage = before.message === one.message
  const messageCalls = one.messageCalls + (isSameMessage ? before.messageCalls : 0)
  counts.set(key, {
    ...(messageCalls > before.messageCalls ? { ...one, messageCalls } : before),
    // The pages are read from the newest requests to the oldest. `before` comes from a page that was read earlier, so it has the newest id.
    ...(isSameMessage && { newestId: before.newestId }),
    firstEndedAtMs: Math.min(one.firstEndedAtMs, before.firstEndedAtMs),
    lastEndedAtMs: Math.max(one.lastEndedAtMs, before.lastEndedAtMs),
    calls: one.calls + before.calls,
    notSent: one.notSent + before.notSent,
  })
}

/** GET /v1/admin/requests/{id}: returns one entry of the request log. The id may be that of the request, of its durable job, or of its answer. */
export async function getRequest(context: IngressContext, call: Call): Promise<void> {
  const id = String(call.params.id)
  const project = projectFor(context, call, undefined)
  if (!ID.test(id)) throw notFound(id, project && (namesOf(context, 'project')(project) ?? project))
  const log = requireLog(context)
  const [row] = await findRows(log, id, project)
  if (!row) throw notFound(id, project && (namesOf(context, 'project')(project) ?? project))
  const bodies = await log.findBodies(row.id)
  const isOperator = hasScope(call.key, 'admin')
  const retries = await retriesOf(log, row, context.config.requestTimeoutMs)
  await call.reply.whole({
    ...shownBy(context, call)(row),
    failed_attempts: await attemptsOf(context, row, isOperator),
    retry_of: (await requestBefore(log, row))?.id ?? null,
    retried_by: retries?.map(({ id, status }) => ({ id, status })) ?? null,
    next_step: isFailedStatus(row.status) ? nextStepOf(row, isOperator) : null,
    ...(bodies && { request_body: bodies.request, answer_body: bodies.answer }),
  })
}

/** Maximum events of a durable job that are read for its failed attempts. */
const EVENTS_MAX = 1_000
async function attemptsOf({ store }: IngressContext, row: RequestRow, isOperator: boolean): Promise<FailedAttempt[]> {
  if (row.jobId !== null && row.attempts > 0) {
    const events = (await store?.listEvents(row.project, row.jobId, 0, EVENTS_MAX)) ?? []
    return attemptsOfJob(row, events, isOperator)
  }
  const attempts = JSON.parse(row.failedAttempts ?? '[]') as FailedAttempt[]
  return isOperator ? attempts : attempts.map(({ upstream_message: _, ...attempt }) => attempt)
}

const NEVER_RECORDED =
  'Reads such as GET /v1/models are never in the log. Of the calls without a valid key, at most 60 per minute are in the log, and only keys with the admin scope can read them.'

/**
 * The message starts with the most likely cause. A key with the scope `admin` reads every project, so for such a key the request can only
 * belong to another service.
 */
function notFound(id: string, project: string | undefined): ServiceError {
  const cause =
    project === undefined
      ? 'The request may belong to another service.'
      : `The request may belong to another project or another service, because this key can read only the project '${project}'.`
  const kept = 'A request is in the log from about a second after its end, for the time in REQUEST_LOG_MS.'
  const message = `No request with the id '${beginningOf(id, 64)}' is in the log. ${cause} ${kept} ${NEVER_RECORDED}`
  return new ServiceError('not_found', message)
}

function requireLog({ store, config }: IngressContext): RequestLog {
  if (!store)
    throw new ServiceError('jobs_unavailable', 'The request log is not available: the deployment has no database.')
  if (config.isRequestLogOn) return store.requests
  throw new ServiceError('not_found', 'The request log is off, because REQUEST_LOG_MS or REQUEST_LOG_ROWS_MAX is 0.')
}

async function search(log: RequestLog, query: RequestQuery) {
  const startedAt = performance.now()
  let page = await log.list(query)
  while (page.rows.length === 0 && page.next && performance.now() - startedAt < SEARCH_MS) {
    // An embedded store (SQLite) answers synchronously. Without this yield, a long search would block the event loop.
    await nextTurn()
    page = await log.list({ ...query, after: page.next })
  }
  return page
}

async function findRows(log: RequestLog, id: string, project: string | undefined): Promise<readonly RequestRow[]> {
  const found = await log.find(requestIdOf(id), project)
  if (found) return [found]
  return (await log.list({ jobId: jobIdOf(id), project, limit: 1 })).rows
}

/**
 * Returns the request id for the id of an answer or of a job that is not stored, which differs only in its prefix. Any other
 * id is returned unchanged.
 */
function requestIdOf(id: string): string {
  return id.replace(/^(chatcmpl-|cmpl-|resp_|msg_|job_)(?=[0-9A-Za-z]{24}$)/, 'req_')
}

function jobIdOf(id: string): string {
  return id.replace(/^(msg_?batch_|batch_|resp_|msg_|chatcmpl-)(?=\w{32}$)/, 'job_')
}

/** Filters for single requests. With one of these filters, the list contains each request of a batch, as {@link hasLines} describes. */
const LINE_FILTERS = [
  ...(['model', 'endpoint', 'server', 'error_code', 'min_duration_ms'] as const),
  ...(['job_id', 'batch_id', 'trace_id'] as const),
]

/**
 * Whether a list has the lines of batches instead of the batches. If not, then each batch has one row with the sums of its lines, so that a large
 * batch does not hide all other requests.
 */
function hasLines(asked: ListRequests): boolean {
  if (asked.batch_lines !== undefined) return asked.batch_lines === 'true'
  const { status } = asked
  const isOfFailures = status === 'failed' || (status !== undefined && statusesOf(status)[0] >= 400)
  return isOfFailures || LINE_FILTERS.some((name) => asked[name] !== undefined)
}

function queryOf({ models, keys }: IngressContext, asked: ListRequests, own: string | undefined): RequestQuery {
  const { key, model, endpoint, server, status, error_code, job_id, batch_id, trace_id, since, until, after, limit } =
    asked
  const known = key === undefined ? undefined : keys.known.keys.find(({ id }) => id === key)
  return {
    // The log has an index by project but none by key. Adding the project of the key to the query lets the store use
    // the index.
    project: own ?? (known && projectIdOf(known)),
    keyId: key,
    model: model === undefined ? undefined : (models.find(model)?.id ?? model),
    ...{ endpoint, server, errorCode: error_code, limit },
    statuses: status === undefined || status === 'failed' ? undefined : statusesOf(status),
    isFailed: status === 'failed',
    jobId: job_id === undefined ? undefined : jobIdOf(job_id),
    batchId: batch_id === undefined ? undefined : jobIdOf(batch_id),
    isWithoutLines: !hasLines(asked),
    // A job id selects one job, which may be a batch.
    isWithoutBatches: hasLines(asked) && job_id === undefined,
    traceId: trace_id,
    sinceMs: since === undefined ? undefined : Math.round(since * 1_000),
    untilMs: until === undefined ? undefined : Math.round(until * 1_000),
    durationMsMin: asked.min_duration_ms,
    after: after === undefined ? undefined : cursorOf(after),
  }
}

function statusesOf(status: string): [number, number] {
  const first = Number(status.replace('xx', '00'))
  return [first, status.endsWith('xx') ? first + 99 : first]
}

function cursorOf(text: string): RequestCursor {
  const [endedAtMs = 0, n = 0] = text.split('_').map(Number)
  return { endedAtMs, n }
}

function shownBy(context: IngressContext, call: Call): (row: RequestRow) => RequestAnswer {
  const [projectName, keyName] = [namesOf(context, 'project'), namesOf(context, 'key')]
  const isOperator = hasScope(call.key, 'admin')
  return (row) => ({
    ...{ object: 'request', id: row.id, started_at: row.startedAtMs / 1_000, ended_at: row.endedAtMs / 1_000 },
    ...{ project: row.project || null, project_name: projectName(row.project) },
    ...{ key_id: row.keyId || null, key_name: keyName(row.keyId) },
    ...{ endpoint: row.endpoint, kind: row.kind, model: row.model, worker: row.worker, server: row.server },
    ...(isOperator && { ...serverUrlOf(context, row), upstream_message: row.upstreamMessage }),
    ...{ status: row.status, error_code: row.errorCode, error_message: row.errorMessage, error_param: row.errorParam },
    ...{ queue_ms: row.queueMs, first_output_ms: row.firstOutputMs, duration_ms: row.durationMs },
    ...{ input_tokens: row.inputTokens, cached_input_tokens: row.cachedInputTokens, output_tokens: row.outputTokens },
    ...{ cost_usd: row.costNanos / NANOS_PER_USD, attempts: row.attempts, job_id: row.jobId },
    batch_id: batchIdOf(row),
    request_counts: row.batchCalls === null ? null : { total: row.batchCalls, failed: row.batchFailed ?? 0 },
    ...{ trace_id: row.traceId, user_agent: row.userAgent, sdk_retry: row.sdkRetry },
    ...{ unknown_parameters: row.unknownParameters, format_ignored: row.formatIgnored as FormatName | null },
  })
}

/** Returns the batch id of a row that is a batch, or a request of a batch. The prefix of the id depends on the API of the batch. */
function batchIdOf({ batchId, batchCalls, jobId, endpoint }: RequestRow): string | null {
  const id = batchId ?? (batchCalls === null ? null : jobId)
  return id?.replace('job_', endpoint.startsWith('/v1/messages') ? 'msgbatch_' : 'batch_') ?? null
}

/** Address of the upstream server of a request, without credentials and query. Absent if the model has no such server. */
function serverUrlOf({ models }: IngressContext, { model, server, worker }: RequestRow): { server_url?: string } {
  const [, fallback, index] = /^(?:(.*)\/)?(\d+)$/.exec(server ?? '') ?? []
  const engine = models.find(fallback ?? model ?? '')?.engine
  if (engine?.type !== 'openai' && engine?.type !== 'anthropic') return {}
  const servers = addressesOf(engine)
  // If every server was unavailable, then no server is recorded. The server of a model with one server is known anyway.
  const found = index !== undefined ? servers[Number(index)] : worker && servers.length === 1 ? servers[0] : undefined
  if (!found) return {}
  const { origin, pathname } = new URL(found.url)
  return { server_url: origin + pathname }
}

const SHOWN_MAX = 200
/**
 * Maximum calls that are listed between two event-loop yields. The number is low, because finding the queue position of
 * a call requires a scan of the queue of its model.
 */
const TURN_CALLS = 20

/**
 * GET /v1/admin/requests/active: calls of the caller's project that wait or run on an open connection, the oldest first. Keys with
 * the scope `admin` receive the calls of all projects.
 *
 * The list contains only the calls of this ingress, which holds their connections. Durable jobs are listed by `GET /v1/jobs`, and
 * ended calls by the request log.
 */
export async function listActiveRequests(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListActiveRequests, call.query)
  const asked = parseBody(ListActiveRequests, { ...call.query }, 'openai')
  const project = projectFor(context, call, asked.project)
  const model = asked.model === undefined ? undefined : (context.models.find(asked.model)?.id ?? asked.model)
  const found = [...context.jobs.all()].filter((job) => {
    const { tenant, model: own } = job.envelope
    const isAsked = asked.status === undefined || asked.status === statusOf(job)
    return (project ?? tenant) === tenant && (model ?? own) === own && isAsked
  })
  const oldest = found.toSorted((a, b) => a.envelope.created_at_ms - b.envelope.created_at_ms).slice(0, SHOWN_MAX)
  const show = activeShownBy(context)
  const data: ActiveRequest[] = []
  for (const job of oldest) {
    if (data.length % TURN_CALLS === TURN_CALLS - 1) await nextTurn()
    data.push(show(job))
  }
  const counts = { total: found.length, ingress: context.jobs.boot, has_more: found.length > data.length }
  await call.reply.whole({ object: 'list', data, ...counts })
}

/**
 * POST /v1/admin/requests/{id}/cancel: ends a running or waiting call of the key's project. A key with the scope `admin` may end the calls of every
 * project. The caller receives `job_cancelled`.
 *
 * @throws ServiceError `not_found` if no such call runs or waits at this ingress
 */
export async function cancelActiveRequest(context: IngressContext, call: Call): Promise<void> {
  const id = String(call.params.id)
  const isOperator = hasScope(call.key, 'admin')
  const job = [...context.jobs.all()].find(({ envelope }) => (envelope.request_id ?? envelope.id) === id)
  if (!job || !(isOperator || job.envelope.tenant === projectIdOf(call.key))) {
    const message = `No call with the id '${beginningOf(id, 64)}' runs or waits at this ingress. GET /v1/admin/requests/active lists the calls of this ingress.`
    throw new ServiceError('not_found', message)
  }
  const shown = activeShownBy(context)(job)
  if (isOperator) audit(context, call, 'cancel_request', { request: id, project: job.envelope.tenant })
  context.jobs.cancel(job, {
    code: 'job_cancelled',
    message: 'An operator or the project cancelled this call.',
    param: null,
  })
  await call.reply.whole(shown)
}

function statusOf({ state }: AttachedJob): ActiveRequest['status'] {
  return state === 'running' ? 'running' : 'waiting'
}

function activeShownBy(context: IngressContext): (job: AttachedJob) => ActiveRequest {
  const [projectName, keyName] = [namesOf(context, 'project'), namesOf(context, 'key')]
  const now = Date.now()
  return (job) => {
    const { envelope, attempt } = job
    const { request_id, created_at_ms, tenant, pool, model } = envelope
    const caller = callOfJob(job)
    const keyId = caller?.key.id ?? ''
    // A call has a queue position until its first output, even after a worker has received it. The call may still wait in the worker, if
    // the concurrency limit of its model is reached.
    const place = job.firstOutputAtMs === undefined ? context.jobs.placeOf(job) : undefined
    return {
      ...{
        object: 'request.active',
        id: request_id ?? job.id,
        started_at: created_at_ms / 1_000,
        age_ms: now - created_at_ms,
      },
      ...{ project: tenant, project_name: projectName(tenant), key_id: keyId, key_name: keyName(keyId) },
      ...{ endpoint: caller?.path ?? '', pool, model, status: statusOf(job), attempt, worker: job.worker ?? null },
      ...{ position: place?.position ?? null, wait_ms: place?.waitMs === undefined ? null : Math.round(place.waitMs) },
      reason: job.state === 'queued' || place ? reasonOf(context, job) : null,
    }
  }
}

function reasonOf({ jobs }: IngressContext, job: AttachedJob): string {
  const { pool, model } = job.envelope
  const workers = jobs.presence.workers(pool)
  if (workers.length === 0) return `The pool ${pool} has no worker.`
  const known = workers.filter(({ capacity }) => capacity?.models?.has(model) ?? true)
  if (known.length === 0) return `No worker of the pool ${pool} has the model.`
  if (jobs.presence.preparing(pool, model)) return `The model is ${jobs.waitOf(job) ?? 'being prepared'}.`
  if (job.tries + job.crashes > 0) return `The last attempt failed; attempt ${job.attempt} starts soon.`
  const slots = jobs.presence.slots(pool)
  if (jobs.presence.freeSlots(pool) === 0) return `The pool ${pool} has no free slot (${slots} of ${slots} are in use).`
  return 'The model has no free slot.'
}
