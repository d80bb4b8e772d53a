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
  /** Alias by which the caller named the model; the answer repeats it. */
  readonly named?: string | undefined
  /** Body in the internal form of its kind. Released when a job has it: see {@link takeBody}. */
  body: unknown
  /** Id of the caller's end user, whose calls have their own rate limit. */
  readonly userId?: string | undefined
  readonly attachments?: readonly string[]
  /** Stored segments that contain the beginning of the prompt. A durable job refers to them instead of copying. */
  readonly history?: SharedHistory | undefined
  readonly stream: boolean
  /** True if the answer is text, before which no keep-alive characters may be written. */
  readonly isText?: boolean
  /** True if a plain call is answered with bytes as they are generated. A durable job stores the whole answer. */
  readonly isBytes?: boolean
  /** Deadline of a caller that waits, in milliseconds. */
  readonly timeoutMs: number
  /**
   * Time in which a cancelled job may write a partial result, in milliseconds; default: it ends at once. Only for
   * composed durable jobs.
   */
  readonly partialMs?: number
  /** Maximum bytes of the answer, if smaller than that of the kind. */
  readonly answerBytesMax?: number
  readonly encode?: Partial<EncodeContext>
  readonly metadata?: Record<string, string> | undefined
  /**
   * Called with the durable job, before its id is sent.
   *
   * @throws ServiceError to cancel the job
   */
  readonly onCreated?: (job: DurableJob) => Promise<void>
}

/** Form of answers to calls with durable jobs, unless the caller prefers `respond-async`. */
export interface StoredAnswers {
  /** Sends the current state of a job that runs in the background. */
  accepted(context: IngressContext, call: Call, job: DurableJob): Promise<void>
  /** Form in which a waiting caller receives the result. */
  shown(result: unknown, encode: Partial<EncodeContext>): unknown
  /**
   * Streams the output.
   *
   * @param isBackground True if the job continues without its caller
   */
  stream(context: IngressContext, call: Call, job: DurableJob, isBackground: boolean): Promise<void>
}

export interface JobEndpoint {
  readonly path: string
  readonly format: WireFormat
  readonly kind: Kind
  /** True if its jobs are always durable. A plain call's job is cancelled when the caller leaves. */
  readonly isDurable?: boolean
  /** Whether the jobs of a call are durable, judged by the body before validation. */
  isKept?(context: IngressContext, body: unknown, caller: Caller): boolean
  /** Own form of answers for durable jobs; default: the job object and the recorded stream. */
  readonly kept?: StoredAnswers
  /**
   * Checks that a caller may use a model here; default: a model of the kind's pool.
   *
   * @throws ServiceError as `getModel`
   */
  requireModel?(context: IngressContext, caller: Caller, model: string): void
  /** Whether a body may be streamed. Over a WebSocket, streaming is then the default. */
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

/** Takes the body out of a call, so that it can be freed while the call waits for its answer. */
export function takeBody(call: PreparedCall): unknown {
  const { body } = call
  call.body = undefined
  return body
}

/** Encoding options that are known before the job has an id. */
export function encodeOf({ model, named, encode }: PreparedCall, requestId: string) {
  return { request_id: requestId, model: named ?? model, include_usage: false, version: '', ...encode }
}

/** All encoding options, once the job has an id. */
export function encodeContextOf(
  call: PreparedCall,
  requestId: string,
  jobId: string,
  createdAtMs: number,
): EncodeContext {
  const call_id = jobId.slice('job_'.length)
  return { ...encodeOf(call, requestId), call_id, created_at: Math.floor(createdAtMs / 1_000) }
}
