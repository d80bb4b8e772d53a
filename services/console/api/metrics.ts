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
      if (!name.startsWith('sluice_')) continue
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

function labelsOf(text: string): Record<string, string> {
  return Object.fromEntries(
    [...text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key = '', value = '']) => [key, value]),
  )
}

/**
 * Scrapes the process that serves this page. With the `admin` scope, the metrics are read from the
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
  return new Metrics(await response.text())
}

/**
 * True if the service answered 404, because another port serves the metrics. The metrics are then not requested again.
 */
let isOnOtherPort = false

/** Definition of the latency that Home and Models show. */
export const FIRST_OUTPUT_TEXT =
  'Time from the acceptance of a request to its first output. Without streaming, the first output is the whole answer.'

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
