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
import type { SubmitTurns } from './answer/submit-turns.ts'
import type { BatchThrottle } from './batches/batch-throttle.ts'
import type { ApiKey, ApiKeys } from './callers/keys.ts'
import type { Budgets } from './callers/limits/budgets.ts'
import type { ConcurrencyLimits } from './callers/limits/concurrency.ts'
import type { RateLimits } from './callers/limits/limits.ts'
import type { WireFormat } from './reply/errors.ts'
import type { Reply } from './reply/reply.ts'

/** What the ingress works with. */
export interface IngressContext {
  readonly config: Config
  readonly log: Log
  readonly metrics: Metrics
  readonly jobs: AttachedJobs
  /** Undefined in a deployment without a store. */
  readonly durable: DurableJobs | undefined
  /** For the operator's door, with the two below; undefined as {@link durable} is. */
  readonly store: StoreView | undefined
  readonly broker: Pick<Broker, 'name' | 'lag' | 'isReachable' | 'missing' | 'history' | 'submit' | 'send'>
  readonly pauses: Pauses
  /** Aborts when the process drains: whoever waits for a durable job goes on elsewhere. */
  readonly closing: AbortSignal
  readonly models: ModelCatalogue
  readonly blobs: Blobs
  readonly keys: ApiKeys
  readonly limits: RateLimits
  readonly places: ConcurrencyLimits
  readonly budgets: Budgets
  /** On its way to the ledger; undefined in a deployment without a store. */
  readonly usage: UsageBatches | undefined
  /** What request bodies may hold of this process's memory. */
  readonly budget: ByteBudget
  /** Quota of stored bytes per project. */
  readonly storage: StoredQuota
  /** Fair queue of projects that submit durable jobs. */
  readonly submits: SubmitTurns
  /** How fast lines of batches become jobs beside calls. */
  readonly pace: BatchThrottle
}

/** One API call on its way through the ingress, whichever way it came. Handlers fill in what the access log tells. */
export interface Call {
  readonly method: string
  readonly path: string
  /** What the row of the endpoint table names in its path. */
  readonly params: Readonly<Record<string, unknown>>
  readonly query: Readonly<Record<string, unknown>>
  /** Lower-case; of a WebSocket: those of its upgrade, but for what is about one call. */
  readonly headers: IncomingHttpHeaders
  readonly requestId: string
  readonly format: WireFormat
  readonly key: ApiKey
  /** Where its answer goes. */
  readonly reply: Reply
  /** For the access log and metrics. */
  readonly facts: CallFacts
  /** What the call says of its job beside headers, by the names that the body of `POST /v1/jobs` has. */
  readonly jobFields: Record<string, unknown>
  /** How a caller of this way asks for a job that outlives the call, and for an answer before its result. */
  readonly advice: { readonly durable: string; readonly async: string }
  /** Blobs that were uploaded with the call: deleted when it ends, but for those that a durable job took over. */
  readonly uploads: Set<string>
  /** Reservation in the quota of stored bytes: released when the call ends, unless a row counts the bytes by then. */
  readonly storage: Holding
  /** What its body holds of the memory: given back when the body lies in a blob, at the latest when the call ends. */
  readonly held: HeldBytes
}

/** What the access log says about a call beside its route and status. */
export interface CallFacts {
  /** Of a failure that came after the head: the status it would have had, and counts as. */
  status?: number
  /** The status that was sent then. */
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
