import { z } from 'zod'
import type { ChildEnd, Composition } from '#shared/kinds/composition.ts'
import type { AttemptContext, Handler } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { sayKind } from './jobs.ts'

/** Behaviour of one composed test job. The plan is the body of the job. */
export interface Plan {
  /** Number of steps before the child jobs are submitted. Step n returns the number n. */
  readonly steps: number
  /** Bodies of the child jobs, which are submitted concurrently. */
  readonly children: readonly unknown[]
  /** Kind of the child jobs; default: say ({@link sayKind}). */
  readonly childKind?: string
  readonly childDeadlineInMs?: number
  /** If set, then the job runs one more step, whose result is a text of this length. The job adds the length to its sum. */
  readonly large?: number
  /** If true, then the job writes no partial result when it is cancelled. */
  readonly writesNothing?: boolean
  /** Input of the additional step that `large` requests. */
  readonly asked?: string
  /** If true, then the steps run concurrently instead of one after the other. */
  readonly isParallel?: boolean
}

/** Called when a step runs for the first time, in place of an external call. Tests count these calls, block them, or end the process in them. */
export type Outside = (step: { job: string; nth: number | 'sum' }, signal: AbortSignal) => Promise<void>

/**
 * A kind of composed jobs for tests. A job runs numbered steps, submits child jobs, and returns the sum of the numbers and the texts of the
 * children.
 *
 * @param outside Called in each numbered step and in the sum, unless the store already has the result of the step.
 * @param change Changes the plan of each attempt, to simulate that a new version of the code continues an old job.
 */
export function composeKind(outside: Outside = async () => {}, change = (plan: Plan): Plan => plan): Handler {
  return {
    ...sayKind,
    name: 'compose',
    request: z.unknown(),
    parse: (body) => body,
    run: (body, context) => run(change(body as Plan), context, outside),
  }
}

async function* run(plan: Plan, { composition, idempotencyKey, onProgress }: AttemptContext, outside: Outside) {
  if (!composition) throw new Error('no composition in the context')
  const [job = ''] = idempotencyKey.split(':')
  const count = (nth: number | 'sum', value: number) =>
    composition.step('count', { nth }, async (signal) => {
      await outside({ job, nth }, signal)
      return { value, cost: { searches: 1 } }
    })
  const numbers = Array.from({ length: plan.steps }, (_, nth) => nth)
  const counted = plan.isParallel ? await Promise.all(numbers.map((nth) => count(nth, nth))) : []
  if (!plan.isParallel) for (const nth of numbers) counted.push(await count(nth, nth))
  if (plan.large)
    counted.push(
      (
        await composition.step('large', plan.asked ? { asked: plan.asked } : {}, async () => ({
          value: 'é'.repeat(plan.large ?? 0),
        }))
      ).length,
    )
  onProgress?.({ phase: 'asking', percent: null, message: `${plan.children.length}` })
  const ends = await ask(plan, composition)
  if (composition.cancelled.aborted && plan.writesNothing) throw new ServiceError('job_cancelled', 'There is nothing.')
  const sum = await count(
    'sum',
    counted.reduce((all, one) => all + one, 0),
  )
  yield { text: [sum, ...ends.map(saidBy), JSON.stringify(composition.spent)].join(' ') }
}

async function ask(plan: Plan, composition: Composition): Promise<(ChildEnd | undefined)[]> {
  const { children, childKind = 'say', childDeadlineInMs: deadlineInMs } = plan
  const call = { endpoint: '/v1/chat/completions', pool: 'inference', kind: childKind, model: 'echo-1' } as const
  const submit = (body: unknown, nth: number) =>
    composition.submit({ ...call, key: `child ${nth}`, body, ...(deadlineInMs !== undefined && { deadlineInMs }) })
  return await composition.waitFor(await Promise.all(children.map(submit)))
}

function saidBy(end: ChildEnd | undefined): string {
  if (!end) return 'nothing'
  return end.state === 'completed' ? (end.result as { text: string }).text.trim() : end.state
}
