import type { IncomingMessage } from 'node:http'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { EncodeContext, SharedHistory } from '#schemas/job.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import type { WireFormat } from '#services/ingress/reply/errors.ts'
import type { Kind } from '#shared/kinds/kind.ts'

export type Caller = Pick<Call, 'key' | 'headers'>

/** A validated request, ready to become an attached or durable job. */
export interface PreparedCall {
  readonly model: string
  /** Name that the caller used for the model, which may be an alias. The answer repeats it. */
  readonly named?: string | undefined
  /** Body in the internal form of the kind. {@link takeBody} removes it once a job has it. */
  body: unknown
  /** Id of the caller's end user, whose calls have their own rate limit. */
  readonly userId?: string | undefined
  readonly attachments?: readonly string[]
  /**
   * Stored segments that contain the beginning of the prompt. A durable job refers to them instead of storing a copy.
   */
  readonly history?: SharedHistory | undefined
  readonly stream: boolean
  /** True if the answer is plain text. Keep-alive characters would then become part of it, so none are written. */
  readonly isText?: boolean
  /** True if an attached job is answered with bytes while they are generated. A durable job stores the whole answer. */
  readonly isBytes?: boolean
  /** Deadline of a caller that waits, in milliseconds. */
  readonly timeoutMs: number
  /**
   * Time that a cancelled job has to write a partial result, in milliseconds. Default: the job is cancelled at once.
   * Only for composed durable jobs.
   */
  readonly partialMs?: number
  /** Maximum bytes of the answer; default: the maximum of the kind. */
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
 * How an endpoint answers calls that become durable jobs. With `Prefer: respond-async`, the answer is the job object
 * instead.
 */
export interface StoredAnswers {
  /** Sends the current state of a job that runs in the background. */
  accepted(context: IngressContext, call: Call, job: DurableJob): Promise<void>
  /** Converts the stored result to the answer of a caller that waited for it. */
  formatted(result: unknown, encode: Partial<EncodeContext>): unknown
  /**
   * Streams the output of the job.
   *
   * @param isBackground True if the job continues when its caller disconnects
   */
  stream(context: IngressContext, call: Call, job: DurableJob, isBackground: boolean): Promise<void>
}

export interface JobEndpoint {
  readonly path: string
  readonly format: WireFormat
  readonly kind: Kind
  /**
   * True if the jobs are always durable. A job whose caller waits for the answer is still cancelled when the connection
   * closes.
   */
  readonly isDurable?: boolean
  /** Whether this call becomes a durable job. Called before validation, so the body may have any shape. */
  isStored?(context: IngressContext, body: unknown, caller: Caller): boolean
  /** How durable jobs are answered; default: the job object, and the recorded events as the stream. */
  readonly stored?: StoredAnswers
  /**
   * Checks that a caller may use a model for this endpoint. Default: any model of the kind's pool.
   *
   * @throws ServiceError as `getModel`
   */
  requireModel?(context: IngressContext, caller: Caller, model: string): void
  /** Whether the answer to this body can be streamed. If so, streaming is the default over a WebSocket. */
  canStream?(body: Record<string, unknown>): boolean
  /**
   * Reads a body that is not JSON.
   *
   * @throws ServiceError
   */
  readBody?(context: IngressContext, call: Call, req: IncomingMessage): Promise<unknown>
  /**
   * Validates a body without running it.
   *
   * @throws ServiceError with the path of the first problem
   */
  prepare(context: IngressContext, caller: Caller, body: unknown): PreparedCall | Promise<PreparedCall>
}

/** Removes and returns the body of a call, so that the memory can be freed while the call waits for its answer. */
export function takeBody(call: PreparedCall): unknown {
  const { body } = call
  call.body = undefined
  return body
}

/** Encoding options of an answer, except those that need the job id. */
export function encodeOf({ model, named, encode }: PreparedCall, requestId: string) {
  return { request_id: requestId, model: named ?? model, include_usage: false, version: '', ...encode }
}

export function encodeContextOf(
  call: PreparedCall,
  requestId: string,
  jobId: string,
  createdAtMs: number,
): EncodeContext {
  const call_id = jobId.slice('job_'.length)
  return { ...encodeOf(call, requestId), call_id, created_at: Math.floor(createdAtMs / 1_000) }
}
