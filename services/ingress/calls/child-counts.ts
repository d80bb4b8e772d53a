/*
 * Progress of batches and of other jobs with child jobs: one count for every view, derived from the requests that have ended.
 *
 * The problem: a batch records progress only after a group of five parts, because one write per request would be
 * expensive. A batch of 500 requests is one group, so its recorded progress stays at 0 until its end. Every view (jobs,
 * lists, batches) therefore adds the ended requests of the unfinished parts when it is read, in one statement.
 *
 * The rate is the number of ended requests, divided by the time since the first of them started. Running requests do not
 * count, because many of them only wait at the model server. Rate times elapsed time is therefore the shown count.
 *
 *     8 slots, 2 s per request: 120 requests have ended 30 s after the first start, so the rate is 4 per second.
 *
 * The rate covers the last {@link RATE_WINDOW_MS}, or one of two other windows:
 * 1. The last {@link SHORT_WINDOW_MS}, if {@link SHORT_WINDOW_BASIS} requests were answered in them. After an outage, the
 *    rate is right again as soon as the outage is older than this window.
 * 2. The whole time since the first start, if fewer than {@link RATE_BASIS} requests were answered in the last
 *    {@link RATE_WINDOW_MS}. An outage therefore lowers the rate, but the rate does not become unknown.
 *
 * In all of these windows, the time before the first start, in which for example the model is loaded, is not counted.
 * Requests that failed very fast, such as invalid requests, are not counted either.
 *
 * The first wave is the first request of each slot. During the first wave the rate is unknown, because only the fastest
 * requests have ended. The first wave ends when as many requests were answered as are running. If the number of running
 * requests grows, then {@link WAVE_ANSWERS} answers end the wave after twice the mean run time. The rate also needs
 * {@link RATE_BASIS} ended requests, or {@link RATE_BASIS_MS} since the first start.
 *
 * The estimated end is the current time plus the remaining requests divided by the rate.
 *
 * During the first wave, {@link roughRatesOf} gives a range of rates after {@link ROUGH_BASIS} ended requests:
 * 1. Lower bound: the ended requests per elapsed time, divided by 1 + 2 / √n for n ended requests. Here 2 / √n is twice the relative standard
 *    error of n. The number of ended requests per elapsed time is the maximum-likelihood estimate of the rate if run times are exponentially
 *    distributed. Running requests then count as censored observations.
 * 2. Upper bound: all running requests end now.
 *
 *     256 slots, 1 to 3 s per request: 26 requests have ended after 1.2 s. The bounds are 16 and 235 per second, and the true rate is 128.
 *
 * The range becomes narrow while the first wave ends. The bounds assume that the remaining requests are like those that have ended.
 */

import { setImmediate as nextTurn } from 'node:timers/promises'
import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { batch } from '#shared/kinds/batch.ts'
import { childJobId } from '#shared/store/jobs.ts'
import type { ChildrenOfState } from '#shared/store/store.ts'
import type { IngressContext } from './call.ts'
import { type ChildCounts, requireJobs } from './job-object.ts'

const RATE_WINDOW_MS = 300_000
const SHORT_WINDOW_MS = 30_000
const SHORT_WINDOW_BASIS = 100
const RATE_BASIS = 5
const RATE_BASIS_MS = 10_000
const WAVE_ANSWERS = 20
/** Minimum number of ended requests for a rough estimate. */
const ROUGH_BASIS = 3
const ROUGH_ELAPSED_MS_MIN = 250
/**
 * Failed requests count for the rate only if their mean run time is at least this fraction of the mean run time of completed requests. Faster
 * failures do not show the speed of the model.
 */
const FAILURE_PART_MIN = 0.25
/**
 * Number of the newest completed parts of a batch whose requests count for the rate. The requests of unfinished parts count
 * in addition.
 */
const RECORDED_PARTS = 5

/**
 * Maximum requests per part of a batch. Each part is a child job, and a job may have at most 500 child jobs. A batch of
 * 50,000 requests has 500 parts of 100 requests.
 */
export const PART_REQUESTS = 100
export const PARTS_IN_FLIGHT_MAX = 20

/** Value of `phase` in the progress of a batch part whose next line waits for a rate limit or a budget. */
export const LINES_WAIT = 'waiting'

/** Progress of the child jobs. Undefined if there are none, or if the batch was not validated yet. */
export async function childCountsOf(context: IngressContext, job: DurableJob): Promise<ChildCounts | undefined> {
  if (job.kind !== batch.name) return job.children === 0 ? undefined : await countChildren(context, job)
  const counts = reportedCountsOf(job) ?? (await plannedOf(context, job))
  return counts && runsRequests(job, counts) ? await countLive(context, job, counts) : counts
}

/**
 * Whether requests of the batch may still end. If not, then the recorded counts include all parts, and adding live
 * counts would count the last part twice.
 */
function runsRequests({ state }: Pick<DurableJob, 'state'>, { total, completed, failed }: ChildCounts): boolean {
  return !TERMINAL.has(state) && completed + failed < total
}

/**
 * Returns the child counts of a page of jobs, by job id. Embedded stores do not yield to the event loop, so this
 * function yields after each job.
 */
export async function childCountsOfPage(
  context: IngressContext,
  jobs: readonly DurableJob[],
): Promise<ReadonlyMap<string, ChildCounts>> {
  const all = new Map<string, ChildCounts>()
  for (const job of jobs) {
    if (job.children === 0 && job.kind !== batch.name) continue
    const counts = await childCountsOf(context, job)
    if (counts) all.set(job.id, counts)
    await nextTurn()
  }
  return all
}

function reportedCountsOf({ progress }: DurableJob): ChildCounts | undefined {
  const { progress: said } = (progress ?? {}) as { progress?: { counts?: ChildCounts } }
  return said?.counts && { total: said.counts.total, completed: said.counts.completed, failed: said.counts.failed }
}

/**
 * Counts of a batch without a progress event. The total is the number of requests that the first step, `validate`, has
 * recorded.
 */
async function plannedOf(context: IngressContext, job: DurableJob): Promise<ChildCounts | undefined> {
  if (TERMINAL.has(job.state)) return undefined
  const validated = (await requireJobs(context).stepsOf(job)).find(({ kind }) => kind === 'validate')
  return validated && { total: validated.cost.requests ?? 0, completed: 0, failed: 0 }
}

async function countChildren({ store }: IngressContext, { id, tenant, children }: DurableJob): Promise<ChildCounts> {
  return { total: children, ...endsOf((await store?.countChildren(tenant, [id], Date.now())) ?? []) }
}

/**
 * Returns the current counts of a running batch. The counts of the last progress event are increased by the ended requests of
 * unfinished parts (groups of {@link PART_REQUESTS} requests).
 *
 * @param reported Counts of the last progress event, which contain only whole parts
 */
async function countLive(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  reported: ChildCounts,
): Promise<ChildCounts> {
  const { total } = reported
  const nowMs = Date.now()
  const [first, underWay] = partsUnderWay(id, reported)
  const recorded = partIds(id, Math.max(0, first - RECORDED_PARTS), first)
  const read = async (sinceMs: number) =>
    (await store?.countChildren(tenant, [...recorded, ...underWay], sinceMs)) ?? []
  let all: ReturnType<typeof read> | undefined
  const rowsSince = (sinceMs: number) => {
    if (sinceMs > 0) return read(sinceMs)
    all ??= read(0)
    return all
  }
  const rows = await rowsSince(nowMs - RATE_WINDOW_MS)
  const live = endsOf(rows.filter(({ parent }) => !recorded.includes(parent)))
  const completed = reported.completed + live.completed
  const failed = reported.failed + live.failed
  const rate = await currentRate(rows, rowsSince, nowMs)
  const rough = rate === null ? roughRatesOf(await rowsSince(0), nowMs) : null
  const left = total - completed - failed
  const endAt = (perSecond: number) => Math.ceil(nowMs / 1_000 + left / perSecond)
  return {
    ...{ total, completed, failed },
    requests_per_second: rate === null ? null : Number(rate.toPrecision(3)),
    estimated_end_at: rate === null ? null : endAt(rate),
    estimated_end_range: rough && { earliest: endAt(rough.most), latest: endAt(rough.least) },
  }
}

function endsOf(rows: readonly ChildrenOfState[]): { readonly completed: number; readonly failed: number } {
  const ended = rows.filter(({ state }) => TERMINAL.has(state))
  const completed = sumOf(ended.filter(({ state }) => state === 'completed').map(({ count }) => count))
  return { completed, failed: sumOf(ended.map(({ count }) => count)) - completed }
}

type ChildTimes = Pick<ChildrenOfState, 'state' | 'count' | 'recent' | 'recentRunMs' | 'recentFromMs'>

/**
 * Returns the rate over one of the windows that the top of this file describes. The number of ended requests decides which window.
 *
 * @param rows Counts with the times of the last {@link RATE_WINDOW_MS}
 */
export async function currentRate<Row extends ChildTimes>(
  rows: readonly Row[],
  rowsSince: (sinceMs: number) => Promise<readonly Row[]>,
  nowMs: number,
): Promise<number | null> {
  const ended = recentAnswers(rows)
  if (ended < RATE_BASIS) return rateOf(await rowsSince(0), 0, nowMs)
  if (ended >= SHORT_WINDOW_BASIS) {
    const sinceMs = nowMs - SHORT_WINDOW_MS
    const short = await rowsSince(sinceMs)
    if (recentAnswers(short) >= SHORT_WINDOW_BASIS) return rateOf(short, sinceMs, nowMs)
  }
  return rateOf(rows, nowMs - RATE_WINDOW_MS, nowMs)
}

function recentAnswers(rows: readonly ChildTimes[]): number {
  return sumOf(rows.filter(({ state }) => state === 'completed').map(({ recent }) => recent))
}

/**
 * Returns bounds of the rate during the first wave, as the top of this file describes. Null without enough answers.
 *
 * @param rows Counts with the times of all ended requests
 */
export function roughRatesOf(
  rows: readonly ChildTimes[],
  nowMs: number,
): { readonly least: number; readonly most: number } | null {
  const recent = countedRows(rows)
  const count = sumOf(recent.map((row) => row.recent))
  if (count < ROUGH_BASIS) return null
  const firstMs = Math.min(...recent.map(({ recentFromMs }) => recentFromMs))
  const seconds = Math.max(ROUGH_ELAPSED_MS_MIN, nowMs - firstMs) / 1_000
  return { least: count / seconds / (1 + 2 / Math.sqrt(count)), most: (count + runningOf(rows)) / seconds }
}

/**
 * Keeps the rows of completed requests. Rows of failed requests are kept only if their mean run time is at least
 * {@link FAILURE_PART_MIN} of the mean run time of completed requests.
 */
function countedRows(rows: readonly ChildTimes[]): readonly ChildTimes[] {
  const answers = rows.filter(({ state, recent }) => state === 'completed' && recent > 0)
  const failures = rows.filter(({ state, recent }) => TERMINAL.has(state) && state !== 'completed' && recent > 0)
  const isSlow = failures.length > 0 && meanRunMs(failures) >= meanRunMs(answers) * FAILURE_PART_MIN
  return isSlow ? [...answers, ...failures] : answers
}

function runningOf(rows: readonly ChildTimes[]): number {
  return sumOf(rows.filter(({ state }) => state === 'in_progress').map(({ count }) => count))
}

/** Returns the number of requests that ended per second since `sinceMs`. Null if the rate is unknown, such as during the first wave. */
export function rateOf(rows: readonly ChildTimes[], sinceMs: number, nowMs: number): number | null {
  const recent = countedRows(rows)
  const count = sumOf(recent.map((row) => row.recent))
  const runningCount = runningOf(rows)
  const answered = sumOf(rows.filter(({ state }) => state === 'completed').map((row) => row.count))
  const firstMs = Math.min(...recent.map(({ recentFromMs }) => recentFromMs))
  const hasBasis = count >= RATE_BASIS || nowMs - firstMs >= RATE_BASIS_MS
  if (answered === 0 || count === 0 || !hasBasis) return null
  const hasManyAnswers = answered >= WAVE_ANSWERS && nowMs - firstMs >= 2 * meanRunMs(recent)
  if (answered < runningCount && !hasManyAnswers) return null
  // If all completed requests ended inside the window, then they are the first ones, and may have started before the window. The rate
  // then covers the time since their first start. From the start of the window, it would be too high.
  const isFirstWave = answered === recentAnswers(rows)
  const fromMs = isFirstWave ? firstMs : Math.max(sinceMs, firstMs)
  return (1_000 * count) / Math.max(1_000, nowMs - fromMs)
}

function meanRunMs(rows: readonly ChildTimes[]): number {
  return sumOf(rows.map(({ recentRunMs }) => recentRunMs)) / sumOf(rows.map(({ recent }) => recent))
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0)
}

/**
 * Reason why a running batch makes no progress. Null if there is none. The reason is one of these:
 * 1. The limit or budget for which its next requests wait.
 * 2. The last failure, if more requests wait for a retry than run.
 */
export async function waitingFor(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  counts: ChildCounts,
): Promise<string | null> {
  const [, ids] = partsUnderWay(id, counts)
  const parts = await Promise.all(ids.map((part) => store?.find(tenant, part)))
  for (const part of parts) {
    const { progress } = (part?.progress ?? {}) as { progress?: { phase?: string; message?: string } }
    if (part?.state === 'scheduled' && progress?.phase === LINES_WAIT) return progress.message ?? null
  }
  const rows = (await store?.countChildren(tenant, ids, Date.now())) ?? []
  const scheduled = rows.filter(({ state }) => state === 'scheduled')
  const count = sumOf(scheduled.map((row) => row.count))
  if (!store || !scheduled[0] || count < runningOf(rows)) return null
  const children = await store.listChildren(tenant, scheduled[0].parent)
  const [next] = children
    .filter(({ state }) => state === 'scheduled')
    .toSorted((one, other) => one.run_at_ms - other.run_at_ms)
  const events = next ? await store.listEvents(tenant, next.id, 0, EVENTS_MAX) : []
  const failure = events.findLast(({ type }) => type === 'job.retrying')
  return next && failure ? retryText(count, next.run_at_ms, failure) : null
}

const EVENTS_MAX = 100

/** Text such as `14 requests wait for a retry, the next at 12:05:10 UTC. Last failure at 12:03:40 UTC, server gpu-1: Connection refused.`. */
function retryText(count: number, nextAtMs: number, { at_ms, data }: DurableEvent): string {
  const { reason, message, server } = (data ?? {}) as { reason?: string; message?: string; server?: string }
  const timeOf = (ms: number) => `${new Date(ms).toISOString().slice(11, 19)} UTC`
  const wait = `${count} ${count === 1 ? 'request waits' : 'requests wait'} for a retry, the next at ${timeOf(nextAtMs)}.`
  return `${wait} Last failure at ${timeOf(at_ms)}${server ? `, server ${server}` : ''}: ${message || reason}`
}

function partsUnderWay(id: string, { completed, failed }: ChildCounts): [first: number, ids: string[]] {
  const first = Math.floor((completed + failed) / PART_REQUESTS)
  return [first, partIds(id, first, first + PARTS_IN_FLIGHT_MAX)]
}

function partIds(id: string, from: number, to: number): string[] {
  return Array.from({ length: to - from }, (_, nth) => childJobId(id, String(from + nth)))
}
