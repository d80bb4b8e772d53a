import type { IncomingMessage } from 'node:http'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { EncodeContext, SharedHistory } from '#schemas/job.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import type { WireFormat } from '#services/ingress/reply/errors.ts'
import type { Kind } from '#shared/kinds/kind.ts'

/** Who asks, and how: what an endpoint may look at beside the body. */
export type Caller = Pick<Call, 'key' | 'headers'>

/** A checked request, ready to become a job: attached to its connection, or durable. */
export interface PreparedCall {
  /** Id of the model. */
  readonly model: string
  /** Alias by which the caller named the model: the answer repeats it. */
  readonly named?: string | undefined
  /** In the internal form of its kind. It is let go of as soon as a job has it: see {@link takeBody}. */
  body: unknown
  /** The caller's own name for the end user whose calls count against a limit of their own. */
  readonly userId?: string | undefined
  /** Blobs the body names; a durable job keeps them. */
  readonly attachments?: readonly string[]
  /** Segments that have the beginning of the prompt already: a durable job names them in place of a copy. */
  readonly history?: SharedHistory | undefined
  /** The caller wants events as they come. */
  readonly stream: boolean
  /** The answer is text: nothing may be written ahead of it. */
  readonly isText?: boolean
  /** A plain call is answered with the bytes of its kind's answer, as they are made; a durable job keeps the answer as a whole. */
  readonly isBytes?: boolean
  /** Deadline of a caller who waits. */
  readonly timeoutMs: number
  /** A cancel lets the job write what there is, for as long; default: it ends at once. Of durable jobs that compose. */
  readonly partialMs?: number
  /** Bytes that the answer may have, where they are fewer than its kind's. */
  readonly answerBytesMax?: number
  /** What encoding needs beside the call itself. */
  readonly encode?: Partial<EncodeContext>
  readonly metadata?: Record<string, string> | undefined
  /** Hears of the durable job that was made of the call, before anybody is told of it. @throws ServiceError to have it cancelled */
  readonly onCreated?: (job: DurableJob) => Promise<void>
}

/** How an endpoint answers calls whose jobs are durable, unless they prefer `respond-async`. */
export interface StoredAnswers {
  /** A job that goes on without its caller, as it is. */
  accepted(context: IngressContext, call: Call, job: DurableJob): Promise<void>
  /** Its result as a caller who waited for it is told. */
  shown(result: unknown, encode: Partial<EncodeContext>): unknown
  /** Its output as it comes. @param isBackground The job goes on without its caller */
  stream(context: IngressContext, call: Call, job: DurableJob, isBackground: boolean): Promise<void>
}

/** An endpoint whose calls become jobs. */
export interface JobEndpoint {
  readonly path: string
  readonly format: WireFormat
  readonly kind: Kind
  /** Its jobs are durable however they are asked for; a plain one is cancelled when its caller leaves. */
  readonly isDurable?: boolean
  /** Whether the jobs of a call are durable, by its body, which is not checked yet. */
  isKept?(context: IngressContext, body: unknown, caller: Caller): boolean
  /** Its durable jobs are answered in words of its own; default: with the job, and the stream as it was recorded. */
  readonly kept?: StoredAnswers
  /** Looks whether a caller may have a model do its work; default: that of its kind's pool. @throws ServiceError as `getModel` does */
  requireModel?(context: IngressContext, caller: Caller, model: string): void
  /** Its calls may stream: over a WebSocket they do unless their body says otherwise. */
  canStream?(body: Record<string, unknown>): boolean
  /** Reads a body that is not JSON. @throws ServiceError */
  readBody?(context: IngressContext, call: Call, req: IncomingMessage): Promise<unknown>
  /** Checks a body, as far as it can be without running it. @throws ServiceError with the path of the first problem */
  prepare(context: IngressContext, caller: Caller, body: unknown): PreparedCall | Promise<PreparedCall>
}

/** Takes the body out of a call, whose rest lives as long as its answer takes. */
export function takeBody(call: PreparedCall): unknown {
  const { body } = call
  call.body = undefined
  return body
}

/** What encoding needs, before the job has an id. */
export function encodeOf({ model, named, encode }: PreparedCall, requestId: string) {
  return { request_id: requestId, model: named ?? model, include_usage: false, version: '', ...encode }
}

/** The whole of what encoding needs, once the job has an id. */
export function encodeContextOf(
  call: PreparedCall,
  requestId: string,
  jobId: string,
  createdAtMs: number,
): EncodeContext {
  const call_id = jobId.slice('job_'.length)
  return { ...encodeOf(call, requestId), call_id, created_at: Math.floor(createdAtMs / 1_000) }
}
