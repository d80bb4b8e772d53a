import { setImmediate as nextTurn } from 'node:timers/promises'
import { ListFindings } from '#schemas/admin/admin.ts'
import { PoolName } from '#schemas/job.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { isUsable } from '#services/ingress/calls/endpoint.ts'
import { budgetsFor, namesOf, projectFor } from '#services/ingress/endpoints/usage.ts'
import { budgetsIn } from '#shared/capacity/budgets.ts'
import {
  type CallFacts,
  FAILING_WINDOW_MS,
  type FailingModel,
  failureRateOf,
  hasRecovered,
  isFailing,
  RECENT_MINUTES,
  startOfFailures,
  withoutTimeouts,
} from '#shared/doctor/calls.ts'
import { type FailureTrend, type Finding, runCheck } from '#shared/doctor/check.ts'
import { checksOfMachine } from '#shared/doctor/doctor.ts'
import { type FleetFacts, fleetFindings, type PoolFacts, projectFindings } from '#shared/doctor/fleet.ts'
import { listDeadLetters } from '#shared/jobs/dead-letters.ts'
import { jobsTopic } from '#shared/jobs/records.ts'
import { hasScope } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { RequestLog, RequestRow } from '#shared/store/requests.ts'
import { verdictOf } from '#shared/usage/comparison.ts'
import { depthOf, inTime, modelLoads } from './fleet.ts'

/**
 * Cache lifetime in ms of findings about the machine and of counts of dead letters. Computing them reads a disk, a
 * database or a broker.
 */
const CACHE_TTL_MS = 30_000
/** Maximum number of dead letters that are counted. If there are more, then the count is a lower bound. */
const DEAD_COUNTED_MAX = 100
/** Cache lifetime in ms of the failed and refused calls, which are read from the request log. One read takes some milliseconds. */
const CALLS_TTL_MS = 2_000
/** Maximum time in ms for which an expired value is returned while a new one is read. */
const STALE_MAX_MS = 30_000
const PROJECTS_MAX = 1_000
/** Maximum models that are checked for failures. Models with the most failures are checked first. */
const FAILING_MAX = 10
const ROWS_MAX = 100
const HOUR_MS = 3_600_000
/** An ended call is in the request log after at most this time in ms. */
const LOG_DELAY_MS = 60_000
/**
 * Maximum number of hours that are searched for the start of a model's failures. The search goes back from the window in which the model
 * fails.
 */
const START_HOURS_MAX = 24
/** Maximum pages of {@link ROWS_MAX} calls that are read in the hour in which the failures began. */
const START_PAGES_MAX = 10
/** The start of a model's failures is cached for this time in ms after the last check in which the model was failing. */
const START_TTL_MS = 3_600_000

interface Cached<T> {
  readonly atMs: number
  readonly value: Promise<T>
  /** The read in progress, whose result will replace the value. */
  next?: Promise<T> | undefined
}

const machineResults = new WeakMap<object, Cached<readonly Finding[]>>()
const deadLetterCounts = new WeakMap<object, Cached<FleetFacts['deadLetters']>>()

interface Start {
  readonly sinceMs: number
  readonly isSinceCut: boolean
}

type Hour = FailureTrend['hours'][number] & { readonly lastAtMs: number; readonly isCut: boolean }

/** Start of the failures of a model, and the counts of its past hours, which do not change. */
interface Incident extends Start {
  readonly hours: Map<number, Hour>
  readonly seenAtMs: number
}

/** Incidents by project and model, so that the search of the start and the reads of past hours run once per incident. */
const incidents = new WeakMap<object, Map<string, Incident>>()

const callFacts = new WeakMap<object, Map<string, Cached<CallFacts>>>()

/**
 * GET /v1/admin/findings: current problems with their remedies, as in `sluice doctor`. A key without the scope `admin` receives only the
 * problems of its own project: failing models, failed and refused calls, and budgets.
 *
 * @throws ServiceError `permission_denied` for findings of the machine without the scope `admin`
 */
export async function listFindings(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListFindings, call.query)
  const { of } = parseBody(ListFindings, { ...call.query }, 'openai')
  const isOperator = hasScope(call.key, 'admin')
  if (!isOperator && of !== undefined)
    throw new ServiceError('permission_denied', "The parameter 'of' requires a key with the scope 'admin'.", {
      param: 'of',
    })
  const hasMachine = isOperator && of !== 'fleet'
  const machine = hasMachine ? await cachedOr(machineResults, context.config, () => machineFindings(context)) : []
  const fleet = of === 'machine' ? [] : await findingsFor(context, call, isOperator)
  await call.reply.whole({ object: 'list', data: [...fleet, ...machine].map(findingObject), has_more: false })
}

async function findingsFor(context: IngressContext, call: Call, isOperator: boolean): Promise<readonly Finding[]> {
  const project = projectFor(context, call, undefined)
  const byProject = callFacts.get(context.config) ?? new Map<string, Cached<CallFacts>>()
  callFacts.set(context.config, byProject)
  if (byProject.size > PROJECTS_MAX) byProject.clear()
  // Operators share one cache entry. Every other key has its own entry, because the keys of a project may have
  // different budgets.
  const cacheKey = isOperator ? '' : call.key.id
  const calls = await cachedOr(byProject, cacheKey, () => callsOf(context, call, project), CALLS_TTL_MS)
  return isOperator ? fleetFindings(await factsOf(context, calls)) : projectFindings(calls)
}

function findingObject({ remediation, details = [], model, sinceMs, windowFromMs, trend, ...finding }: Finding) {
  const { check, status, message, title = null, summary = null, cause = null, errorCodes = [] } = finding
  const { errors = [], projects = [], notSent = 0 } = finding
  const about = { model: model ?? null, error_codes: errorCodes, title, summary, cause }
  const times = { since: secondsOf(sinceMs), window_start: secondsOf(windowFromMs) }
  return {
    check,
    status,
    message,
    remediation: remediation ?? null,
    details,
    ...about,
    ...times,
    not_sent: notSent,
    ...trendObject(trend),
    errors,
    projects,
  }
}

function trendObject(trend: FailureTrend | undefined) {
  if (!trend) return { trend: null }
  const { isLowerBound: is_lower_bound, lastFailureAtMs, previousHour: previous_hour, hours, failed, calls } = trend
  const shown = hours.map(({ atMs, ...counts }) => ({ at: atMs / 1_000, ...counts }))
  const last_failure_at = Math.floor(lastFailureAtMs / 1_000)
  const verdict = { verdict: verdictOf(trend), last_hour: trend.lastHour, previous_hour }
  return { trend: { failed, calls, is_lower_bound, last_failure_at, ...verdict, hours: shown } }
}

function secondsOf(ms: number | undefined): number | null {
  return ms === undefined ? null : Math.floor(ms / 1_000)
}

async function callsOf(context: IngressContext, call: Call, project: string | undefined): Promise<CallFacts> {
  const { store, config } = context
  const log = config.isRequestLogOn ? store?.requests : undefined
  const [recent, failing, budgets] = await Promise.all([
    log?.outcomes({ sinceMs: Date.now() - RECENT_MINUTES * 60_000, project, isWithoutBatches: true }).then(
      ({ outcomes }) => outcomes,
      () => [],
    ),
    log && failingModels(context, log, project).catch(() => []),
    context.models.hasPrices ? budgetsFor(context, call, project).catch(() => []) : [],
  ])
  // A key without the scope `admin` receives only the open circuit breakers of models that it may use. Calls of any project may have opened
  // them.
  const openCircuits = [...context.jobs.presence.openCircuits].flatMap(([id, workers]) => {
    const model = context.models.find(id)
    return project === undefined || (model && isUsable(model, call.key)) ? [{ model: id, workers }] : []
  })
  return { recent: recent ?? [], failing: failing ?? [], openCircuits, budgets, nameOf: namesOf(context, 'project') }
}

/** Returns the failing models of the catalogue. At most {@link FAILING_MAX} models are read. */
async function failingModels(
  { models, config }: IngressContext,
  log: RequestLog,
  project: string | undefined,
): Promise<FailingModel[]> {
  const nowMs = Date.now()
  const fromMs = nowMs - FAILING_WINDOW_MS
  const { outcomes } = await log.outcomes({ project, sinceMs: fromMs, statuses: [500, 599], isWithoutBatches: true })
  const names = new Set(outcomes.flatMap(({ model }) => (model === null || !models.find(model) ? [] : [model])))
  const known = incidents.get(config) ?? new Map<string, Incident>()
  incidents.set(config, known)
  for (const [key, { seenAtMs }] of known) if (nowMs - seenAtMs > START_TTL_MS) known.delete(key)
  const failing: FailingModel[] = []
  for (const model of [...names].slice(0, FAILING_MAX)) {
    // An embedded store (SQLite) answers synchronously. Without this yield, ten reads in a row would block the event loop.
    await nextTurn()
    // Only operators receive the messages of upstreams, because such a message may quote a request of another project.
    const calls: ModelCalls = {
      log,
      query: { project, model, isWithoutBatches: true },
      isOperator: project === undefined,
    }
    const key = JSON.stringify([project, model])
    const { next, rate } = await rateIn(calls, fromMs)
    const isEnded = !isFailing(rate) || hasRecovered((await log.list({ ...calls.query, limit: ROWS_MAX })).rows)
    if (isEnded) {
      known.delete(key)
      continue
    }
    const found = known.get(key) ?? { ...(await startOf(calls, rate.firstAtMs, fromMs)), hours: new Map() }
    const incident = { ...found, seenAtMs: nowMs }
    known.set(key, incident)
    const { sinceMs, isSinceCut } = incident
    const lastHour = { failed: rate.failed, calls: rate.calls }
    const trend = { ...(await trendOf(calls, incident, fromMs)), lastHour }
    const window = { windowFromMs: next?.endedAtMs ?? fromMs, isCut: next !== null }
    failing.push({ model, ...rate, ...window, sinceMs, isSinceCut, trend })
  }
  return failing
}

interface ModelCalls {
  readonly log: RequestLog
  readonly query: { readonly project: string | undefined; readonly model: string; readonly isWithoutBatches: true }
  readonly isOperator: boolean
}

async function rateIn({ log, query, isOperator }: ModelCalls, sinceMs: number, untilMs?: number) {
  const { outcomes, next } = await log.outcomes({ ...query, sinceMs, untilMs }, isOperator)
  return { rate: failureRateOf(withoutTimeouts(outcomes)), next }
}

/**
 * Searches the start of the failures of a model, which may precede the window. Earlier hours are read as long as more than half of their calls failed.
 * Hours without calls are skipped. In the first hour in which most calls succeeded, the calls are read one by one.
 */
async function startOf(calls: ModelCalls, firstAtMs: number, fromMs: number): Promise<Start> {
  let sinceMs = firstAtMs
  for (let nth = 1; nth <= START_HOURS_MAX; nth++) {
    const untilMs = fromMs - (nth - 1) * FAILING_WINDOW_MS
    await nextTurn()
    const { rate } = await rateIn(calls, untilMs - FAILING_WINDOW_MS, untilMs)
    if (isFailing(rate, 1)) sinceMs = rate.firstAtMs
    else if (rate.calls > 0) return { sinceMs: (await startBefore(calls, untilMs)) ?? sinceMs, isSinceCut: false }
  }
  return { sinceMs, isSinceCut: sinceMs < fromMs - (START_HOURS_MAX - 1) * FAILING_WINDOW_MS }
}

/** Returns the start of the failures that are still in progress at `untilMs`. Undefined if the calls before that time succeeded. */
async function startBefore({ log, query }: ModelCalls, untilMs: number): Promise<number | undefined> {
  const rows: RequestRow[] = []
  // Older calls do not count. Otherwise, single failures of the days before would belong to this incident.
  const hour = { ...query, sinceMs: untilMs - FAILING_WINDOW_MS, untilMs, limit: ROWS_MAX }
  let page = await log.list(hour)
  for (let nth = 1; ; nth++) {
    rows.push(...page.rows)
    if (!page.next || nth === START_PAGES_MAX) return startOfFailures(rows)
    await nextTurn()
    page = await log.list({ ...hour, after: page.next })
  }
}

/** Counts the calls since the start of an incident by clock hour. A past hour is read once, when all its calls are in the log. */
async function trendOf(
  calls: ModelCalls,
  { sinceMs, hours, seenAtMs }: Incident,
  fromMs: number,
): Promise<Omit<FailureTrend, 'lastHour'>> {
  const hourAt = (ms: number) => Math.floor(ms / HOUR_MS) * HOUR_MS
  const read: Hour[] = []
  const startMs = hourAt(sinceMs)
  const firstMs = Math.max(startMs, hourAt(seenAtMs) - (START_HOURS_MAX - 1) * HOUR_MS)
  hours.delete(firstMs - HOUR_MS)
  for (let atMs = firstMs; atMs <= seenAtMs; atMs += HOUR_MS) {
    const hour = hours.get(atMs) ?? (await hourOf(calls, atMs, sinceMs))
    if (atMs + HOUR_MS + LOG_DELAY_MS < seenAtMs) hours.set(atMs, hour)
    read.push(hour)
  }
  await nextTurn()
  const { rate } = await rateIn(calls, fromMs - FAILING_WINDOW_MS, fromMs)
  const sum = (of: (hour: Hour) => number) => read.reduce((total, hour) => total + of(hour), 0)
  return {
    ...{ failed: sum(({ failed }) => failed), calls: sum((hour) => hour.calls) },
    isLowerBound: startMs < firstMs || read.some(({ isCut }) => isCut),
    lastFailureAtMs: Math.max(...read.map(({ lastAtMs }) => lastAtMs)),
    previousHour: sinceMs < fromMs ? { failed: rate.failed, calls: rate.calls } : null,
    hours: read.map(({ atMs, failed, calls: all }) => ({ atMs, failed, calls: all })),
  }
}

/** Counts the calls of a clock hour that ended since the start of an incident. */
async function hourOf(calls: ModelCalls, atMs: number, sinceMs: number): Promise<Hour> {
  await nextTurn()
  const { rate, next } = await rateIn(calls, Math.max(atMs, sinceMs), atMs + HOUR_MS)
  return { atMs, failed: rate.failed, calls: rate.calls, lastAtMs: rate.lastAtMs, isCut: next !== null }
}

async function machineFindings({ config }: IngressContext): Promise<readonly Finding[]> {
  const checks = await checksOfMachine()
  return (await Promise.all(checks.map((check) => runCheck(check, config)))).flat()
}

async function factsOf(context: IngressContext, calls: CallFacts): Promise<FleetFacts> {
  const { broker, store, pauses } = context
  const depth = await inTime(depthOf(context))
  return {
    broker,
    store,
    pools: await Promise.all(PoolName.options.map((pool) => poolFacts(context, pool, depth))),
    durable: depth && {
      count: depth.reduce((sum, { state, count }) => sum + (state === 'scheduled' ? 0 : count), 0),
      max: context.config.durableJobsMax,
    },
    paused: pauses.all,
    calls,
    uselessBudgets: context.models.hasPrices ? 0 : budgetsIn(context.keys.known, Date.now()).length,
    deadLetters: await cachedOr(deadLetterCounts, broker, () => countDead(context)),
  }
}

async function poolFacts(
  { broker, jobs, models }: IngressContext,
  pool: PoolName,
  depth: Awaited<ReturnType<typeof depthOf>>,
): Promise<PoolFacts> {
  const queued = depth?.filter((row) => row.pool === pool && row.state === 'queued') ?? []
  const oldestCallMs = jobs.oldestQueuedAtMs(pool) ?? Number.POSITIVE_INFINITY
  // Only work of normal priority counts for the longest wait. Work of low priority, such as the requests of a batch, is
  // expected to wait for long, which is not a problem.
  const urgent = queued.filter(({ priority }) => priority !== 'low')
  const oldestMs = Math.min(oldestCallMs, ...urgent.map(({ oldest_at_ms }) => oldest_at_ms))
  const inStore = queued.reduce((sum, { count }) => sum + count, 0)
  // Both counts can include the same durable jobs: the store contains all of them, and the queue those that were published. The larger count is
  // used, because the sum would count such jobs twice.
  const lag = (await inTime(broker.lag(jobsTopic(pool)))) ?? 0
  return {
    id: pool,
    workers: jobs.presence.workers(pool).length,
    slots: jobs.presence.slots(pool),
    free: jobs.presence.freeSlots(pool),
    waiting: Math.max(lag, inStore + jobs.count(pool, 'queued')),
    oldestSeconds: Number.isFinite(oldestMs) ? (Date.now() - oldestMs) / 1_000 : undefined,
    fullModels: modelLoads({ models, jobs }, pool).flatMap(({ id: model, limit: slots, full }) =>
      full ? [{ model, slots }] : [],
    ),
    isNeeded: models.models.some((model) => model.pool === pool),
  }
}

async function countDead({ broker }: IngressContext): Promise<FleetFacts['deadLetters']> {
  const found = await listDeadLetters(broker, { max: DEAD_COUNTED_MAX }).catch(() => undefined)
  return found && { count: found.letters.length, hasMore: found.next !== undefined }
}

/**
 * Returns the cached value if it is younger than `ttlMs`. Otherwise a new read starts. An expired value is returned until that read ends, but at
 * most for {@link STALE_MAX_MS}. After this time, calls wait for the read.
 */
export async function cachedOr<Key, T>(
  kept: { get(key: Key): Cached<T> | undefined; set(key: Key, value: Cached<T>): unknown },
  key: Key,
  read: () => Promise<T>,
  ttlMs = CACHE_TTL_MS,
): Promise<T> {
  const known = kept.get(key)
  if (!known) {
    const first: Cached<T> = { atMs: Date.now(), value: read() }
    kept.set(key, first)
    // A failed read is not cached: the next call reads again.
    first.value.catch(() => Object.assign(first, { atMs: Number.NEGATIVE_INFINITY }))
    return await first.value
  }
  const ageMs = Date.now() - known.atMs
  if (ageMs < ttlMs) return await known.value
  known.next ??= read()
    .then((value) => {
      kept.set(key, { atMs: Date.now(), value: Promise.resolve(value) })
      return value
    })
    .finally(() => {
      known.next = undefined
    })
  // A caller that receives the expired value does not await the read. Without this handler, a failed read would be an
  // unhandled rejection and end the process.
  known.next.catch(() => {})
  return await (ageMs < ttlMs + STALE_MAX_MS ? known.value : known.next)
}
