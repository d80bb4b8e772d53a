import { ListSteps } from '#schemas/jobs.ts'
import { refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { findJob, queryNumber, requireJobs } from '#services/ingress/calls/job-object.ts'
import type { StepView } from '#shared/jobs/durable/steps.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Maximum steps per page. Each step may have 64 KiB of input and 1 MiB of output. */
const LIMIT_MAX = 20
/** Maximum value of `after`; no job has as many steps. */
const AFTER_MAX = 1_000_000

/**
 * GET /v1/jobs/{id}/steps: the recorded steps of a composed job with their results, in order (docs/guides/jobs.md,
 * Composed jobs).
 */
export async function listSteps(context: IngressContext, call: Call): Promise<void> {
  const jobs = requireJobs(context)
  refuseUnknown(ListSteps, call.query)
  const after = queryNumber(call, 'after', AFTER_MAX) ?? 0
  const limit = queryNumber(call, 'limit', LIMIT_MAX) ?? LIMIT_MAX
  if (limit === 0) throw new ServiceError('invalid_value', 'limit must be at least 1; got 0.', { param: 'limit' })
  const { steps, hasMore } = await jobs.listStepViews(await findJob(jobs, call), after, limit)
  const data = steps.map(stepObject)
  await call.reply.whole({ object: 'list', data, last_number: data.at(-1)?.number ?? null, has_more: hasMore })
}

function stepObject({ number, kind, key, input, output, cost, attempt, at_ms }: StepView) {
  const cut = input && 'cut' in input ? { beginning: input.cut, length: input.length } : null
  const asked = input && 'value' in input ? input.value : null
  const done_at = Math.floor(at_ms / 1_000)
  return { number, kind, key, input: asked, input_cut: cut, output, cost, attempt, done_at }
}
