import type { IncomingHttpHeaders } from 'node:http'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { ByteBudget, HeldBytes } from '#shared/byte-budget.ts'
import type { Config } from '#shared/config/config.ts'
import type { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import type { Pauses } from '#shared/jobs/pauses.ts'
import type { Holding, StoredQuota } from '#shared/limits/stored-quota.ts'
import type { Log } from '#shared/log/log.ts'
import type { Metrics } from '#shared/metrics.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { StoreView } from '#shared/store/store.ts'
import type { UsageBatches } from '#shared/usage/usage-batches.ts'
import type { SubmitQueue } from './answer/submit-queue.ts'
import type { BatchThrottle } from './batches/batch-throttle.ts'
import type { ApiKey, ApiKeys } from './callers/keys.ts'
import type { Budgets } from './callers/limits/budgets.ts'
import type { ConcurrencyLimits } from './callers/limits/concurrency.ts'
import type { RateLimits } from './callers/limits/limits.ts'
import type { WireFormat } from './reply/errors.ts'
import type { Reply } from './reply/reply.ts'

export interface IngressContext {
  readonly config: Config
  readonly log: Log
  readonly metrics: Metrics
  readonly jobs: AttachedJobs
  /** Undefined in a deployment without a store. */
  readonly durable: DurableJobs | undefined
  /** Used by the admin API, as the next two fields. Undefined in a deployment without a store. */
  readonly store: StoreView | undefined
  readonly broker: Pick<Broker, 'name' | 'lag' | 'isReachable' | 'missing' | 'history' | 'submit' | 'send'>
  readonly pauses: Pauses
  /** Aborts when the process drains. A caller that waits for a durable job must then reconnect to another ingress. */
  readonly closing: AbortSignal
  readonly models: ModelCatalogue
  readonly blobs: Blobs
  readonly keys: ApiKeys
  readonly limits: RateLimits
  readonly concurrency: ConcurrencyLimits
  readonly budgets: Budgets
  /** Batched writer of usage to the ledger; undefined in a deployment without a store. */
  readonly usage: UsageBatches | undefined
  /** Memory budget of this process for request bodies. */
  readonly budget: ByteBudget
  readonly storage: StoredQuota
  /** Fair queue of projects that submit durable jobs. */
  readonly submitQueue: SubmitQueue
  readonly batchThrottle: BatchThrottle
}

/** One API call, over HTTP or a WebSocket. Handlers fill {@link facts} for the access log. */
export interface Call {
  readonly method: string
  readonly path: string
  /** Parameters in the path, as the route names them. */
  readonly params: Readonly<Record<string, unknown>>
  readonly query: Readonly<Record<string, unknown>>
  /** Lower-case names. On a WebSocket: the headers of its upgrade, except those that describe one call. */
  readonly headers: IncomingHttpHeaders
  readonly requestId: string
  readonly format: WireFormat
  readonly key: ApiKey
  readonly reply: Reply
  /** Fields of the access log and labels of the metrics. */
  readonly facts: CallFacts
  /** Job options given in the body instead of headers, by the field names of `POST /v1/jobs`. */
  readonly jobFields: Record<string, unknown>
  /**
   * Advice in error messages: how a caller of this transport requests a job that outlives the call (`durable`), and an
   * answer before its result (`async`).
   */
  readonly advice: { readonly durable: string; readonly async: string }
  /** Blobs uploaded with the call. All are deleted when the call ends, except those that a durable job took over. */
  readonly uploads: Set<string>
  /**
   * Reservation in the quota of stored bytes. Released when the call ends; by then a stored row may count the bytes.
   */
  readonly storage: Holding
  /** Memory held by the body. Released when the body is written to a blob, and at the latest when the call ends. */
  readonly held: HeldBytes
}

/** Facts about a call in the access log, besides its route and status. */
export interface CallFacts {
  /** Status of a failure after the head was sent: the status that the head would have had. Metrics count this one. */
  status?: number
  /** The status that was actually sent, if {@link status} differs. */
  sent_status?: number
  key_id?: string
  project_id?: string
  model?: string
  user_id?: string | undefined
  job_id?: string
  attempts?: number
  queue_ms?: number
  first_output_ms?: number
  input_tokens?: number
  output_tokens?: number
  error_code?: string
}
