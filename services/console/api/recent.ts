import { signal } from '@preact/signals'
import type { z } from 'zod'
import type { RequestFailuresListAnswer, RequestListAnswer } from '#schemas/admin/requests.ts'
import { fetchJson } from './client.ts'
import { latencyText, serviceNow } from './clock.ts'

/*
 * Requests, failures and latencies of each model in the last hour, the window of the alert about a failing model, from the request log.
 *
 * 1. One read counts the failures of all models.
 * 2. One read per model counts its requests, and returns the newest, at most `SAMPLE_MAX`. Latencies are measured values of completed requests among these,
 *    and no interpolations. All of them are computed from the same requests, so the time to the first output is never above the duration.
 */

export const RECENT_INTERVAL_MS = 10_000
const WINDOW_MINUTES = 60
/** Maximum number of requests that are read per model: the largest page of the request log. */
const SAMPLE_MAX = 100
/** Maximum number of models with these figures. Further models are shown without the figures, because each model costs a read. */
const MODELS_MAX = 50
const CONCURRENCY = 4

export interface Recent {
  readonly requests: number
  /** Whether the model had more requests than were counted. */
  readonly hasMore: boolean
  readonly failed: number
  /** Undefined without a completed request. */
  readonly firstOutput: Latency | undefined
  readonly duration: Latency | undefined
  /** Part of the durations that the requests waited in the queue, 0 to 1. */
  readonly queueShare: number | undefined
}

/** Percentiles in seconds. */
interface Latency {
  readonly p50: number
  readonly p95: number
}

/** Both percentiles, such as `0.4 s / 1.8 s`. */
export function percentilesText(latency: Latency | undefined): string {
  return latency ? `${latencyText(latency.p50)} / ${latencyText(latency.p95)}` : '–'
}

/** Start of the window and figures by model id. A model without figures is missing. Undefined until loaded. */
export const recent = signal<{ readonly since: string; readonly byModel: ReadonlyMap<string, Recent> } | undefined>(
  undefined,
)
/** Whether the figures are unavailable, for example because the request log is off. */
export const isUnavailable = signal(false)

export async function refreshRecent(models: readonly string[], abort: AbortSignal): Promise<void> {
  if (models.length === 0) return
  // The start is a whole minute, so that the reads within one minute have equal URLs and the same window.
  const since = String(Math.floor(serviceNow() / 60 - WINDOW_MINUTES) * 60)
  try {
    recent.value = { since, byModel: await read(models, since, abort) }
    isUnavailable.value = false
  } catch (error) {
    if (!abort.aborted) isUnavailable.value = true
    throw error
  }
}

async function read(models: readonly string[], since: string, abort: AbortSignal) {
  const failures = await fetchJson<z.infer<typeof RequestFailuresListAnswer>>(
    `/v1/admin/requests/failures?${new URLSearchParams({ since })}`,
    { signal: abort },
  )
  const failed = new Map<string, number>()
  for (const { model, count } of failures.data) failed.set(model ?? '', (failed.get(model ?? '') ?? 0) + count)
  const found = new Map<string, Recent>()
  const left = models.slice(0, MODELS_MAX)
  const readNext = async () => {
    for (let model = left.shift(); model !== undefined; model = left.shift()) {
      const query = new URLSearchParams({ model, since, limit: String(SAMPLE_MAX), count: 'true' })
      const page = await fetchJson<RequestListAnswer>(`/v1/admin/requests?${query}`, { signal: abort })
      found.set(model, recentOf(page, failed.get(model) ?? 0))
    }
  }
  await Promise.all(Array.from({ length: CONCURRENCY }, readNext))
  return found
}

/** @param failed Failures of the whole window, which may be more than the page has */
export function recentOf(
  {
    data,
    has_more,
    total,
    total_is_lower_bound,
  }: Pick<RequestListAnswer, 'data' | 'has_more'> & Partial<RequestListAnswer>,
  failed: number,
): Recent {
  const completed = data.filter(({ status }) => status < 400)
  const withOutput = completed.filter(({ first_output_ms }) => first_output_ms !== null)
  // Durable jobs have no time of the first output, so their durations are used only if no other completed request has such
  // a time.
  const measured = withOutput.length > 0 ? withOutput : completed
  return {
    requests: Math.max(total ?? data.length, failed),
    hasMore: total == null ? has_more : total_is_lower_bound === true,
    failed,
    firstOutput: latencyOf(
      withOutput.map(({ first_output_ms, duration_ms }) => Math.min(first_output_ms ?? 0, duration_ms)),
    ),
    duration: latencyOf(measured.map(({ duration_ms }) => duration_ms)),
    queueShare: queueShareOf(measured),
  }
}

function queueShareOf(measured: RequestListAnswer['data']): number | undefined {
  const sumOf = (msOf: (one: (typeof measured)[number]) => number) => measured.reduce((sum, one) => sum + msOf(one), 0)
  const all = sumOf(({ duration_ms }) => duration_ms)
  return all > 0 ? sumOf(({ queue_ms, duration_ms }) => Math.min(queue_ms ?? 0, duration_ms)) / all : undefined
}

function latencyOf(durationsMs: readonly number[]): Latency | undefined {
  const sorted = durationsMs.toSorted((a, b) => a - b)
  if (sorted.length === 0) return undefined
  const percentile = (share: number) => (sorted[Math.ceil(sorted.length * share) - 1] ?? 0) / 1_000
  return { p50: percentile(0.5), p95: percentile(0.95) }
}
