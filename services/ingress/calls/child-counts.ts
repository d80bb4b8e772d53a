/*
 * Progress of batches and of other jobs with child jobs: one count for every view, derived from the requests that have ended.
 *
 * The problem: a batch records progress only after a group of five parts, because one write per request would be
 * expensive. A batch of 500 requests is one group, so its recorded progress stays at 0 until its end. Every view (jobs,
 * lists, batches) therefore adds the ended requests of the unfinished parts when it is read, in one statement.
 *
 * The rate is the number of requests that ended in the last {@link RATE_WINDOW_MS}, divided by the time since the first
 * of them started. A running request counts as a fraction: its run time so far, divided by the mean run time.
 *
 *     2 slots, starts at 57 s, ends at 102 and 137 s, so the mean run time is (45 + 80) / 2 = 62.5 s.
 *     At 141 s, two requests run since 102 and 137 s, which counts as (39 + 4) / 62.5 = 0.7 requests.
 *     The rate is 2.7 requests in 84 s, or 0.032 per second.
 *
 * The time before the first start, such as the load of a model, is therefore not counted. Requests that failed very
 * fast, such as invalid requests, are not counted either.
 *
 * The rate is unknown during the first wave, until as many requests were answered as are running. The first wave also
 * lasts until {@link RATE_BASIS} requests have ended, or {@link RATE_BASIS_MS} have passed since the first start. The
 * estimated end is the current time plus the remaining requests divided by the rate.
 */

import { setImmediate as nextTurn } from 'node:timers/promises'
import type { DurableJob } from '#schemas/durable-job.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { batch } from '#shared/kinds/batch.ts'
import { childJobId } from '#shared/store/jobs.ts'
import type { ChildrenOfState } from '#shared/store/store.ts'
import type { IngressContext } from './call.ts'
import { type ChildCounts, requireJobs } from './job-object.ts'

const RATE_WINDOW_MS = 300_000
const RATE_BASIS = 5
const RATE_BASIS_MS = 10_000
/** A failure counts for the rate if it took at least this part of the mean run time of the answers. */
const FAILURE_PART_MIN = 0.25
/**
 * Number of completed parts, the newest ones, whose requests count for the rate in addition to those of unfinished
 * parts.
 */
const RECORDED_PARTS = 5

/**
 * Maximum requests per part. A job may have at most 500 child jobs, so a batch of 50,000 requests has 500 parts of 100
 * requests.
 */
export const PART_REQUESTS = 100
export const PARTS_IN_FLIGHT_MAX = 20

/** Progress phase of a part whose next line waits for a rate limit or a budget. */
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

/** @param reported Counts of the last progress event, which contain only whole parts */
async function countLive(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  reported: ChildCounts,
): Promise<ChildCounts> {
  const { total } = reported
  const nowMs = Date.now()
  const [first, underWay] = partsUnderWay(id, reported)
  const recorded = partIds(id, Math.max(0, first - RECORDED_PARTS), first)
  const sinceMs = nowMs - RATE_WINDOW_MS
  const rows = (await store?.countChildren(tenant, [...recorded, ...underWay], sinceMs)) ?? []
  const live = endsOf(rows.filter(({ parent }) => !recorded.includes(parent)))
  const completed = reported.completed + live.completed
  const failed = reported.failed + live.failed
  const rate = rateOf(rows, sinceMs, nowMs)
  const left = total - completed - failed
  return {
    ...{ total, completed, failed },
    requests_per_second: rate === null ? null : Number(rate.toPrecision(3)),
    estimated_end_at: rate === null ? null : Math.ceil(nowMs / 1_000 + left / rate),
  }
}

function endsOf(rows: readonly ChildrenOfState[]): { readonly completed: number; readonly failed: number } {
  const ended = rows.filter(({ state }) => TERMINAL.has(state))
  const completed = sumOf(ended.filter(({ state }) => state === 'completed').map(({ count }) => count))
  return { completed, failed: sumOf(ended.map(({ count }) => count)) - completed }
}

type ChildTimes = Pick<ChildrenOfState, 'state' | 'count' | 'recent' | 'recentRunMs' | 'recentFromMs' | 'startedSumMs'>

/** Requests per second, or null until the first wave of answers has ended. */
export function rateOf(rows: readonly ChildTimes[], sinceMs: number, nowMs: number): number | null {
  const answers = rows.filter(({ state, recent }) => state === 'completed' && recent > 0)
  const answerMs = meanRunMs(answers)
  const failures = rows.filter(({ state, recent }) => TERMINAL.has(state) && state !== 'completed' && recent > 0)
  const isSlow = failures.length > 0 && meanRunMs(failures) >= answerMs * FAILURE_PART_MIN
  const recent = isSlow ? [...answers, ...failures] : answers
  const count = sumOf(recent.map((row) => row.recent))
  const running = rows.filter(({ state }) => state === 'in_progress')
  const runningCount = sumOf(running.map((row) => row.count))
  const answered = sumOf(rows.filter(({ state }) => state === 'completed').map((row) => row.count))
  const firstMs = Math.min(...recent.map(({ recentFromMs }) => recentFromMs))
  const hasBasis = count >= RATE_BASIS || nowMs - firstMs >= RATE_BASIS_MS
  if (answered === 0 || count === 0 || answered < runningCount || !hasBasis) return null
  const elapsedMs = sumOf(running.map((row) => row.count * nowMs - row.startedSumMs))
  const part = Math.min(runningCount, elapsedMs / Math.max(1, meanRunMs(recent)))
  // Requests of the first wave may have started before the window. The rate then covers the time since their start.
  const isFirstWave = answered === sumOf(answers.map((row) => row.recent))
  const fromMs = isFirstWave ? firstMs : Math.max(sinceMs, firstMs)
  return (1_000 * (count + part)) / Math.max(1_000, nowMs - fromMs)
}

function meanRunMs(rows: readonly ChildTimes[]): number {
  return sumOf(rows.map(({ recentRunMs }) => recentRunMs)) / sumOf(rows.map(({ recent }) => recent))
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0)
}

/** Limit or budget for which the next requests of a batch wait. Null if there is none. */
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
  return null
}

function partsUnderWay(id: string, { completed, failed }: ChildCounts): [first: number, ids: string[]] {
  const first = Math.floor((completed + failed) / PART_REQUESTS)
  return [first, partIds(id, first, first + PARTS_IN_FLIGHT_MAX)]
}

function partIds(id: string, from: number, to: number): string[] {
  return Array.from({ length: to - from }, (_, nth) => childJobId(id, String(from + nth)))
}
