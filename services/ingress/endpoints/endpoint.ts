import type { IncomingHttpHeaders } from 'node:http'
import type { EncodeContext, PoolName } from '#schemas/job.ts'
import type { Call, IngressContext, WireFormat } from '#services/ingress/call.ts'
import type { ApiKey } from '#services/ingress/callers/keys.ts'
import type { MergeDeltas } from '#shared/jobs/delta-buffer.ts'
import type { StreamEncoder } from '#shared/protocols/protocol.ts'

/** Who asks, and how: what an endpoint may look at beside the body. */
export interface Caller {
  readonly key: ApiKey
  readonly requestId: string
  readonly headers: IncomingHttpHeaders
}

/** A checked request, ready to become a job: attached to its connection, or durable. */
export interface PreparedCall {
  readonly pool: PoolName
  readonly kind: string
  readonly model: string
  /** In the internal form of its kind. It is let go of as soon as a job has it: see {@link takeBody}. */
  body: unknown
  /** The caller's own name for the end user whose calls count against a limit of their own. */
  readonly userId?: string | undefined
  /** Blobs the body names; a durable job keeps them. */
  readonly attachments?: readonly string[]
  /** The caller wants deltas as they come. */
  readonly stream: boolean
  /** The answer is text: nothing may be written ahead of it. */
  readonly isText?: true
  /** Deadline of a caller who waits. */
  readonly timeoutMs: number
  /** Bytes that the answer may have; default: those of a long text. */
  readonly answerBytesMax?: number
  readonly encode: Omit<EncodeContext, 'call_id' | 'created_at'>
  readonly metadata?: Record<string, string> | undefined
  readonly merge: MergeDeltas
  /** Whether a delta is output a caller would see twice if the job ran again. */
  isOutput(delta: unknown): boolean
  /** The whole answer, or a promise of it: JSON, or a string, which is sent as plain text. @throws ServiceError When the deltas are not those of a finished job */
  encodeWhole(deltas: readonly unknown[], context: EncodeContext): unknown
  openStream(context: EncodeContext): StreamEncoder
}

/** An endpoint whose calls become jobs. */
export interface JobEndpoint {
  readonly path: string
  readonly format: WireFormat
  /** Its calls may stream: over a WebSocket they do unless their body says otherwise. */
  canStream?(body: Record<string, unknown>): boolean
  /** Reads a body that is not JSON. @throws ServiceError */
  readBody?(context: IngressContext, call: Call): Promise<unknown>
  /** Checks a body, as far as it can be without running it. @throws ServiceError with the path of the first problem */
  prepare(context: IngressContext, caller: Caller, body: unknown): PreparedCall | Promise<PreparedCall>
}

/** Takes the body out of a call, whose rest lives as long as its answer takes. */
export function takeBody(call: PreparedCall): unknown {
  const { body } = call
  call.body = undefined
  return body
}

/** The whole of what encoding needs, once the job has an id. */
export function encodeContextOf(call: PreparedCall, jobId: string, createdAtMs: number): EncodeContext {
  return { ...call.encode, call_id: jobId.slice('job_'.length), created_at: Math.floor(createdAtMs / 1_000) }
}
