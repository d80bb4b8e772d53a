import { ask } from './client.ts'
import { isOperator } from './session.ts'

/** One line of Prometheus' text format: a name, its labels and a value. */
export interface Sample {
  readonly name: string
  readonly labels: Readonly<Record<string, string>>
  readonly value: number
}

/** The figures of one moment. */
export class Figures {
  readonly #byName = new Map<string, Sample[]>()
  /** The same by model as well, of the names that were asked for of one: a service may have thousands. */
  readonly #byModel = new Map<string, Map<string, Sample[]>>()

  constructor(text: string) {
    for (const line of text.split('\n')) {
      const [, name = '', labels = '', value = ''] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? []
      if (!name.startsWith('sluice_') && name !== BEGAN) continue
      const samples = this.#byName.get(name) ?? []
      samples.push({ name, labels: labelsOf(labels), value: Number(value) })
      this.#byName.set(name, samples)
    }
  }

  /** The samples of a name whose labels are these. */
  all(name: string, labels: Readonly<Record<string, string>> = {}): readonly Sample[] {
    const wanted = Object.entries(labels)
    const samples = labels.model === undefined ? this.#byName.get(name) : this.#of(name).get(labels.model)
    return (samples ?? []).filter((one) => wanted.every(([key, value]) => one.labels[key] === value))
  }

  /** Their sum. */
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

/** When the process began: what it counts begins anew with it. */
const BEGAN = 'process_start_time_seconds'

function labelsOf(text: string): Record<string, string> {
  return Object.fromEntries(
    [...text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key = '', value = '']) => [key, value]),
  )
}

/**
 * The figures of the process that answers.
 *
 * @returns Undefined where they are at METRICS_PORT, for those who are no operators
 * @throws ApiFailure, TypeError
 */
export async function askFigures(abort: AbortSignal): Promise<Figures | undefined> {
  if (isOperator.value === undefined || (isElsewhere && !isOperator.value)) return undefined
  const path = isOperator.value ? '/v1/admin/metrics' : '/metrics'
  const response = await ask(path, { signal: abort, expects: [404] })
  isElsewhere = response.status === 404
  if (isElsewhere) return undefined
  const now = new Figures(await response.text())
  keep(now, Date.now())
  return now
}

/** Remembers figures for what is told of the last minutes. @param atMs When they were asked for */
export function keep(now: Figures, atMs: number): void {
  const last = history.at(-1)
  // Those of another process are no earlier ones of this.
  if (last && last.figures.sum(BEGAN) !== now.sum(BEGAN)) history.length = 0
  while (atMs - (history[0]?.atMs ?? atMs) > RECENT_MS) history.shift()
  if (atMs - (history.at(-1)?.atMs ?? Number.NEGATIVE_INFINITY) >= STEP_MS) history.push({ atMs, figures: now })
}

/** They are not at the port of the API: nobody asks again. */
let isElsewhere = false

/** Latencies and failures are told of so long. */
const RECENT_MS = 300_000
/** Figures that are kept for it are so far apart: a service with many models says megabytes. */
const STEP_MS = 10_000
const history: { readonly atMs: number; readonly figures: Figures }[] = []

/** The figures of up to five minutes before these; undefined where there were none. */
export function earlier(now: Figures): Figures | undefined {
  const [oldest] = history
  return oldest?.figures === now ? undefined : oldest?.figures
}

/** What half and nearly all of some work took, in seconds; of the last minutes, or of all of it where there was none then. */
export interface Latency {
  readonly p50: number | undefined
  readonly p95: number | undefined
}

/** The latency of what a histogram counts. */
export function latencyOf(name: string, labels: Readonly<Record<string, string>>, now: Figures): Latency {
  const before = earlier(now)
  return { p50: quantile(name, labels, 0.5, now, before), p95: quantile(name, labels, 0.95, now, before) }
}

/**
 * A quantile of a histogram, of what came between two moments; of all of it where nothing did.
 *
 * @param share 0.5 for the median.
 * @returns Seconds, as if what a bucket counts were spread evenly in it (as `histogram_quantile` of Prometheus has it); infinite beyond
 * the last bound; undefined where nothing was counted
 */
function quantile(
  name: string,
  labels: Readonly<Record<string, string>>,
  share: number,
  now: Figures,
  before?: Figures,
): number | undefined {
  const counts = new Map<number, number>()
  const add = (figures: Figures, sign: number) => {
    for (const { labels: own, value } of figures.all(`${name}_bucket`, labels)) {
      const bound = own.le === '+Inf' ? Number.POSITIVE_INFINITY : Number(own.le)
      counts.set(bound, (counts.get(bound) ?? 0) + sign * value)
    }
  }
  add(now, 1)
  if (before) add(before, -1)
  const bounds = [...counts].toSorted(([a], [b]) => a - b)
  const total = bounds.at(-1)?.[1] ?? 0
  if (total <= 0) return before ? quantile(name, labels, share, now) : undefined
  const nth = bounds.findIndex(([, count]) => count >= total * share)
  const [from, below] = bounds[nth - 1] ?? [0, 0]
  const [to, upTo] = bounds[nth] ?? [0, 0]
  return Number.isFinite(to) ? from + ((to - from) * (total * share - below)) / (upTo - below) : to
}

/**
 * How far a model is prepared, 0 to 1, as the process that answers knows it: of the pools that it runs. What was there from the start has
 * no figure.
 *
 * @returns Undefined where it does not know
 */
export function preparedOf(id: string, pool: string, figures: Figures | undefined): number | undefined {
  const [share] = figures?.all('sluice_prepared_ratio', { what: id }) ?? []
  const runsHere = figures !== undefined && figures.all('sluice_pool_slots', { pool }).length > 0
  return share?.value ?? (runsHere ? 1 : undefined)
}
