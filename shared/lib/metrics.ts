import { monitorEventLoopDelay, performance } from 'node:perf_hooks'
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { atAlignedInterval } from './aligned-interval.ts'

/**
 * Resolution in ms of the event-loop measurement, which wakes the process at this interval while the process is busy.
 */
const PRECISION_MS = 10
const SAMPLE_INTERVAL_MS = 1_000

/** Active time in ms per interval from which the event loop counts as busy. */
const BUSY_MS = 50

const IDLE_LOOKS = 5
const NANOS = 1e9
const LOOP_DELAYS = ['min', 'max', 'mean', 'stddev', 'p50', 'p90', 'p99'] as const

const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]

/** Resolution in ms that effectively disables prom-client's own measurement, which would otherwise wake an idle process at short intervals. */
const NEVER_MS = 2 ** 31 - 1

/**
 * Values that are read at each scrape. A name that ends in `_total` is a counter. docs/reference/metrics.md is generated from this
 * table and from the fields of {@link Metrics}.
 */
export const GAUGES = {
  sluice_attached_jobs: gauge('Calls in this ingress, by state (`queued`, `running`)', 'pool', 'state'),
  sluice_waiting_calls: gauge('Calls in this ingress that wait for a slot of their model', 'pool', 'model'),
  sluice_websockets: gauge('Open WebSocket connections'),
  sluice_request_body_bytes: gauge('Memory used by request bodies and messages until they are stored'),
  sluice_request_body_bytes_max: gauge(
    'Limit of the memory for request bodies: `BODY_BUDGET_BYTES`. Near the limit, large calls get 503',
  ),
  sluice_jobs: gauge(
    'Durable jobs in the store that have not ended. Each scheduler reports all jobs: aggregate with max, not sum',
    'pool',
    'priority',
    'state',
  ),
  sluice_jobs_oldest_seconds: gauge('Age of the oldest durable job in the state', 'pool', 'priority', 'state'),
  sluice_waiting_jobs: gauge(
    'Queued durable jobs of a model in the store. Each scheduler reports all jobs',
    'pool',
    'model',
    'priority',
  ),
  sluice_pool_running: gauge('Attempts in progress on this worker', 'pool'),
  sluice_pool_slots: gauge('Slots of this worker: its maximum number of concurrent attempts', 'pool'),
  sluice_worker_parked_calls: gauge(
    'Calls that this worker holds without a slot, because their model is at its concurrency limit',
    'pool',
  ),
  sluice_worker_requeued_total: gauge(
    'Calls that this worker put back into the queue, because it lacks their model or has no capacity for it',
    'pool',
  ),
  sluice_queue_unacked_records: gauge('Records in the queue of the pool that no worker has acknowledged', 'pool'),
  sluice_sandbox_interpreters: gauge('Sandbox interpreters of this worker, by state (`idle`, `busy`)', 'state'),
  sluice_prepared_ratio: gauge('Progress of a download or build, from 0 to 1', 'resource'),
  sluice_model_config_invalid: gauge(
    '1 while the changed models file is invalid, so that the previous version stays in use',
  ),
  sluice_models_loaded_timestamp_seconds: gauge('Unix time at which the models file was last loaded'),
} as const
export type GaugeName = keyof typeof GAUGES

function gauge<const Label extends string>(
  help: string,
  ...labels: readonly Label[]
): { readonly help: string; readonly labels: readonly Label[] } {
  return { help, labels }
}

type ReadValue = () => Promise<number | undefined> | number | undefined

export class Metrics {
  readonly registry = new Registry()
  readonly #reads = new Map<string, { labels: Record<string, string>; read: ReadValue }[]>()

  readonly requests = this.#counter(
    'sluice_http_requests_total',
    ['route', 'status', 'model'],
    'Requests over HTTP and WebSocket, by route, final status and model',
  )
  readonly requestSeconds = this.#histogram(
    'sluice_http_request_duration_seconds',
    ['route', 'model'],
    'Time from the request head to the last byte of the response',
  )
  readonly queueSeconds = this.#histogram(
    'sluice_job_queue_seconds',
    ['pool'],
    'Time from acceptance to the first start of a call. Grows first if there are too few workers',
  )
  readonly firstOutputSeconds = this.#histogram(
    'sluice_job_first_output_seconds',
    ['pool', 'model'],
    'Time from acceptance to the first output (time to first token)',
  )
  readonly jobs = this.#counter('sluice_jobs_total', ['pool', 'outcome', 'code'], 'Calls by outcome and error code')
  readonly retries = this.#counter('sluice_job_retries_total', ['pool', 'reason'], 'Retries, by reason')
  readonly attempts = this.#counter(
    'sluice_attempts_total',
    ['pool', 'model', 'outcome'],
    'Attempts of this worker, by outcome',
  )
  readonly attemptSeconds = this.#histogram(
    'sluice_attempt_duration_seconds',
    ['pool', 'model'],
    'Run time of an attempt on this worker: the speed of the model itself',
  )
  readonly tokens = this.#counter(
    'sluice_tokens_total',
    ['model', 'direction'],
    'Tokens, by direction (`input`, `output`)',
  )
  readonly promptTokens = this.#counter(
    'sluice_server_prompt_tokens_total',
    ['model', 'server', 'cache'],
    'Prompt tokens that a server of a model counted (`server`: index in `base_urls`), by its prefix cache (`hit`, `miss`)',
  )
  readonly sandboxRuns = this.#counter(
    'sluice_sandbox_runs_total',
    ['sandbox', 'outcome'],
    'Code runs, by outcome (`ok`, `error`, `violations`, `timeout`, `killed`, `cancelled`, `failed`)',
  )
  readonly sandboxSeconds = this.#histogram(
    'sluice_sandbox_run_duration_seconds',
    ['sandbox'],
    'Run time of code in the sandbox, without the time in the queue',
  )
  readonly reaped = this.#counter(
    'sluice_jobs_reaped_total',
    ['pool', 'outcome'],
    'Durable jobs taken from lost workers, by outcome',
  )
  readonly republished = this.#counter(
    'sluice_jobs_republished_total',
    ['pool'],
    'Queued durable jobs whose record was published again, because the broker may have lost it',
  )
  readonly expired = this.#counter(
    'sluice_jobs_expired_total',
    ['pool'],
    'Durable jobs that expired while they were queued',
  )
  readonly requestLogDropped = this.#counter(
    'sluice_request_log_dropped_total',
    [],
    'Rows of the request log that were dropped, because the store was unreachable or too slow',
  )
  readonly webhooks = this.#counter(
    'sluice_webhooks_total',
    ['outcome'],
    'Webhook delivery attempts, by outcome (`delivered`, `retried`, `failed`)',
  )

  constructor() {
    collectDefaultMetrics({ register: this.registry, eventLoopMonitoringPrecision: NEVER_MS })
    this.#gaugeLoopDelay()
  }

  /** Registers a value that is read at each scrape. @param read May be asynchronous. If it returns undefined, then the sample is omitted */
  gauge<Name extends GaugeName>(
    name: Name,
    labels: Readonly<Record<(typeof GAUGES)[Name]['labels'][number], string>>,
    read: ReadValue,
  ): void {
    this.#gauge(name, GAUGES[name].help, labels, read)
  }

  #gauge(name: string, help: string, labels: Readonly<Record<string, string>>, read: ReadValue): void {
    const existing = this.#reads.get(name)
    if (existing) return void existing.push({ labels, read })
    const reads = [{ labels, read }]
    this.#reads.set(name, reads)
    const Type = name.endsWith('_total') ? Counter : Gauge
    new Type({
      name,
      help,
      labelNames: Object.keys(labels),
      registers: [this.registry],
      async collect() {
        const values = await Promise.all(reads.map((each) => each.read()))
        // Without the reset, a value that cannot be read now would repeat its last sample.
        this.reset()
        for (const [i, { labels }] of reads.entries()) {
          const value = values[i]
          if (value === undefined) continue
          if (this instanceof Gauge) this.set(labels, value)
          else this.inc(labels, value)
        }
      },
    })
  }

  #gaugeLoopDelay(): void {
    const delay = new LoopDelay()
    let delays: ReturnType<LoopDelay['take']> = {}
    for (const statistic of LOOP_DELAYS) {
      const name = `nodejs_eventloop_lag_${statistic}_seconds`
      this.registry.removeSingleMetric(name)
      // The gauge that is read first takes the statistics for all gauges, so that they describe one period.
      const read = () => {
        if (statistic === LOOP_DELAYS[0]) delays = delay.take()
        return delays[statistic]
      }
      this.#gauge(name, `Delay of the event loop since the last scrape: ${statistic}`, {}, read)
    }
  }

  #counter<Label extends string>(name: string, labelNames: readonly Label[], help: string): Counter<Label> {
    return new Counter({ name, help, labelNames, registers: [this.registry] })
  }

  #histogram<Label extends string>(name: string, labelNames: readonly Label[], help: string): Histogram<Label> {
    return new Histogram({ name, help, labelNames, buckets: SECONDS, registers: [this.registry] })
  }
}

type Statistic = (typeof LOOP_DELAYS)[number]

/**
 * Measures the delay of the event loop with a resolution of 10 ms, but only while the process is busy. In an idle process, the hundred wake-ups per
 * second would be most of its work. A second without a measurement counts with the active time of the loop, which is an upper bound of the delay.
 */
export class LoopDelay {
  readonly #histogram = monitorEventLoopDelay({ resolution: PRECISION_MS })
  #before = performance.eventLoopUtilization()
  #measured = 0
  #longestMs = 0

  constructor() {
    atAlignedInterval(SAMPLE_INTERVAL_MS, () => this.#check(), { keepsAlive: false })
  }

  /** Returns statistics since the last call, in seconds. A statistic without a measurement is missing. */
  take(): Readonly<Partial<Record<Statistic, number>>> {
    this.#active()
    const { count, min, max, mean, stddev } = this.#histogram
    const percentile = (percent: number) => this.#histogram.percentile(percent) / NANOS
    const measured = count > 0 && {
      ...{ min: min / NANOS, mean: mean / NANOS, stddev: stddev / NANOS },
      ...{ p50: percentile(50), p90: percentile(90), p99: percentile(99) },
    }
    const taken = { ...measured, max: Math.max(max / NANOS, this.#longestMs / 1_000) }
    this.#histogram.reset()
    this.#longestMs = 0
    return taken
  }

  #check(): void {
    const before = this.#measured
    this.#measured = this.#active() >= BUSY_MS ? IDLE_LOOKS : Math.max(0, before - 1)
    if (before === 0 && this.#measured > 0) this.#histogram.enable()
    else if (before > 0 && this.#measured === 0) this.#pause()
  }

  /** Stores the maximum and resets the histogram, which would otherwise count the pause as one long delay. */
  #pause(): void {
    this.#histogram.disable()
    this.#longestMs = Math.max(this.#longestMs, (1_000 * this.#histogram.max) / NANOS)
    this.#histogram.reset()
  }

  #active(): number {
    const now = performance.eventLoopUtilization()
    const { active } = performance.eventLoopUtilization(now, this.#before)
    this.#before = now
    if (this.#measured === 0) this.#longestMs = Math.max(this.#longestMs, active)
    return active
  }
}
