import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'

const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]

type ReadValue = () => Promise<number | undefined> | number | undefined

/** The metrics of one process, for Prometheus. Names end in their unit. */
export class Metrics {
  readonly registry = new Registry()

  readonly requests = new Counter({
    name: 'sluice_http_requests_total',
    help: 'HTTP requests by route, status and model',
    labelNames: ['route', 'status', 'model'] as const,
    registers: [this.registry],
  })
  readonly requestSeconds = new Histogram({
    name: 'sluice_http_request_duration_seconds',
    help: 'From the request head to the last byte of the response',
    labelNames: ['route', 'model'] as const,
    buckets: SECONDS,
    registers: [this.registry],
  })
  readonly queueSeconds = new Histogram({
    name: 'sluice_job_queue_seconds',
    help: 'From acceptance to the first started, per job',
    labelNames: ['pool'] as const,
    buckets: SECONDS,
    registers: [this.registry],
  })
  readonly firstOutputSeconds = new Histogram({
    name: 'sluice_job_first_output_seconds',
    help: 'From acceptance to the first output (time to first token), per job',
    labelNames: ['pool', 'model'] as const,
    buckets: SECONDS,
    registers: [this.registry],
  })
  readonly jobs = new Counter({
    name: 'sluice_jobs_total',
    help: 'Jobs by how they ended, as their arbiter decided',
    labelNames: ['pool', 'end', 'code'] as const,
    registers: [this.registry],
  })
  readonly retries = new Counter({
    name: 'sluice_job_retries_total',
    help: 'Further attempts, by why',
    labelNames: ['pool', 'reason'] as const,
    registers: [this.registry],
  })
  readonly attempts = new Counter({
    name: 'sluice_attempts_total',
    help: 'Attempts this worker ran, by how they ended',
    labelNames: ['pool', 'end'] as const,
    registers: [this.registry],
  })
  readonly attemptSeconds = new Histogram({
    name: 'sluice_attempt_duration_seconds',
    help: 'Run time of attempts on this worker',
    labelNames: ['pool', 'model'] as const,
    buckets: SECONDS,
    registers: [this.registry],
  })
  readonly tokens = new Counter({
    name: 'sluice_tokens_total',
    help: 'Tokens by model and direction (input, output)',
    labelNames: ['model', 'direction'] as const,
    registers: [this.registry],
  })
  readonly sandboxRuns = new Counter({
    name: 'sluice_sandbox_runs_total',
    help: 'Runs of code by how they ended (ok, error, violations, timeout, killed, cancelled, failed)',
    labelNames: ['sandbox', 'end'] as const,
    registers: [this.registry],
  })
  readonly sandboxSeconds = new Histogram({
    name: 'sluice_sandbox_run_duration_seconds',
    help: 'Run time of code in the sandbox, without the queue',
    labelNames: ['sandbox'] as const,
    buckets: SECONDS,
    registers: [this.registry],
  })
  readonly reaped = new Counter({
    name: 'sluice_jobs_reaped_total',
    help: 'Durable jobs taken from lost or silent workers, by what became of them',
    labelNames: ['pool', 'end'] as const,
    registers: [this.registry],
  })
  readonly republished = new Counter({
    name: 'sluice_jobs_republished_total',
    help: 'Queued jobs published again because the broker seemed to have lost them',
    labelNames: ['pool'] as const,
    registers: [this.registry],
  })
  readonly expired = new Counter({
    name: 'sluice_jobs_expired_total',
    help: 'Durable jobs that waited past their time',
    labelNames: ['pool'] as const,
    registers: [this.registry],
  })
  readonly webhooks = new Counter({
    name: 'sluice_webhooks_total',
    help: 'Tries to deliver webhook messages, by how they ended (delivered, retried, failed)',
    labelNames: ['end'] as const,
    registers: [this.registry],
  })

  constructor() {
    collectDefaultMetrics({ register: this.registry })
  }

  /** A value read at each scrape. @param read May be asynchronous; undefined leaves the sample out. */
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
        // Or the value of the last scrape would stand for one that cannot be read.
        this.reset()
        for (const [i, { labels }] of reads.entries()) {
          const value = values[i]
          if (value !== undefined) this.set(labels, value)
        }
      },
    })
  }

  readonly #reads = new Map<string, { labels: Record<string, string>; read: ReadValue }[]>()
}
