import type { z } from 'zod'
import type {
  DeadLetterListAnswer,
  DeliveryAnswer,
  FindingListAnswer,
  PauseListAnswer,
  PoolListAnswer,
  WorkerAnswer,
} from '#schemas/answers/admin.ts'
import type { JobAnswer, JobInputAnswer, OperatorJobAnswer, StepListAnswer } from '#schemas/answers/jobs.ts'
import type { KeyAnswer, OwnKeyAnswer, ProjectAnswer } from '#schemas/answers/keys.ts'
import type { ModelListAnswer } from '#schemas/answers/models.ts'

export type Job = z.infer<typeof JobAnswer>
/** A durable job as operators see it: without input and output. */
export type OperatorJob = z.infer<typeof OperatorJobAnswer>
export type AnyJob = Job | OperatorJob
export type JobInput = z.infer<typeof JobInputAnswer>
/** A page of the recorded steps of a composed job. */
export type StepPage = z.infer<typeof StepListAnswer>
export type Step = StepPage['data'][number]
export type Pool = z.infer<typeof PoolListAnswer>['data'][number]
/** A process of the fleet that sends heartbeats. */
export type Worker = z.infer<typeof WorkerAnswer>
export type Pause = z.infer<typeof PauseListAnswer>['data'][number]
export type DeadLetter = z.infer<typeof DeadLetterListAnswer>['data'][number]
export type Finding = z.infer<typeof FindingListAnswer>['data'][number]
export type Model = z.infer<typeof ModelListAnswer>['data'][number]

export type Delivery = z.infer<typeof DeliveryAnswer>
export type ApiKey = z.infer<typeof KeyAnswer>
export type OwnKey = z.infer<typeof OwnKeyAnswer>
/** A group of keys that share limits and a budget. */
export type Project = z.infer<typeof ProjectAnswer>

export interface Page<Item> {
  readonly data: readonly Item[]
  readonly last_id: string | null
  readonly has_more: boolean
}
