import type { IncomingHttpHeaders } from 'node:http'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { Budgets } from '#shared/capacity/budgets.ts'
import type { ByteBudget, HeldBytes, Holding, StoredQuota } from '#shared/capacity/byte-budgets.ts'
import type { Pauses } from '#shared/capacity/pauses.ts'
import type { RateLimits } from '#shared/capacity/rate-limits.ts'
import type { SubmitQueue } from '#shared/capacity/semaphore.ts'
import type { Config } from '#shared/config/config.ts'
import type { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import type { Metrics } from '#shared/lib/metrics.ts'
import type { Log } from '#shared/log/log.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { StoreView } from '#shared/store/store.ts'
import type { UsageBatches } from '#shared/usage/usage-batches.ts'
import type { ApiKey, ApiKeys } from './callers/keys.ts'
import type { WireFormat } from './reply/errors.ts'
import type { Reply } from './reply/reply.ts'

export interface IngressContext {
  readonly config: Config
  readonly log: Log
  readonly metrics: Metrics
  readonly jobs: AttachedJobs
  /** Undefined in a deployment without a store. */
  readonly durable: DurableJobs | undefined
  /** For the admin API, like the next two fields. Undefined in a deployment without a store. */
  readonly store: StoreView | undefined
  readonly broker: Pick<Broker, 'name' | 'lag' | 'isReachable' | 'missing' | 'history' | 'submit' | 'send'>
  readonly pauses: Pauses
  /** Aborts when the process drains. Callers that wait for a durable job must then reconnect to another ingress. */
  readonly closing: AbortSignal
  readonly models: ModelCatalogue
  readonly blobs: Blobs
  readonly keys: ApiKeys
  readonly limits: RateLimits
  readonly budgets: Budgets
  /** Writes usage to the ledger in batches; undefined in a deployment without a store. */
  readonly usage: UsageBatches | undefined
  /** Memory budget of this process for request bodies. */
  readonly budget: ByteBudget
  readonly storage: StoredQuota
  /** Fair queue of durable submissions and batch lines, by project. */
  readonly submitQueue: SubmitQueue
}

/** One API call, over HTTP or a WebSocket. Handlers fill {@link facts} for the access log. */
export interface Call {
  readonly method: string
  readonly path: string
  /** Path parameters, by their names in the route. */
  readonly params: Readonly<Record<string, unknown>>
  readonly query: Readonly<Record<string, unknown>>
  /** Headers by lower-case name. On a WebSocket: headers of the upgrade request, except those that concern one call. */
  readonly headers: IncomingHttpHeaders
  readonly requestId: string
  readonly format: WireFormat
  readonly key: ApiKey
  readonly reply: Reply
  /** Fields of the access log and labels of the metrics. */
  readonly facts: CallFacts
  /** Job options in the body instead of headers, by the field names of `POST /v1/jobs`. */
  readonly jobFields: Record<string, unknown>
  /**
   * Advice in error messages for this transport: how to request a durable job (`durable`), and an answer before the
   * result (`async`).
   */
  readonly advice: { readonly durable: string; readonly async: string }
  /**
   * Blobs that were uploaded with the call. All are deleted when the call ends, except those that a durable job needs.
   */
  readonly uploads: Set<string>
  /**
   * Reservation in the quota of stored bytes. Released when the call ends, because a stored row then contains the
   * bytes.
   */
  readonly storage: Holding
  /**
   * Memory reservation of the body. Released when the body is written to a blob, and at the latest when the call ends.
   */
  readonly held: HeldBytes
}

/** Fields of the access log for one call, in addition to its route and status. */
export interface CallFacts {
  /** Status that a failure after the head would have had. Metrics count this status. */
  status?: number
  /** Status that was sent in the head, if it differs from {@link status}. */
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
