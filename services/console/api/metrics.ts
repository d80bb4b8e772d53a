/** One line of Prometheus' text format: a name, its labels and a value. */
export interface Sample {
  readonly name: string
  readonly labels: Readonly<Record<string, string>>
  readonly value: number
}

/** The figures of one moment. */
export class Figures {
  readonly #byName = new Map<string, Sample[]>()

  constructor(text: string) {
    for (const line of text.split('\n')) {
      const [, name = '', labels = '', value = ''] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? []
      if (!name.startsWith('sluice_')) continue
      const samples = this.#byName.get(name) ?? []
      samples.push({ name, labels: labelsOf(labels), value: Number(value) })
      this.#byName.set(name, samples)
    }
  }

  /** The samples of a name whose labels are these. */
  all(name: string, labels: Readonly<Record<string, string>> = {}): readonly Sample[] {
    const wanted = Object.entries(labels)
    return (this.#byName.get(name) ?? []).filter((one) => wanted.every(([key, value]) => one.labels[key] === value))
  }

  /** Their sum. */
  sum(name: string, labels: Readonly<Record<string, string>> = {}): number {
    return this.all(name, labels).reduce((total, { value }) => total + value, 0)
  }
}

function labelsOf(text: string): Record<string, string> {
  return Object.fromEntries(
    [...text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key = '', value = '']) => [key, value]),
  )
}

/** The figures of the process that answers; undefined where they are at METRICS_PORT. */
export async function askFigures(abort: AbortSignal): Promise<Figures | undefined> {
  const response = await fetch('/metrics', { signal: abort })
  return response.ok ? new Figures(await response.text()) : undefined
}

/**
 * A quantile of a histogram, of what came between two moments; of all of it where nothing did.
 *
 * @param share 0.5 for the median.
 * @returns Seconds: the bound of the bucket it is in; undefined where nothing was counted
 */
export function quantile(
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
  return bounds.find(([, count]) => count >= total * share)?.[0]
}
