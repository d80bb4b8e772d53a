import type { DurableJob } from '#schemas/durable-job.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { childJobId } from '#shared/store/jobs.ts'
import { ALL_TENANTS } from '#shared/store/store.ts'
import type { Plan } from '../support/jobs/compose-kind.ts'
import { type Ended, GRACE_MS, type Outcome, RECOVERY_MS, TURNS_MS } from './outcome.ts'
import { type Script, textOf } from './work.ts'

/** Checks the steps and the children of a composed job (invariants I12 and I13). */
export async function familyProblems(ended: Ended, outcome: Outcome): Promise<string[]> {
  const { job, request } = ended
  if (!request?.plan) return []
  const children = await outcome.store.listChildren(ALL_TENANTS, job.id)
  return [
    ...(await stepProblems(job, outcome)),
    ...childProblems(job, children, request.plan),
    ...timeProblems(job, children, outcome),
    ...resultProblems(ended, children, request.plan),
  ]
}

/**
 * Invariant I12: a process stores a step only after it has run the step. Each attempt runs a step at most once, and no later attempt
 * repeats a stored step.
 */
async function stepProblems(job: DurableJob, { store, witness }: Outcome): Promise<string[]> {
  const steps = await store.listSteps(ALL_TENANTS, job.id)
  const doings = witness.doings.filter(({ jobId }) => jobId === job.id)
  const problems =
    steps.length === job.steps ? [] : [`I12: ${steps.length} steps are stored, but the row counts ${job.steps}`]
  const [...done] = steps
  for (const step of new Set(doings.map((doing) => doing.step))) {
    const attempts = doings.filter((doing) => doing.step === step).map(({ attempt }) => attempt)
    if (new Set(attempts).size < attempts.length) problems.push(`I12: step ${step} ran twice in one attempt`)
    const last = Math.max(...attempts)
    const at = done.findIndex(({ attempt }) => attempt === last)
    // The last attempt that ran a step must have stored the result. Otherwise this attempt repeated a step that was already stored. Only completed
    // jobs are checked: in other jobs, the attempt may have been interrupted before it stored the result.
    if (at >= 0) done.splice(at, 1)
    else if (job.state === 'completed')
      problems.push(`I12: step ${step} was repeated in attempt ${last} after it was stored`)
  }
  if (done.length > 0) problems.push(`I12: ${done.length} steps are stored of attempts that did not run them`)
  return problems
}

/**
 * Invariant I13: a child's id is derived from its key, so a repeated submission creates no second child. Every child must have one of the
 * expected ids.
 */
function childProblems(job: DurableJob, children: readonly DurableJob[], plan: Plan): string[] {
  const ids = plan.children.map((_, nth) => childJobId(job.id, `child ${nth}`))
  const strange = children.filter(({ id }) => !ids.includes(id))
  const problems = strange.map(({ id }) => `I13: child ${id} was never submitted`)
  if (children.length !== job.children)
    problems.push(`I13: ${children.length} children are stored, but the row counts ${job.children}`)
  if (job.state === 'completed' && children.length !== ids.length)
    problems.push(`I13: ${children.length} children instead of ${ids.length}`)
  if (job.error?.code === 'invalid_request' || job.error?.code === 'internal_error')
    problems.push(`I13: ${job.error.message}`)
  return problems
}

/** Invariant I13: children end soon after their parent, and a parent ends soon after its children. */
function timeProblems(job: DurableJob, children: readonly DurableJob[], { calmAtMs, leaseMs }: Outcome): string[] {
  const problems: string[] = []
  const endMs = job.finished_at_ms ?? Number.POSITIVE_INFINITY
  const latestMs = Math.max(endMs, calmAtMs) + GRACE_MS + 2 * leaseMs + TURNS_MS
  for (const { id, finished_at_ms } of children) {
    if ((finished_at_ms ?? Number.POSITIVE_INFINITY) > latestMs) problems.push(`I13: child ${id} outlived its parent`)
  }
  if (children.length === 0 || !children.every(({ state }) => TERMINAL.has(state))) return problems
  const lastMs = Math.max(...children.map(({ finished_at_ms }) => finished_at_ms ?? 0), calmAtMs, job.run_at_ms)
  if (endMs - lastMs > RECOVERY_MS) problems.push(`I13: ended ${endMs - lastMs} ms after its children`)
  return problems
}

/** Invariant I5: the result consists of the sum of the step numbers, the result of each child, and the total cost. */
function resultProblems({ job, result }: Ended, children: readonly DurableJob[], plan: Plan): string[] {
  if (job.state !== 'completed') return []
  const { steps } = plan
  const text = (result as { text: string } | null)?.text ?? ''
  const sum = (steps * (steps - 1)) / 2
  const cost = { searches: steps + 1, ...(children.some(({ state }) => state === 'completed') && { tokens: 0 }) }
  const said = plan.children.map((body, nth) => {
    const child = children.find(({ id }) => id === childJobId(job.id, `child ${nth}`))
    if (child?.state === 'completed') return textOf(body as Script, child.attempt).trim()
    return child?.state
  })
  const expected = [sum, ...said, JSON.stringify(cost)].join(' ')
  // A parent that stopped waiting for a child writes `nothing` for this child. The end of the parent then cancels the child, so its stored
  // state is `cancelled`.
  const afterCancel = text.replaceAll('nothing', 'cancelled')
  return afterCancel === expected ? [] : [`I5: the result is '${text}' instead of '${expected}'`]
}
