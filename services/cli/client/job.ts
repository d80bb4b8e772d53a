import { z } from 'zod'
import { EXIT, type ExitCode } from '#services/cli/text/output.ts'
import { EndRange } from './http.ts'

/*
 * Responses are decoded leniently, because the command line and the service may have different versions. Unknown fields are preserved, and a missing
 * optional field is not an error (docs/internals/protocol.md, The job object).
 */

const Progress = z.looseObject({
  phase: z.string().nullish(),
  percent: z.number().nullish(),
  message: z.string().nullish(),
  requests_per_second: z.number().nullish().describe('Batches only'),
  estimated_end_at: z.number().nullish().describe('Batches only, in Unix seconds'),
  estimated_end_range: EndRange.nullish().describe('Batches only'),
})
export type Progress = z.infer<typeof Progress>

const Failure = z.looseObject({ code: z.string().nullish(), message: z.string(), status: z.number().nullish() })

const Queue = z.looseObject({ position: z.number().nullish() })

/** A job of the API. Times are in Unix seconds. */
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
  child_counts: z.looseObject({ total: z.number(), completed: z.number(), failed: z.number() }).nullish(),
  metadata: z.record(z.string(), z.string()).nullish(),
  error: Failure.nullish(),
  usage: z.unknown().optional(),
  cost_usd: z.number().nullish(),
  prompt_preview: z.string().nullish(),
  last_sequence_number: z.number().nullish(),
  project: z.string().nullish().describe('Admin keys only'),
  worker: z.string().nullish().describe('Admin keys only: the worker of the current or last attempt'),
  waits: z
    .looseObject({ reason: z.string(), message: z.string() })
    .nullish()
    .describe('Admin keys only: why the job is pending'),
})
export type JobView = z.infer<typeof JobView>

export const JobPage = z.looseObject({
  data: z.array(JobView),
  has_more: z.boolean(),
  last_id: z.string().nullish().describe('Cursor of the next page, which may differ from the last job of this page'),
})
export type JobPage = z.infer<typeof JobPage>

export const JobEventView = z.looseObject({
  type: z.string(),
  sequence_number: z.number().nullish().describe('Absent on a snapshot, which is not part of the event history'),
  created_at: z.number().nullish().describe('Unix seconds; for the first event the time of submission'),
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

export const StepView = z.looseObject({
  number: z.number(),
  kind: z.string(),
  key: z.string(),
  input: z.unknown().describe('null if the input was not recorded; a truncated input is in `input_cut` instead'),
  input_cut: z.looseObject({ beginning: z.string(), length: z.number() }).nullish(),
  output: z.unknown(),
  cost: z.record(z.string(), z.number()).nullish(),
  attempt: z.number().nullish(),
  done_at: z.number().nullish(),
})
export type StepView = z.infer<typeof StepView>

export const StepPage = z.looseObject({
  data: z.array(StepView),
  has_more: z.boolean(),
  last_number: z.number().nullish(),
})

const EXIT_BY_STATUS: Readonly<Record<string, ExitCode>> = {
  completed: EXIT.ok,
  failed: EXIT.failed,
  expired: EXIT.failed,
  cancelled: EXIT.cancelled,
}

export function exitCodeOf(job: JobView): ExitCode | undefined {
  return Object.hasOwn(EXIT_BY_STATUS, job.status) ? EXIT_BY_STATUS[job.status] : undefined
}

export function isFinalEvent(event: JobEventView): boolean {
  const [group, state] = event.type.split('.')
  return group === 'job' && state !== undefined && Object.hasOwn(EXIT_BY_STATUS, state)
}

/**
 * Returns the queue position of a pending job, such as ` (#4 in queue)`, or an empty text if the position is not
 * available.
 */
export function queueText({ queue }: Pick<JobView, 'queue'>): string {
  return typeof queue?.position === 'number' ? ` (#${queue.position + 1} in queue)` : ''
}

type EndTimes = Pick<JobView, 'completed_at' | 'failed_at' | 'cancelled_at' | 'expired_at'>

export function endedAt(job: EndTimes): number | undefined {
  return job.completed_at ?? job.failed_at ?? job.cancelled_at ?? job.expired_at ?? undefined
}
