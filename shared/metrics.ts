import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { LOOP_DELAYS, LoopDelay } from './loop-delay.ts'

const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]

/** Longest possible resolution, which disables prom-client's own measurement: it would wake the process forever. */
const NEVER_MS = 2 ** 31 - 1

type ReadValue = () => Promise<number | undefined> | number | undefined

/** Prometheus metrics of one process. Each name ends with its unit. */
export class Metrics {
  readonly registry = new Registry()
  readonly #reads = new Map<string, { labels: Record<string, string>; read: ReadValue }[]>()

  readonly requests = this.#counter(
    'sluice_http_requests_total',
    ['route', 'status', 'model'],
    'HTTP requests by route, status and model',
  )
  readonly requestSeconds = this.#histogram(
    'sluice_http_request_duration_seconds',
    ['route', 'model'],
    'From the request head to the last byte of the response',
  )
  readonly queueSeconds = this.#histogram(
    'sluice_job_queue_seconds',
    ['pool'],
    'From acceptance to the first started, per job',
  )
  readonly firstOutputSeconds = this.#histogram(
    'sluice_job_first_output_seconds',
    ['pool', 'model'],
    'From acceptance to the first output (time to first token), per job',
  )
  readonly jobs = this.#counter(
    'sluice_jobs_total',
    ['pool', 'end', 'code'],
    'Jobs by how they ended, as their arbiter decided',
  )
  readonly retries = this.#counter('sluice_job_retries_total', ['pool', 'reason'], 'Further attempts, by why')
  readonly attempts = this.#counter(
    'sluice_attempts_total',
    ['pool', 'model', 'end'],
    'Attempts this worker ran, by how they ended',
  )
  readonly attemptSeconds = this.#histogram(
    'sluice_attempt_duration_seconds',
    ['pool', 'model'],
    'Run time of attempts on this worker',
  )
  readonly tokens = this.#counter(
    'sluice_tokens_total',
    ['model', 'direction'],
    'Tokens by model and direction (input, output)',
  )
  readonly sandboxRuns = this.#counter(
    'sluice_sandbox_runs_total',
    ['sandbox', 'end'],
    'Runs of code by how they ended (ok, error, violations, timeout, killed, cancelled, failed)',
  )
  readonly sandboxSeconds = this.#histogram(
    'sluice_sandbox_run_duration_seconds',
    ['sandbox'],
    'Run time of code in the sandbox, without the queue',
  )
  readonly reaped = this.#counter(
    'sluice_jobs_reaped_total',
    ['pool', 'end'],
    'Durable jobs taken from lost or silent workers, by what became of them',
  )
  readonly republished = this.#counter(
    'sluice_jobs_republished_total',
    ['pool'],
    'Queued jobs published again because the broker seemed to have lost them',
  )
  readonly expired = this.#counter('sluice_jobs_expired_total', ['pool'], 'Durable jobs that waited past their time')
  readonly webhooks = this.#counter(
    'sluice_webhooks_total',
    ['end'],
    'Tries to deliver webhook messages, by how they ended (delivered, retried, failed)',
  )

  constructor() {
    collectDefaultMetrics({ register: this.registry, eventLoopMonitoringPrecision: NEVER_MS })
    this.#showLoopDelay()
  }

  /** Registers a value that is read at each scrape. @param read May be asynchronous; undefined omits the sample */
  gauge(name: string, help: string, labels: Record<string, string>, read: ReadValue): void {
    const existing = this.#reads.get(name)
    if (existing) return void existing.push({ labels, read })
    const reads = [{ labels, read }]
    this.#reads.set(name, reads)
    new Gauge({
      name,
      help,
      labelNames: Object.keys(labels),
      registers: [this.registry],
      async collect() {
        const values = await Promise.all(reads.map((each) => each.read()))
        // Otherwise a value that cannot be read would keep its value of the last scrape.
        this.reset()
        for (const [i, { labels }] of reads.entries()) {
          const value = values[i]
          if (value !== undefined) this.set(labels, value)
        }
      },
    })
  }

  /** Replaces prom-client's metrics of the event loop under the same names. */
  #showLoopDelay(): void {
    const delay = new LoopDelay()
    let delays: ReturnType<LoopDelay['take']> = {}
    for (const statistic of LOOP_DELAYS) {
      const name = `nodejs_eventloop_lag_${statistic}_seconds`
      this.registry.removeSingleMetric(name)
      // The first one that is read takes the statistics for all.
      const read = () => {
        if (statistic === LOOP_DELAYS[0]) delays = delay.take()
        return delays[statistic]
      }
      this.gauge(name, `Delay of the event loop since the last scrape: ${statistic}`, {}, read)
    }
  }

  #counter<Label extends string>(name: string, labelNames: readonly Label[], help: string): Counter<Label> {
    return new Counter({ name, help, labelNames, registers: [this.registry] })
  }

  #histogram<Label extends string>(name: string, labelNames: readonly Label[], help: string): Histogram<Label> {
    return new Histogram({ name, help, labelNames, buckets: SECONDS, registers: [this.registry] })
  }
}
