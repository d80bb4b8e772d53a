/*
 * Prometheus metrics of this process.
 *
 * The problem: labels such as `project` and `model` may have thousands of values. A scrape must still be small, and must not block the event loop.
 *
 * How it works: a counter has at most 200 label sets, a histogram 40. Later sets are counted with `other` as the project, model and server. A gauge
 * exports its 200 largest rows, and the sum of the rest under `other` (the maximum for a duration or a timestamp). The text is written in pieces,
 * with an event-loop yield in between.
 */

import { setImmediate as nextTurn } from 'node:timers/promises'
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { LOOP_DELAYS, LoopDelay } from './loop-delay.ts'

/** Maximum number of label sets per metric. The maximum of a histogram is lower, because it has 20 lines per set. */
const SETS_MAX = { counter: 200, histogram: 40, rows: 200 }
/** Labels with possibly thousands of values. Beyond the maximum number of label sets, their values are replaced by {@link OTHER}. */
const UNBOUNDED_LABELS = ['project', 'model', 'server', 'resource']
const OTHER = 'other'
/** Maximum time between event-loop yields while the metrics are written, in ms. */
const WRITE_MS_MAX = 10
/** Maximum wait for the value of a gauge, in ms. Even if several gauges wait, a scrape then ends before its usual timeout of 10 s. */
const READ_MS_MAX = 2_000
const NANOS = 1e9
const OPEN_METRICS = 'application/openmetrics-text'

const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]

/**
 * Interval in ms of prom-client's own event-loop measurement. This interval of 24 days turns the measurement off, because it would wake an idle
 * process.
 */
const NEVER_MS = 2 ** 31 - 1

/**
 * Values that are read at each scrape. A name that ends in `_total` is a counter. docs/reference/metrics.md is generated from this
 * table and from the fields of {@link Metrics}.
 */
export const GAUGES = {
  sluice_attached_jobs: gauge('Calls in this ingress, by state (`queued`, `running`)', 'pool', 'state'),
  sluice_waiting_calls: gauge('Calls in this ingress that wait for capacity of their model', 'pool', 'model'),
  sluice_calls_oldest_seconds: gauge('Age of the oldest call in this ingress that has not started', 'pool', 'model'),
  sluice_project_calls: gauge('Calls in this ingress, by project and state (`queued`, `running`)', 'project', 'state'),
  sluice_project_oldest_seconds: gauge(
    'Age of the oldest call of the project in this ingress that has not started',
    'project',
  ),
  sluice_fleet_calls: gauge(
    'Calls of all ingresses, by state (`queued`, `running`). Each ingress reports the whole fleet: aggregate with max',
    'pool',
    'state',
  ),
  sluice_queue_empty_seconds: gauge(
    'Estimated time until all waiting calls and durable jobs of the pool have started, at the measured rate. Missing if no worker runs',
    'pool',
  ),
  sluice_workers_wanted: gauge(
    'Number of workers that the pool needs, for an autoscaler. Each ingress reports the whole fleet: aggregate with max',
    'pool',
  ),
  sluice_server_replicas_wanted: gauge(
    'Number of upstream servers that the model needs, for an autoscaler. Each ingress reports the whole fleet: aggregate with max',
    'model',
  ),
  sluice_workers: gauge(
    'Workers of the pool, by state (`alive`, `suspected`, `draining`). Each ingress reports the whole fleet: aggregate with max',
    'pool',
    'state',
  ),
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
  sluice_jobs_unpublished: gauge(
    'Queued durable jobs of the pool that have neither a record in the queue nor a worker that claims them. Published again within 30 s',
    'pool',
  ),
  sluice_webhooks_pending: gauge(
    'Webhook messages that are not delivered yet, at most 4,000. Each scheduler reports all messages',
  ),
  sluice_webhooks_oldest_seconds: gauge('Age of the oldest webhook message that is not delivered yet'),
  sluice_pool_running: gauge('Attempts in progress on this worker', 'pool'),
  sluice_pool_slots: gauge('Slots of this worker: its maximum number of concurrent attempts', 'pool'),
  sluice_worker_parked_calls: gauge(
    'Calls that this worker holds without a slot, because their model is at its concurrency limit',
    'pool',
  ),
  sluice_worker_requeued_total: gauge(
    'Calls that this worker put back into the queue, because the worker lacks their model or has no capacity for the model',
    'pool',
  ),
  sluice_queue_unacked_records: gauge('Records in the queue of the pool that no worker has acknowledged', 'pool'),
  sluice_sandbox_interpreters: gauge('Sandbox interpreters of this worker, by state (`idle`, `busy`)', 'state'),
  sluice_server_circuit_open: gauge(
    '1 while the circuit breaker of the server rejects calls of this worker (`server`: index in `base_urls`)',
    'model',
    'server',
  ),
  sluice_server_concurrency_limit: gauge(
    'Maximum concurrent calls of this worker to the server: its part of the limit of the server, which all workers measure together. At most the slots of the worker',
    'model',
    'server',
  ),
  sluice_server_running: gauge(
    'Calls of this worker at the server. Near the limit, the server is saturated',
    'model',
    'server',
  ),
  sluice_dependency_up: gauge(
    '1 if the dependency (`kafka`, `postgres`, `s3`) answered this process within 2 s, else 0',
    'dependency',
  ),
  sluice_dependency_latency_seconds: gauge('Time of the last check of the dependency', 'dependency'),
  sluice_prepared_ratio: gauge('Progress of a download or build, from 0 to 1', 'resource'),
  sluice_model_config_invalid: gauge(
    '1 while the changed models file is invalid, so that the previous version stays in use',
  ),
  sluice_trace_spans_dropped_total: gauge(
    'Spans that were dropped, because the queue was full or the collector did not accept the spans',
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
type LabelsOf<Name extends GaugeName> = Readonly<Record<(typeof GAUGES)[Name]['labels'][number], string>>
type Row<Labels = Readonly<Record<string, string>>> = readonly [labels: Labels, value: number]
type ReadRows<Labels = Readonly<Record<string, string>>> = () => Promise<Iterable<Row<Labels>>> | Iterable<Row<Labels>>

export class Metrics {
  readonly registry = new Registry()
  readonly #reads = new Map<string, ReadRows[]>()

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
    ['pool', 'model'],
    'Time from the acceptance of a call to its first start. If there are too few workers, then this time grows first',
  )
  readonly firstOutputSeconds = this.#histogram(
    'sluice_job_first_output_seconds',
    ['pool', 'model', 'stream'],
    'Time from acceptance to the first output. For calls with `stream="true"`, the time to the first token; for others, the time of the whole answer',
  )
  readonly outputTokenSeconds = this.#histogram(
    'sluice_job_output_token_seconds',
    ['pool', 'model'],
    'Time per output token of a completed call, from its first output to its end',
  )
  readonly refusals = this.#counter(
    'sluice_refusals_total',
    ['reason'],
    'Calls that were refused or failed for lack of capacity, by reason ([reasons](../operate/monitoring.md#reasons-of-a-refusal))',
  )
  readonly projectRequests = this.#counter(
    'sluice_project_requests_total',
    ['project', 'outcome'],
    'Calls of a project, by outcome (`ok`, `client_error`, `refused`, `failed`, `aborted`)',
  )
  readonly projectTokens = this.#counter(
    'sluice_project_tokens_total',
    ['project', 'direction'],
    'Tokens of calls of a project, by direction (`input`, `output`)',
  )
  readonly cost = this.#counter('sluice_cost_usd_total', ['model', 'project'], 'Cost of calls in US dollars')
  readonly workersLost = this.#counter(
    'sluice_workers_lost_total',
    ['pool'],
    'Workers that stopped without notice. Each ingress counts all lost workers: aggregate with max',
  )
  readonly deadLetters = this.#counter(
    'sluice_dead_letters_total',
    ['pool'],
    'Records that this worker could not read, and stored as dead letters',
  )
  readonly jobs = this.#counter('sluice_jobs_total', ['pool', 'outcome', 'code'], 'Ended calls by outcome and code')
  readonly retries = this.#counter('sluice_job_retries_total', ['pool', 'reason'], 'Retries, by reason')
  readonly attempts = this.#counter(
    'sluice_attempts_total',
    ['pool', 'model', 'outcome'],
    'Attempts of this worker, by outcome',
  )
  readonly attemptSeconds = this.#histogram(
    'sluice_attempt_duration_seconds',
    ['pool', 'model'],
    'Run time of an attempt on this worker, without the time in the queue',
  )
  readonly tokens = this.#counter(
    'sluice_tokens_total',
    ['model', 'direction'],
    'Tokens, by direction (`input`, `cached_input`, `output`). Cached tokens are a part of the input',
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
    'Durable jobs that the scheduler requeued or ended because their worker was lost, by outcome',
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

  /** Registers a value that is read at each scrape. `read` may be asynchronous, or return undefined to omit the sample. */
  gauge<Name extends GaugeName>(name: Name, labels: LabelsOf<Name>, read: ReadValue): void {
    this.#gauge(name, labels, read)
  }

  /** Registers values that are read at each scrape, each with its labels. Rows beyond the maximum are combined under `other`. */
  rows<Name extends GaugeName>(name: Name, read: ReadRows<LabelsOf<Name>>): void {
    this.#rows(name, GAUGES[name].help, GAUGES[name].labels, read as ReadRows)
  }

  /** Counts tokens and cost of a call or job that has ended. */
  addUsage(entry: {
    readonly project: string
    readonly model: string
    readonly inputTokens: number
    readonly cachedInputTokens: number
    readonly outputTokens: number
    readonly costNanos: number
  }): void {
    const { project, model, inputTokens, cachedInputTokens, outputTokens, costNanos } = entry
    if (inputTokens + outputTokens > 0) {
      this.tokens.inc({ model, direction: 'input' }, inputTokens)
      this.tokens.inc({ model, direction: 'cached_input' }, cachedInputTokens)
      this.tokens.inc({ model, direction: 'output' }, outputTokens)
      this.projectTokens.inc({ project, direction: 'input' }, inputTokens)
      this.projectTokens.inc({ project, direction: 'output' }, outputTokens)
    }
    if (costNanos > 0) this.cost.inc({ project, model }, costNanos / NANOS)
  }

  /**
   * Returns the text of a scrape, with yields to the event loop.
   *
   * @param accept The request's `Accept`. OpenMetrics, which has exemplars, is returned if the header contains it.
   */
  async text(accept = ''): Promise<{ readonly type: string; readonly text: string }> {
    const isOpen = accept.includes(OPEN_METRICS)
    const writer = isOpen ? openRegistry() : (this.registry as unknown as Writer)
    const names = isOpen ? new Set(this.registry.getMetricsAsArray().map(({ name }) => name)) : undefined
    const parts: string[] = []
    let writtenAt = performance.now()
    for (const metric of this.registry.getMetricsAsArray() as unknown as Readable[]) {
      const one = { get: async () => openNameOf(await (metric.getForPromString?.() ?? metric.get()), names) }
      parts.push(await writer.getMetricsAsString(one))
      if (performance.now() - writtenAt < WRITE_MS_MAX) continue
      await nextTurn()
      writtenAt = performance.now()
    }
    const end = isOpen ? '\n# EOF\n' : '\n'
    return { type: writer.contentType, text: parts.join('\n') + end }
  }

  #gauge(name: string, labels: Readonly<Record<string, string>>, read: ReadValue, help = helpOf(name)): void {
    const rows = async (): Promise<Row[]> => {
      const value = await read()
      return value === undefined ? [] : [[labels, value]]
    }
    this.#rows(name, help, Object.keys(labels), rows)
  }

  #rows(name: string, help: string, labelNames: readonly string[], read: ReadRows): void {
    const existing = this.#reads.get(name)
    if (existing) return void existing.push(read)
    const reads = [read]
    this.#reads.set(name, reads)
    const Type = name.endsWith('_total') ? Counter : Gauge
    new Type({
      name,
      help,
      labelNames,
      registers: [this.registry],
      async collect() {
        const found = await Promise.all(reads.map((each) => limited(each())))
        const rows = boundedRows(
          found.flatMap((each) => [...each]),
          isMaximum(name) ? Math.max : (a, b) => a + b,
        )
        // The rows of the last scrape are removed first. If a row cannot be read now, then it is missing instead of having its old value.
        this.reset()
        for (const [labels, value] of rows) {
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
      // Reading the statistics resets them. The first gauge of a scrape therefore reads them for all gauges, so that all values cover the same
      // period.
      const read = () => {
        if (statistic === LOOP_DELAYS[0]) delays = delay.take()
        return delays[statistic]
      }
      this.#gauge(name, {}, read, `Delay of the event loop since the last scrape: ${statistic}`)
    }
  }

  #counter<Label extends string>(name: string, labelNames: readonly Label[], help: string): BoundedCounter<Label> {
    return new BoundedCounter(new Counter({ name, help, labelNames, registers: [this.registry] }))
  }

  #histogram<Label extends string>(name: string, labelNames: readonly Label[], help: string): BoundedHistogram<Label> {
    // The histogram is registered after its construction. The constructor would refuse to add a histogram with exemplars to this registry. The
    // registry has the text format of Prometheus, which has no exemplars.
    const histogram = new Histogram({ name, help, labelNames, buckets: SECONDS, enableExemplars: true, registers: [] })
    this.registry.registerMetric(histogram)
    return new BoundedHistogram(histogram)
  }
}

interface Readable {
  get(): Promise<Sample>
  getForPromString?(): Promise<Sample>
}

interface Sample {
  readonly name: string
  readonly type: unknown
}

/** Members of prom-client's registry that its types lack. */
interface Writer {
  readonly contentType: string
  getMetricsAsString(metric: { get(): Promise<Sample> }): Promise<string>
}

function openRegistry(): Writer {
  const registry: Registry<typeof Registry.OPENMETRICS_CONTENT_TYPE> = new Registry()
  registry.setContentType(Registry.OPENMETRICS_CONTENT_TYPE)
  return registry as unknown as Writer
}

/**
 * Returns the sample of a counter under its OpenMetrics name, which lacks the suffix `_total`. In OpenMetrics, only the lines with values have this
 * suffix. If another metric already has that name, then the suffix stays, and the metric has the type `unknown`.
 */
function openNameOf(sample: Sample, names: ReadonlySet<string> | undefined): Sample {
  if (!names || sample.type !== 'counter') return sample
  const name = sample.name.replace(/_total$/, '')
  return names.has(name) ? { ...sample, type: 'unknown' } : { ...sample, name }
}

/** Waits for the rows of a gauge. Returns no rows after {@link READ_MS_MAX}, so that an unreachable dependency does not delay the whole scrape. */
function limited(rows: ReturnType<ReadRows>): ReturnType<ReadRows> {
  if (!(rows instanceof Promise)) return rows
  let timer: NodeJS.Timeout | undefined
  const none = new Promise<Iterable<Row>>((resolve) => {
    timer = setTimeout(resolve, READ_MS_MAX, [])
    timer.unref()
  })
  return Promise.race([rows, none]).finally(() => clearTimeout(timer))
}

function helpOf(name: string): string {
  return GAUGES[name as GaugeName].help
}

function isMaximum(name: string): boolean {
  return name.endsWith('_seconds') || name.endsWith('_up') || name.endsWith('_ratio')
}

/** Returns the largest rows, and one row with the label `other` that combines all remaining rows. */
function boundedRows(rows: readonly Row[], combine: (one: number, other: number) => number): readonly Row[] {
  if (rows.length <= SETS_MAX.rows) return rows
  const sorted = rows.toSorted(([, one], [, other]) => other - one)
  const rest = new Map<string, Row>()
  for (const [labels, value] of sorted.slice(SETS_MAX.rows)) {
    const combined = withOther(labels)
    const key = Object.values(combined).join(' ')
    rest.set(key, [combined, combine(rest.get(key)?.[1] ?? 0, value)])
  }
  return [...sorted.slice(0, SETS_MAX.rows), ...rest.values()]
}

function withOther<Label extends string>(labels: Readonly<Record<Label, string>>): Record<Label, string> {
  const combined: Record<string, string> = { ...labels }
  for (const label of UNBOUNDED_LABELS) if (label in combined && combined[label] !== '') combined[label] = OTHER
  return combined as Record<Label, string>
}

/** Limits the label sets of a metric. After the maximum, the {@link UNBOUNDED_LABELS} of each new set have the value `other`. */
class LabelSets<Label extends string> {
  readonly #known = new Set<string>()
  readonly #max: number

  constructor(max: number) {
    this.#max = max
  }

  of(labels: Readonly<Record<Label, string>>): Record<Label, string> {
    const key = Object.values(labels).join('\n')
    if (this.#known.has(key)) return labels
    if (this.#known.size >= this.#max) return withOther(labels)
    this.#known.add(key)
    return labels
  }
}

class BoundedCounter<Label extends string> {
  readonly #counter: Counter<Label>
  readonly #sets = new LabelSets<Label>(SETS_MAX.counter)

  constructor(counter: Counter<Label>) {
    this.#counter = counter
  }

  inc(labels: Readonly<Record<Label, string>>, value = 1): void {
    this.#counter.inc(this.#sets.of(labels), value)
  }
}

class BoundedHistogram<Label extends string> {
  readonly #histogram: Histogram<Label>
  readonly #sets = new LabelSets<Label>(SETS_MAX.histogram)

  constructor(histogram: Histogram<Label>) {
    this.#histogram = histogram
  }

  /** @param traceId Trace id of the call, which becomes the exemplar of the bucket in OpenMetrics */
  observe(labels: Readonly<Record<Label, string>>, value: number, traceId?: string | null): void {
    const exemplar = traceId ? { exemplarLabels: { trace_id: traceId } } : {}
    this.#histogram.observe({ labels: this.#sets.of(labels), value, ...exemplar } as never)
  }
}
