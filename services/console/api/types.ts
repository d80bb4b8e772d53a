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

/** A durable job, as its project sees it. */
export type Job = z.infer<typeof JobAnswer>
/** The same, as operators see it. */
export type OperatorJob = z.infer<typeof OperatorJobAnswer>
/** What both of them have. */
export type AnyJob = Job | OperatorJob
/** What a job was asked. */
export type JobInput = z.infer<typeof JobInputAnswer>
/** A page of what a composed job asked for outside. */
export type StepPage = z.infer<typeof StepListAnswer>
/** One of them. */
export type Step = StepPage['data'][number]
/** A pool of workers. */
export type Pool = z.infer<typeof PoolListAnswer>['data'][number]
/** A process that is alive. */
export type Worker = z.infer<typeof WorkerAnswer>
/** A model or a pool of which nothing is started. */
export type Pause = z.infer<typeof PauseListAnswer>['data'][number]
/** A record that no worker could run. */
export type DeadLetter = z.infer<typeof DeadLetterListAnswer>['data'][number]
/** What the service found when it looked at something. */
export type Finding = z.infer<typeof FindingListAnswer>['data'][number]
/** A model of the catalogue. */
export type Model = z.infer<typeof ModelListAnswer>['data'][number]

/** A webhook message, and how far it is. */
export type Delivery = z.infer<typeof DeliveryAnswer>
/** A key, as operators see it. */
export type ApiKey = z.infer<typeof KeyAnswer>
/** The key of this tab. */
export type OwnKey = z.infer<typeof OwnKeyAnswer>
/** Who keys belong to. */
export type Project = z.infer<typeof ProjectAnswer>

/** A page of a list. */
export interface Page<Item> {
  readonly data: readonly Item[]
  readonly last_id: string | null
  readonly has_more: boolean
}
