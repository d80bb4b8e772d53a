import { fetchApi, isOperator } from './client.ts'

export interface Sample {
  readonly name: string
  readonly labels: Readonly<Record<string, string>>
  readonly value: number
}

export class Metrics {
  readonly #byName = new Map<string, Sample[]>()
  /**
   * Samples by metric name, then by model. The samples of a metric are indexed on first use. Without this index, a page
   * with thousands of models would scan all samples once per model.
   */
  readonly #byModel = new Map<string, Map<string, Sample[]>>()

  constructor(text: string) {
    for (const line of text.split('\n')) {
      const [, name = '', labels = '', value = ''] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? []
      if (!name.startsWith('sluice_') && name !== PROCESS_START) continue
      const samples = this.#byName.get(name) ?? []
      samples.push({ name, labels: labelsOf(labels), value: Number(value) })
      this.#byName.set(name, samples)
    }
  }

  all(name: string, labels: Readonly<Record<string, string>> = {}): readonly Sample[] {
    const wanted = Object.entries(labels)
    const samples = labels.model === undefined ? this.#byName.get(name) : this.#of(name).get(labels.model)
    return (samples ?? []).filter((one) => wanted.every(([key, value]) => one.labels[key] === value))
  }

  sum(name: string, labels: Readonly<Record<string, string>> = {}): number {
    return this.all(name, labels).reduce((total, { value }) => total + value, 0)
  }

  #of(name: string): Map<string, Sample[]> {
    const known = this.#byModel.get(name)
    if (known) return known
    const by = Map.groupBy(this.#byName.get(name) ?? [], ({ labels }) => labels.model ?? '')
    this.#byModel.set(name, by)
    return by
  }
}

/**
 * Metric with the start time of the process. If the value changes, then the process has restarted and all its counters
 * are reset.
 */
const PROCESS_START = 'process_start_time_seconds'

function labelsOf(text: string): Record<string, string> {
  return Object.fromEntries(
    [...text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key = '', value = '']) => [key, value]),
  )
}

/**
 * Scrapes the process that serves this page and records the result for {@link earlierScrape}. With the `admin` scope, the metrics are read from the
 * admin API. Any other key reads `/metrics`.
 *
 * @returns Undefined if `/metrics` is served on METRICS_PORT only and the key lacks the `admin` scope, or if its scopes are not known yet
 * @throws ApiFailure, TypeError
 */
export async function fetchMetrics(abort: AbortSignal): Promise<Metrics | undefined> {
  if (isOperator.value === undefined || (isOnOtherPort && !isOperator.value)) return undefined
  const path = isOperator.value ? '/v1/admin/metrics' : '/metrics'
  const response = await fetchApi(path, { signal: abort, expects: [404] })
  isOnOtherPort = response.status === 404
  if (isOnOtherPort) return undefined
  const now = new Metrics(await response.text())
  recordScrape(now, Date.now())
  return now
}

/** Records a scrape, at most one per 10 s, and drops scrapes older than five minutes. @param atMs Time of the scrape */
export function recordScrape(now: Metrics, atMs: number): void {
  const last = history.at(-1)
  // After a restart, the earlier counters are higher than the current ones. The history is
  // cleared, because the differences would be negative.
  if (last && last.metrics.sum(PROCESS_START) !== now.sum(PROCESS_START)) history.length = 0
  while (atMs - (history[0]?.atMs ?? atMs) > WINDOW_MS) history.shift()
  if (atMs - (history.at(-1)?.atMs ?? Number.NEGATIVE_INFINITY) >= SCRAPE_INTERVAL_MS)
    history.push({ atMs, metrics: now })
}

/**
 * True if the service answered 404, because another port serves the metrics. The metrics are then not requested again.
 */
let isOnOtherPort = false

const WINDOW_MS = 300_000
/**
 * Minimum interval between recorded scrapes, in ms. With many models, a scrape has megabytes, so this interval bounds
 * the memory of the history.
 */
const SCRAPE_INTERVAL_MS = 10_000
const history: { readonly atMs: number; readonly metrics: Metrics }[] = []

export interface Scrape {
  readonly metrics: Metrics
  readonly ageMs: number
}

/** Returns the oldest recorded scrape of the last five minutes. Undefined if there is none before `now`. */
export function earlierScrape(now: Metrics): Scrape | undefined {
  const [oldest] = history
  if (!oldest || oldest.metrics === now) return undefined
  return { metrics: oldest.metrics, ageMs: Date.now() - oldest.atMs }
}

/** Definition of the latency that Home and Models show. */
export const FIRST_OUTPUT_TEXT =
  'Time from the acceptance of a request to its first output. Without streaming, the first output is the whole answer.'

/** Quantiles of durations in seconds. Undefined without observations. */
export interface Latency {
  readonly p50: number | undefined
  readonly p95: number | undefined
}

/** @param before Scrape with which the observations begin. Default: the start of the process */
export function latencyOf(
  name: string,
  labels: Readonly<Record<string, string>>,
  now: Metrics,
  before?: Metrics,
): Latency {
  return { p50: quantile(name, labels, 0.5, now, before), p95: quantile(name, labels, 0.95, now, before) }
}

/**
 * Returns a quantile of the observations between two scrapes. Interpolates linearly within a bucket, like `histogram_quantile` of Prometheus.
 *
 * @param share 0.5 for the median
 * @returns Seconds. Infinite beyond the last bound, and undefined without observations
 */
function quantile(
  name: string,
  labels: Readonly<Record<string, string>>,
  share: number,
  now: Metrics,
  before?: Metrics,
): number | undefined {
  const counts = new Map<number, number>()
  const add = (metrics: Metrics, sign: number) => {
    for (const { labels: own, value } of metrics.all(`${name}_bucket`, labels)) {
      const bound = own.le === '+Inf' ? Number.POSITIVE_INFINITY : Number(own.le)
      counts.set(bound, (counts.get(bound) ?? 0) + sign * value)
    }
  }
  add(now, 1)
  if (before) add(before, -1)
  const bounds = [...counts].toSorted(([a], [b]) => a - b)
  const total = bounds.at(-1)?.[1] ?? 0
  if (total <= 0) return undefined
  const nth = bounds.findIndex(([, count]) => count >= total * share)
  const [from, below] = bounds[nth - 1] ?? [0, 0]
  const [to, upTo] = bounds[nth] ?? [0, 0]
  return Number.isFinite(to) ? from + ((to - from) * (total * share - below)) / (upTo - below) : to
}

/**
 * Returns the load progress of a model, 0 to 1. The metric exists only for models that had to be loaded. Any other model of a pool that this process
 * runs counts as loaded.
 *
 * @returns Undefined if this process does not run the pool
 */
export function loadProgressOf(id: string, pool: string, metrics: Metrics | undefined): number | undefined {
  const [share] = metrics?.all('sluice_prepared_ratio', { resource: id }) ?? []
  const runsHere = metrics !== undefined && metrics.all('sluice_pool_slots', { pool }).length > 0
  return share?.value ?? (runsHere ? 1 : undefined)
}
