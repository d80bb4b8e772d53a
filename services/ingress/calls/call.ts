/*
 * One API call: the interfaces between its transport (HTTP or a WebSocket), its endpoint and its answer.
 *
 * 1. `http/` or `ws/` makes a `Call` of the request: key, headers, `Reply`, and the reservations that end with the call.
 * 2. The `JobEndpoint` validates the body, and returns a `PreparedCall` in the internal form of its kind.
 * 3. `answer.ts` submits the call as a job, and `sendStream` or `sendBytes` sends the output. Further events are read only after the previous events
 *    were sent. If the caller reads slowly, then the buffer of the job fills, which pauses the worker.
 * 4. Handlers throw failures, before or after output. The code that called the handler passes a failure to `Reply.end`, which sends the error and
 *    updates the access log and the metrics.
 */

import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import type { z } from 'zod'
import type { FailedAttempt, FormatName } from '#schemas/admin/requests.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { EncodeContext, SharedHistory } from '#schemas/job.ts'
import type { WireFormat } from '#services/ingress/body/body.ts'
import type { ApiKeys } from '#services/ingress/callers/keys.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { Budgets } from '#shared/capacity/budgets.ts'
import type { ByteBudget, HeldBytes, Holding, StoredQuota } from '#shared/capacity/byte-budgets.ts'
import type { Pauses, SubmitQueue } from '#shared/capacity/capacity.ts'
import type { RateLimits } from '#shared/capacity/rate-limits.ts'
import type { Config } from '#shared/config/config.ts'
import type { Conversations } from '#shared/engines/upstream/conversations.ts'
import type { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { jsonTextSoon } from '#shared/json/write.ts'
import type { ApiKey } from '#shared/keys/keys.ts'
import type { AnswerStream, Frame } from '#shared/kinds/answer.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import type { ServiceError } from '#shared/lib/error.ts'
import type { Metrics } from '#shared/lib/metrics.ts'
import type { Log } from '#shared/log/log.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { RequestBodies } from '#shared/store/requests.ts'
import type { StoreView } from '#shared/store/store.ts'
import type { HistoryRecorder } from '#shared/usage/history.ts'
import type { Batches, RequestBatches } from '#shared/usage/request-log.ts'
import type { UsageBatches } from '#shared/usage/usage.ts'

export interface IngressContext {
  readonly config: Config
  readonly log: Log
  readonly metrics: Metrics
  readonly jobs: AttachedJobs
  readonly durable: DurableJobs | undefined
  /** The job store, used by the admin API. Undefined in a deployment without a store. */
  readonly store: StoreView | undefined
  readonly broker: Pick<Broker, 'name' | 'lag' | 'isReachable' | 'missing' | 'history' | 'submit' | 'send'>
  readonly pauses: Pauses
  /**
   * Aborts when the process drains. Callers that wait for a durable job are then disconnected, so that they reconnect
   * to another ingress.
   */
  readonly closing: AbortSignal
  readonly models: ModelCatalogue
  readonly conversations: Conversations
  /** Endpoints whose calls become jobs, including the endpoints of extensions. */
  readonly endpoints: readonly JobEndpoint[]
  readonly blobs: Blobs
  readonly keys: ApiKeys
  readonly limits: RateLimits
  readonly budgets: Budgets
  readonly usage: UsageBatches | undefined
  /** Undefined if the request log is off. */
  readonly requests: RequestBatches | undefined
  /** Undefined if the request log is off. */
  readonly bodies: Batches<RequestBodies> | undefined
  readonly history: HistoryRecorder | undefined
  readonly budget: ByteBudget
  readonly storage: StoredQuota
  readonly submitQueue: SubmitQueue
}

/** One call of an endpoint. Handlers fill {@link facts} for the access log. */
export interface Call {
  readonly method: string
  readonly path: string
  readonly params: Readonly<Record<string, unknown>>
  readonly query: Readonly<Record<string, unknown>>
  /**
   * Headers by lower-case name. A call over a WebSocket has the headers of the upgrade request, except those for a
   * single call, such as Idempotency-Key.
   */
  readonly headers: IncomingHttpHeaders
  readonly requestId: string
  /** Trace context for the job of the call (W3C Trace Context). */
  readonly traceparent: string | undefined
  readonly format: WireFormat
  readonly key: ApiKey
  readonly reply: Reply
  readonly facts: CallFacts
  /** Job options from the body instead of headers, under the field names of `POST /v1/jobs`. */
  readonly jobFields: Record<string, unknown>
  /**
   * Sentences for error messages, which depend on the transport. `durable` explains how to request a durable job.
   * `async` explains how to get the id of the job at once, without waiting for the result.
   */
  readonly advice: { readonly durable: string; readonly async: string }
  /**
   * Keys of the blobs that were uploaded with the call. When the call ends, all of them are deleted except those that
   * belong to a durable job.
   */
  readonly uploads: Set<string>
  /**
   * Reservation in the project's quota of stored bytes. Released when the call ends, because the stored row of a job or
   * file counts the bytes from then on.
   */
  readonly storage: Holding
  /**
   * Memory reservation of the body. Released when the body is written to a blob, and at the latest when the call ends.
   */
  readonly held: HeldBytes
}

export interface CallFacts {
  /**
   * Status of a failure after the head of the answer was sent. Metrics count this status instead of the sent status.
   */
  status?: number
  /** Status in the head of the answer, if it differs from {@link status}. */
  sent_status?: number
  key_id?: string
  project_id?: string
  model?: string
  user_id?: string | undefined
  job_id?: string
  /** True if the call created a durable job. The request log then has a row of the job instead of the call. */
  job_created?: boolean
  worker?: string
  server?: string
  attempts?: number
  /**
   * Failed attempts for the request log. The access log does not contain these attempts, because the messages of upstream servers
   * may quote prompts.
   */
  failed_attempts?: readonly FailedAttempt[]
  /** Output limit of the model, if the caller requested more tokens. */
  max_tokens?: number
  /** Body fields that the API does not define, separated by commas, in bounded length. */
  unknown_parameters?: string
  /** Requested format that the answer does not have. */
  format_ignored?: FormatName
  queue_ms?: number
  first_output_ms?: number
  input_tokens?: number
  cached_input_tokens?: number
  output_tokens?: number
  /** Cost in billionths of a US dollar. */
  cost_nanos?: number
  error_code?: string
  /** Reason for which the call was refused, or failed for lack of capacity. */
  refusal?: string | undefined
}

export type Caller = Pick<Call, 'key' | 'headers'>

export interface PreparedCall {
  readonly model: string
  readonly named?: string | undefined
  /**
   * Body in the internal form of the kind (`schemas/kinds/`), which is independent of the API. After a job was created from
   * the body, {@link takeBody} removes it, so that the memory can be freed.
   */
  body: unknown
  /** Id of the caller's end user, whose calls have their own rate limit. */
  readonly userId?: string | undefined
  readonly attachments?: readonly string[]
  /**
   * Stored segments (blobs of earlier turns of a conversation) with which the prompt begins. A durable job stores references to
   * these segments instead of a copy.
   */
  readonly history?: SharedHistory | undefined
  readonly stream: boolean
  /**
   * True if the answer is plain text. Keep-alives are then not written, because their characters would become part of
   * the text.
   */
  readonly isText?: boolean
  /**
   * True if the bytes of an answer are sent while they are generated. Only for an attached job, because a durable job
   * stores the whole answer first.
   */
  readonly isBytes?: boolean
  readonly timeoutMs: number
  /**
   * Grace period in ms for a partial result after a cancel. Only for composed jobs, such as deep research. If undefined,
   * then a cancel ends the job at once.
   */
  readonly partialMs?: number
  readonly answerBytesMax?: number
  readonly encode?: Partial<EncodeContext>
  readonly metadata?: Record<string, string> | undefined
  /**
   * Called when the durable job is stored, before its id is sent.
   *
   * @throws ServiceError to cancel the job
   */
  readonly onCreated?: (job: DurableJob) => Promise<void>
}

/**
 * How an endpoint answers calls that become durable jobs. Calls with `Prefer: respond-async` receive the job object
 * instead.
 */
export interface StoredAnswers {
  accepted(context: IngressContext, call: Call, job: DurableJob): Promise<void>
  formatted(result: unknown, encode: Partial<EncodeContext>): unknown
  stream(context: IngressContext, call: Call, job: DurableJob, isBackground: boolean): Promise<void>
}

type NamedSchemas = Readonly<Record<string, z.ZodType>>

/** Entry of an endpoint in the API reference. The key of a schema is the name of its component in the OpenAPI document. */
export interface EndpointReference {
  readonly id: string
  readonly tag: 'Chat' | 'Responses' | 'Embeddings' | 'Audio' | 'Tools' | 'Extensions'
  /** Summary as an imperative without a full stop, such as "Create a batch". */
  readonly summary: string
  readonly description?: string
  /** Page of the guide, optionally with an anchor: `embeddings#reranking`. */
  readonly guide?: string
  readonly headers?: readonly 'anthropic-version'[]
  readonly form?: 'multipart/form-data'
  readonly body: NamedSchemas
  readonly answer: {
    readonly description: string
    readonly json: NamedSchemas
    readonly media?: readonly string[]
    /** Schema of each `data:` line of a stream. Null if events have several schemas, and undefined if the answer is never streamed. */
    readonly events?: NamedSchemas | null
  }
}

/**
 * An endpoint whose calls become jobs. The routes, the API reference, docs/reference/endpoints.md and the console are derived from these records.
 * Jobs, batches and WebSockets accept the calls of each endpoint.
 */
export interface JobEndpoint {
  readonly path: string
  /** Loads the schemas of the answer. The schemas need 3 MiB of memory, so they are loaded only when the API reference is requested. */
  describe(): Promise<EndpointReference>
  readonly format: WireFormat
  readonly kind: Kind
  /**
   * Body fields that the API defines. The header `x-unknown-parameters` of the answer names all other fields of a body. Undefined if the
   * endpoint refuses other fields.
   */
  readonly fields?: object
  /**
   * True if every call becomes a durable job. If the caller waits for the answer, then closing the connection still
   * cancels the job.
   */
  readonly isDurable?: boolean
  /** Whether this call becomes a durable job. The body is not validated yet, so it may have any shape. */
  isStored?(context: IngressContext, body: unknown, caller: Caller): boolean
  /**
   * Form of the answers of durable jobs. Default: the job object, or the recorded events if the caller requests a
   * stream.
   */
  readonly stored?: StoredAnswers
  /**
   * Checks that a caller may use a model for this endpoint. Default: any model of the kind's pool.
   *
   * @throws The errors of `getModel`
   */
  requireModel?(context: IngressContext, caller: Caller, model: string): void
  /** Whether the answer to this body can be streamed. Such an answer is streamed by default over a WebSocket. */
  canStream?(body: Record<string, unknown>): boolean
  readBody?(context: IngressContext, call: Call, req: IncomingMessage): Promise<unknown>
  prepare(context: IngressContext, caller: Caller, body: unknown): PreparedCall | Promise<PreparedCall>
}

export type ReplyForm = 'json' | 'text' | 'stream' | 'events'

export type Outcome =
  | { readonly type: 'completed' }
  | {
      readonly type: 'failed'
      readonly thrown: unknown
      /**
       * Error format in which a failure is stored as the result of the job. Set if a repeated request must receive the
       * stored failure.
       */
      readonly keptAs?: WireFormat
    }

export interface Reply {
  /**
   * Aborts when the answer is no longer needed, because the caller disconnected or cancelled, or its key was revoked.
   * If the key was revoked, then {@link refusal} is the reason.
   */
  readonly disconnected: AbortSignal
  /** Error of a caller whose key was revoked, was deleted or expired after the start of the call. */
  readonly refusal: ServiceError | undefined
  /**
   * Aborts when {@link disconnected} aborts, and also when this process drains. Waits for a durable job use this signal,
   * because the job continues without the caller.
   */
  readonly disconnectedOrDraining: AbortSignal
  readonly isDisconnected: boolean
  /** Sets a header of the answer. Without effect after the head was sent, as for a call that ran so long that keep-alives were sent. */
  setHeader(name: string, value: string): void
  /**
   * Sets the job that runs the call.
   *
   * @param cancel Requests the cancellation of a durable job, which may continue after the call. Undefined for an
   * attached job, which is cancelled when {@link disconnected} aborts
   */
  accepted(jobId: string, cancel?: () => void): void
  /**
   * Sets the form of the answer, so that keep-alives can be sent while the caller waits.
   *
   * @param failed Returns the error frame of a stream that fails after its head. Default: the frame of the API format
   * @param waitsFor Returns the reason of a wait before the first output, which a stream sends as a comment; see {@link
   * StreamOptions}
   */
  open(form: ReplyForm, failed?: (error: ServiceError) => Frame, waitsFor?: () => string | undefined): void
  /**
   * Sends frames of a stream. The result is a promise only if the send buffer is full, because one promise per token
   * would cost more than the token's encoding.
   *
   * @param isOutput If false, then the frames are delayed until the first output. The call can then still fail with an
   * HTTP error
   * @throws ServiceError `slow_reader`, through the promise
   */
  frames(frames: readonly Frame[], isOutput?: boolean): Promise<void> | undefined
  whole(value: unknown, status?: number): Promise<void>
  /**
   * Sends bytes while they are read. If no length is given, then the answer ends with the source. The source is always
   * read to its end or destroyed.
   *
   * @throws ServiceError `slow_reader` if the caller does not read the answer in time
   */
  bytes(source: Readable, head: { readonly type: string; readonly length?: number }): Promise<void>
  /** Ends the call, writes its log line and updates the metrics. Further calls of this method have no effect. */
  end(outcome: Outcome): void
}

export const COMPLETED: Outcome = { type: 'completed' }

export interface Output {
  readonly firstOutputAtMs: number | undefined
  /**
   * Waits for events and returns them. Undefined after the last event.
   *
   * @throws ServiceError if the job failed
   */
  next(): Promise<unknown[] | undefined>
}

interface StreamOptions {
  readonly onEvent?: (event: unknown) => void
  /** Reason why the job waits, such as its queue position. Undefined if the job runs. Called once per second before the first output. */
  readonly waitsFor?: () => string | undefined
}

export async function sendStream(
  reply: Reply,
  output: Output,
  stream: AnswerStream,
  { onEvent = () => {}, waitsFor }: StreamOptions = {},
): Promise<void> {
  reply.open('stream', stream.failed?.bind(stream), waitsFor)
  for (;;) {
    const events = await output.next()
    if (reply.isDisconnected) return
    if (!events) break
    const frames: Frame[] = []
    for (const event of events) {
      onEvent(event)
      for (const frame of stream.push(event)) frames.push(frame)
    }
    // Frames before the first output, such as the start of a message, are delayed. Until the first output, a failure of
    // the attempt can still be reported as an HTTP error.
    const drained = sendFrames(reply, frames, output.firstOutputAtMs !== undefined)
    if (drained) await drained
  }
  await sendFrames(reply, stream.end())
}

export function sendFrames(reply: Reply, frames: readonly Frame[], isOutput = true): Promise<void> | undefined {
  return frames.some(({ value }) => value !== undefined)
    ? sendOneByOne(reply, frames, isOutput)
    : reply.frames(frames, isOutput)
}

async function sendOneByOne(reply: Reply, frames: readonly Frame[], isOutput: boolean): Promise<void> {
  for (const frame of frames) {
    if (reply.isDisconnected) return
    const { id, event, value } = frame
    const written =
      value !== undefined
        ? { ...(id !== undefined && { id }), ...(event !== undefined && { event }), data: await jsonTextSoon(value) }
        : frame
    await reply.frames([written], isOutput)
  }
}

/**
 * Sends the output of a job as bytes until the job has ended. A failure before the first byte becomes an HTTP error. If
 * the job fails later, then the connection is cut, so that the client detects an incomplete answer.
 */
export async function sendBytes(
  reply: Reply,
  output: Output,
  type: string,
  of: (event: unknown) => Buffer | undefined,
  onEvent: (event: unknown) => void = () => {},
): Promise<void> {
  const pieces = (events: readonly unknown[]) =>
    events.flatMap((event) => {
      onEvent(event)
      return of(event) ?? []
    })
  const first = pieces((await output.next()) ?? [])
  if (reply.isDisconnected) return
  async function* rest() {
    yield* first
    for (let events = await output.next(); events; events = await output.next()) yield* pieces(events)
  }
  await reply.bytes(Readable.from(rest(), { objectMode: false }), { type })
}
