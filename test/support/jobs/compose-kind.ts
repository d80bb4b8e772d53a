import { z } from 'zod'
import { ServiceError } from '#shared/error.ts'
import type { ChildEnd, Composition } from '#shared/kinds/composition.ts'
import type { AttemptContext, Handler } from '#shared/kinds/kind.ts'
import { sayKind } from './jobs.ts'

/** What a job of {@link composeKind} does; travels as its body. */
export interface Plan {
  /** Steps before its children, one after the other; each gives its number. */
  readonly steps: number
  /** Bodies of its children, all at once. */
  readonly children: readonly unknown[]
  /** Their kind; default: say. */
  readonly childKind?: string
  readonly childDeadlineInMs?: number
  /** Characters of what one more step gives, whose number is added. */
  readonly large?: number
  /** It has nothing to write where it is cancelled. */
  readonly writesNothing?: boolean
  /** What that step is asked for. */
  readonly asked?: string
  /** Steps all at once, instead of one after the other. */
  readonly isParallel?: boolean
}

/** What steps do outside: a test counts them, holds them up, or ends their process. */
export type Outside = (step: { job: string; nth: number | 'sum' }, signal: AbortSignal) => Promise<void>

/**
 * A kind that composes: it counts in steps, has children say something, and says the sum and all they said.
 *
 * @param change As another version of it would read a plan.
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
  if (!composition) throw new Error('nothing to compose with')
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
