import { z } from 'zod'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'

/*
 * The tool may be older or newer than the service it talks to: it reads the fields it shows, keeps the others, and does
 * without those that are missing (docs/protocol.md, The job object).
 */

const Progress = z.looseObject({
  phase: z.string().nullish(),
  percent: z.number().nullish(),
  message: z.string().nullish(),
})
/** How far a job is, as its handler says. */
export type Progress = z.infer<typeof Progress>

const Failure = z.looseObject({ code: z.string().nullish(), message: z.string(), status: z.number().nullish() })

/** How many jobs would be started before one that waits. */
const Queue = z.looseObject({ position: z.number().nullish() })

/** A job as the API shows it. Times are unix seconds. */
export const JobView = z.looseObject({
  id: z.string(),
  status: z.string(),
  endpoint: z.string().nullish(),
  model: z.string().nullish(),
  created_at: z.number(),
  started_at: z.number().nullish(),
  completed_at: z.number().nullish(),
  failed_at: z.number().nullish(),
  cancelled_at: z.number().nullish(),
  expired_at: z.number().nullish(),
  attempt: z.number().nullish(),
  queue: Queue.nullish(),
  parent_id: z.string().nullish(),
  progress: Progress.nullish(),
  result: z.unknown().optional(),
  error: Failure.nullish(),
  usage: z.unknown().optional(),
  last_sequence_number: z.number().nullish(),
  project: z.string().nullish().describe('Shown to operators'),
  worker: z.string().nullish().describe('Shown to operators: who runs it, or ran it last'),
  waits: z.looseObject({ reason: z.string(), message: z.string() }).nullish().describe('Shown to operators'),
})
export type JobView = z.infer<typeof JobView>

/** A page of jobs. */
export const JobPage = z.looseObject({
  data: z.array(JobView),
  has_more: z.boolean(),
  last_id: z.string().nullish().describe('Where the next page begins: a page may show fewer jobs than were looked at'),
})
export type JobPage = z.infer<typeof JobPage>

/** One event of a job's stream. */
export const JobEventView = z.looseObject({
  type: z.string(),
  sequence_number: z.number().nullish().describe('Not on a snapshot: it is no event of the history'),
  created_at: z.number().nullish().describe('Unix seconds; of the first event those of the submit'),
  attempt: z.number().nullish(),
  progress: Progress.nullish(),
  queue: Queue.nullish(),
  chunk: z.unknown().optional(),
  job: JobView.nullish(),
  reason: z.string().nullish(),
  delay_ms: z.number().nullish(),
  output_reset: z.boolean().nullish(),
})
export type JobEventView = z.infer<typeof JobEventView>

/** A step of a composed job, as it was recorded. */
export const StepView = z.looseObject({
  number: z.number(),
  kind: z.string(),
  key: z.string(),
  input: z.unknown().describe('null where it was not kept, or only its beginning'),
  input_cut: z.looseObject({ beginning: z.string(), length: z.number() }).nullish(),
  output: z.unknown(),
  cost: z.record(z.string(), z.number()).nullish(),
  attempt: z.number().nullish(),
  done_at: z.number().nullish(),
})
export type StepView = z.infer<typeof StepView>

/** A page of steps. */
export const StepPage = z.looseObject({
  data: z.array(StepView),
  has_more: z.boolean(),
  last_number: z.number().nullish(),
})

/** States that never change. */
const ENDS: Readonly<Record<string, ExitCode>> = {
  completed: EXIT.ok,
  failed: EXIT.failed,
  expired: EXIT.failed,
  cancelled: EXIT.cancelled,
}

/** The exit code that says how a job ended; undefined while it goes on. */
export function exitOf(job: JobView): ExitCode | undefined {
  return Object.hasOwn(ENDS, job.status) ? ENDS[job.status] : undefined
}

/** The event that ends a stream: no other follows it. */
export function isLast(event: JobEventView): boolean {
  const [group, state] = event.type.split('.')
  return group === 'job' && state !== undefined && Object.hasOwn(ENDS, state)
}

/** How many jobs come before one that waits: ` (3 before it)`; nothing where that is not known. */
export function beforeIt({ queue }: Pick<JobView, 'queue'>): string {
  return typeof queue?.position === 'number' ? ` (${queue.position} before it)` : ''
}

/** Unix seconds of its end; undefined while it goes on. */
export function endedAt(job: JobView): number | undefined {
  return job.completed_at ?? job.failed_at ?? job.cancelled_at ?? job.expired_at ?? undefined
}
