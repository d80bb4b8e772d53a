import type { JobEnvelope } from '#schemas/job.ts'
import type { MergeDeltas } from '#shared/jobs/delta-buffer.ts'

/** How far a job is, for people who wait (docs/protocol.md, The job object). */
export interface Progress {
  /** What is being done, in a word or two. */
  readonly phase: string
  /** 0 to 100; null where nobody knows. */
  readonly percent: number | null
  readonly message: string
}

/** What an attempt may use beside its body. */
export interface AttemptContext {
  /** Aborts on cancel, drain and deadline. The work must stop within a second. */
  readonly signal: AbortSignal
  /** `job_id:attempt`, to make outside effects idempotent. */
  readonly idempotencyKey: string
  /** Whose job it is. */
  readonly tenant: string
  readonly traceparent: string | undefined
  /** Hears how far the work is; undefined where the caller watches the output itself. */
  readonly onProgress: ((progress: Progress) => void) | undefined
}

/** Says the output of one durable job in the words of its endpoint: as objects of the wire, which are kept. */
export interface OutputRecorder {
  /** What a stream would send for a delta. */
  event(delta: unknown): unknown[]
  /** What a stream would send at a good end. */
  end(): unknown[]
  /** The whole answer. @throws ServiceError When the deltas are not those of a finished job */
  whole(deltas: readonly unknown[]): unknown
}

/** One kind of job: how its body is read, how it runs, what its deltas are. */
export interface Kind {
  /** The body as it is run, or a promise of it. @throws When it is not what the ingress sends */
  parse(body: unknown): unknown
  /** Yields deltas until the job is done. @throws ServiceError */
  run(body: unknown, context: AttemptContext): AsyncIterable<unknown>
  readonly merge: MergeDeltas
  /** Bytes of a whole answer at which it is refused; default: 8 MiB. */
  readonly answerBytesMax?: number
  /** Whether a caller would see the delta twice if the job ran again. */
  isOutput(delta: unknown): boolean
  openRecorder(job: JobEnvelope): OutputRecorder
}
