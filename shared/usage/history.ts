import { HISTORY_SAMPLE_SECONDS } from '#schemas/usage.ts'
import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import type { Log } from '#shared/log/log.ts'
import type { HistorySample, HistoryStore } from '#shared/store/records.ts'

/*
 * Metrics of the service over time: one sample per 15 s, for the whole service and for each active project.
 *
 * 1. Each ended call or job is added to the sample of the current interval.
 * 2. At the end of an interval, the gauges (running and queued work) are read, and the samples are added to the store.
 * 3. The store merges the samples of all processes. Counts of attached calls are summed. Counts of durable jobs are equal in all processes, which
 *    read them from the store, so their maximum is stored.
 *
 * The cost does not depend on the number of calls. An idle service writes nothing. While the store is unreachable, at most {@link SAMPLES_MAX}
 * samples wait in memory, and the oldest are dropped. If the response to a write is lost, then its calls may count twice.
 */

const SAMPLE_MS = HISTORY_SAMPLE_SECONDS * 1_000
const SAMPLES_MAX = 2_000
/** Maximum projects with their own samples per interval and process. Further projects are counted only in the sample of the whole service. */
const PROJECTS_MAX = 200
/** Value of the field `project` in samples of the whole service. */
export const WHOLE_SERVICE = ''

export interface EndedWork {
  readonly project: string
  readonly calls: number
  readonly failed: number
  readonly inputTokens: number
  readonly outputTokens: number
  readonly costNanos: number
  /** Time in the queue, in ms. Undefined if the work never started, or if the time is unknown. */
  readonly queueMs?: number | undefined
  readonly firstOutputMs?: number | undefined
}

export type Gauges = Pick<HistorySample, 'running' | 'waiting' | 'jobsRunning' | 'jobsWaiting'>

type Counts = { -readonly [Name in Exclude<keyof HistorySample, 'project' | 'atSeconds'>]: number }

const NOTHING: Counts = {
  ...{ calls: 0, failed: 0, inputTokens: 0, outputTokens: 0, costNanos: 0 },
  ...{ queueCalls: 0, queueMs: 0, queueMsMax: 0, firstCalls: 0, firstMs: 0, firstMsMax: 0 },
  ...{ running: 0, waiting: 0, jobsRunning: 0, jobsWaiting: 0 },
}

interface RecorderOptions {
  readonly store: HistoryStore
  readonly log: Log
  /** Reads the running and queued work of each project, and of the whole service under {@link WHOLE_SERVICE}. Default: none. */
  gauges?(): Promise<ReadonlyMap<string, Gauges>>
}

export class HistoryRecorder {
  readonly #options: RecorderOptions
  readonly #stop: () => void
  #current = new Map<string, Counts>()
  #waiting: HistorySample[] = []
  #writing: Promise<void> | undefined
  #isFailing = false

  constructor(options: RecorderOptions) {
    this.#options = options
    this.#stop = atAlignedInterval(SAMPLE_MS, () => void this.flush(), { keepsAlive: false })
  }

  add(work: EndedWork): void {
    addTo(this.#of(WHOLE_SERVICE), work)
    if (this.#current.has(work.project) || this.#current.size <= PROJECTS_MAX) addTo(this.#of(work.project), work)
  }

  /** Ends the interval and writes its samples. Never rejects. */
  flush(): Promise<void> {
    this.#writing ??= this.#write().finally(() => {
      this.#writing = undefined
    })
    return this.#writing
  }

  async close(): Promise<void> {
    this.#stop()
    await this.#writing
    await this.flush()
  }

  #of(project: string): Counts {
    const known = this.#current.get(project)
    if (known) return known
    const counts = { ...NOTHING }
    this.#current.set(project, counts)
    return counts
  }

  async #write(): Promise<void> {
    const { store, log } = this.#options
    try {
      for (const [project, gauges] of (await this.#options.gauges?.()) ?? []) {
        const isBusy = Object.values(gauges).some((count) => count > 0)
        if (isBusy && (this.#current.has(project) || this.#current.size <= PROJECTS_MAX))
          Object.assign(this.#of(project), gauges)
      }
      this.#take()
      if (this.#waiting.length > 0) await store.add(this.#waiting)
      this.#waiting = []
      if (this.#isFailing) log.info({}, 'history of metrics is stored again')
      this.#isFailing = false
    } catch (error) {
      this.#take()
      // Only the first failure of an outage is logged, because an outage may last for hours.
      if (!this.#isFailing) log.warn({ err: error }, 'history of metrics could not be stored; retrying')
      this.#isFailing = true
    }
  }

  #take(): void {
    const atSeconds = Math.floor((Date.now() - 1) / SAMPLE_MS) * HISTORY_SAMPLE_SECONDS
    const samples = [...this.#current].map(([project, counts]) => ({ project, atSeconds, ...counts }))
    this.#current = new Map()
    this.#waiting = [...this.#waiting, ...samples].slice(-SAMPLES_MAX)
  }
}

function addTo(counts: Counts, { queueMs, firstOutputMs, ...work }: EndedWork): void {
  counts.calls += work.calls
  counts.failed += work.failed
  counts.inputTokens += work.inputTokens
  counts.outputTokens += work.outputTokens
  counts.costNanos += work.costNanos
  if (queueMs !== undefined) {
    counts.queueCalls++
    counts.queueMs += Math.round(queueMs)
    counts.queueMsMax = Math.max(counts.queueMsMax, Math.round(queueMs))
  }
  if (firstOutputMs === undefined) return
  counts.firstCalls++
  counts.firstMs += Math.round(firstOutputMs)
  counts.firstMsMax = Math.max(counts.firstMsMax, Math.round(firstOutputMs))
}
