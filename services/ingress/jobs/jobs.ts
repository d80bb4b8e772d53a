/*
 * Endpoints of durable jobs below /v1/jobs: submit, read, wait, cancel, redrive, replay and delete.
 *
 * A submission wraps the call of another endpoint: `{"endpoint": "/v1/chat/completions", "body": {…}}`.
 * 1. The wrapper is parsed, and the key must have access to the endpoint.
 * 2. The endpoint validates the inner body as in a direct call. An error names a field of the inner body, with the prefix `body.`.
 * 3. `services/ingress/calls/durable.ts` creates the job, or finds the earlier job of the `Idempotency-Key`.
 * 4. The answer is 202 with the job. A submission never waits for the result.
 */

import type { DurableJob } from '#schemas/durable-job.ts'
import { hasModels } from '#schemas/job.ts'
import { ListSteps, SubmitJob, Webhook } from '#schemas/jobs.ts'
import { usageOf } from '#services/ingress/batches/pool/part.ts'
import { formatOf } from '#services/ingress/body/body.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { requireEndpoint } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { childCountsOf } from '#services/ingress/calls/child-counts.ts'
import {
  acceptedOf,
  createJob,
  RETRY_AFTER_SECONDS,
  resultOf,
  sendAccepted,
  waitFor,
} from '#services/ingress/calls/durable.ts'
import { findJob, jobIdOf, jobObject, queryNumber, requireJobs } from '#services/ingress/calls/job-object.ts'
import {
  boundMetadata,
  idempotencyOf,
  JobOptions,
  readIdempotencyKey,
  refuseJobHeaders,
  WAIT_SECONDS_MAX,
} from '#services/ingress/calls/job-options.ts'
import { findEndpoint, requireModelOf } from '#services/ingress/endpoints/endpoints.ts'
import { requireHosted } from '#services/ingress/endpoints/responses/hosted-tools.ts'
import { RESPONSES_PATH, readStoredResponse } from '#services/ingress/endpoints/responses/stored.ts'
import type { StepView } from '#shared/jobs/durable/dispatch.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { batch } from '#shared/kinds/batch.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { DoneStep } from '#shared/store/jobs.ts'
import { callCost, NANOS_PER_USD } from '#shared/usage/usage.ts'

export async function submitJob(context: IngressContext, call: Call, body: unknown): Promise<void> {
  const jobs = requireJobs(context)
  refuseUnknown(SubmitJob, body)
  refuseUnknown(Webhook, (body as { webhook?: unknown } | null)?.webhook, 'webhook.')
  const submit = parseBody(SubmitJob, body, 'openai')
  const { endpoint: path, body: inner, ...fields } = submit
  const jobOptions = JobOptions.of(call.headers, fields)
  const endpoint = findEndpoint(context, path)
  requireEndpoint(call.key, endpoint.path)
  const { key } = call
  const prepared = await prepareInner(async () => {
    const ready = await endpoint.prepare(context, call, inner)
    boundMetadata(ready.metadata)
    return ready
  })
  call.facts.model = prepared.model
  call.facts.user_id = prepared.userId
  context.limits.countUser(key, prepared.userId)
  const options = {
    idempotencyKey: readIdempotencyKey(call.headers['idempotency-key']),
    isAsync: true,
    ...(await jobOptions.resolve(context, projectIdOf(key), context.config.jobDeadlineMs)),
  }
  // Job options in headers change the fingerprint of the Idempotency-Key, like options in the body.
  const whole = jobOptions.isOfHeaders ? { ...(body as object), ...jobOptions.fields } : body
  const { job, isReplay } = await createJob(context, call, endpoint, prepared, { sent: inner, whole }, options)
  if (isReplay) call.reply.setHeader('idempotency-replayed', 'true')
  await sendAccepted(jobs, call, job)
}

async function prepareInner<T>(prepare: () => Promise<T>): Promise<T> {
  try {
    return await prepare()
  } catch (error) {
    if (!(error instanceof ServiceError) || error.param === null) throw error
    throw new ServiceError(error.code, error.message, { cause: error, param: `body.${error.param}` })
  }
}

/**
 * GET /v1/jobs/{id}: returns the current state of the job. With `?wait=N`, the answer waits up to N seconds for the job
 * to end.
 */
export async function getJob(context: IngressContext, call: Call): Promise<void> {
  const jobs = requireJobs(context)
  const waitSeconds = queryNumber(call, 'wait', WAIT_SECONDS_MAX) ?? 0
  const { job, result } =
    waitSeconds > 0 ? await waitForJob(context, call, jobs, waitSeconds) : { job: await findJob(jobs, call) }
  if (call.reply.isDisconnected) return
  if (!TERMINAL.has(job.state)) call.reply.setHeader('retry-after', String(RETRY_AFTER_SECONDS))
  await call.reply.whole(await jobWithDetails(context, job, result))
}

async function waitForJob({ limits }: IngressContext, call: Call, jobs: DurableJobs, seconds: number) {
  let end = () => {}
  const begin = () => {
    end = limits.beginFollow(call.key)
  }
  const job = { tenant: projectIdOf(call.key), id: jobIdOf(call) }
  return await waitFor(call, jobs, job, seconds * 1_000, begin).finally(() => end())
}

/** GET /v1/jobs/{id}/result: returns the answer that a waiting caller of the job's endpoint would have received. */
export async function getResult(context: IngressContext, call: Call): Promise<void> {
  const jobs = requireJobs(context)
  const job = await findJob(jobs, call).catch((error: unknown) => throwGone(jobs, call, error))
  if (job.state === 'failed' && job.error) {
    const thrown = ServiceError.fromBody(job.error)
    return call.reply.end({ type: 'failed', thrown, keptAs: formatOf(job.endpoint) })
  }
  const result = await resultOf(jobs, job.tenant, job)
  if (result === null) throw gone()
  await call.reply.whole(result)
}

/** Throws `result_expired` instead of `job_not_found` if the store still has the record of a deleted job. */
async function throwGone(jobs: DurableJobs, call: Call, error: unknown): Promise<never> {
  const isUnknown = ServiceError.from(error).code === 'job_not_found'
  if (isUnknown && (await jobs.isPast(projectIdOf(call.key), jobIdOf(call)))) throw gone()
  throw error
}

function gone(): ServiceError {
  return new ServiceError('result_expired', 'The result of this job has expired.')
}

export async function cancelJob(context: IngressContext, call: Call): Promise<void> {
  const jobs = requireJobs(context)
  const { id, tenant } = await findJob(jobs, call)
  const job = await jobs.cancel(tenant, id)
  await call.reply.whole(await jobWithDetails(context, job))
}

/**
 * POST /v1/jobs/{id}/redrive: runs a failed, cancelled or expired job again as a new job.
 *
 * @throws ServiceError `job_not_finished` if the job has not ended
 */
export async function redriveJob(context: IngressContext, call: Call): Promise<void> {
  await runAgain(context, call, 'redrive')
}

/**
 * POST /v1/jobs/{id}/replay: runs a composed job again from its recorded steps, as a new job.
 *
 * @throws ServiceError `job_not_finished` if the job has not ended
 */
export async function replayJob(context: IngressContext, call: Call): Promise<void> {
  await runAgain(context, call, 'replay')
}

async function runAgain(context: IngressContext, call: Call, how: 'redrive' | 'replay'): Promise<void> {
  const jobs = requireJobs(context)
  refuseJobHeaders(call.headers, 'a redrive or replay uses the options of the original job. Omit the header.')
  const job = await findJob(jobs, call)
  const { id, tenant, endpoint, model, pool } = job
  // Since the first run, the key may have lost a right, and the catalogue may have lost the model. Both are checked again.
  requireEndpoint(call.key, endpoint)
  if (endpoint === RESPONSES_PATH) {
    const { encode } = await readStoredResponse(context, job)
    const { tools } = (encode.responses?.shown ?? {}) as { readonly tools?: readonly { readonly type: string }[] }
    requireHosted(call.key, tools ?? [])
  }
  if (hasModels(pool)) requireModelOf(findEndpoint(context, endpoint), context, call, model)
  const key = readIdempotencyKey(call.headers['idempotency-key'])
  const asked = await idempotencyOf(key, call, null, context.config.jobRetentionMs)
  const { job: again, isReplay } = acceptedOf(await jobs[how](tenant, id, asked))
  call.facts.job_id = again.id
  if (isReplay) call.reply.setHeader('idempotency-replayed', 'true')
  await sendAccepted(jobs, call, again)
}

export async function deleteJob(context: IngressContext, call: Call): Promise<void> {
  const jobs = requireJobs(context)
  const { id, tenant } = await findJob(jobs, call)
  await jobs.erase(tenant, id)
  await call.reply.whole({ id, object: 'job.deleted', deleted: true })
}

export async function jobWithDetails(
  context: IngressContext,
  job: DurableJob,
  known?: unknown,
): Promise<Record<string, unknown>> {
  const jobs = requireJobs(context)
  const result = known ?? (job.state === 'completed' ? await jobs.result(job.tenant, job.id) : null)
  const isComposed = job.children + job.steps > 0
  const family = isComposed ? { children: await jobs.childrenOf(job), steps: await jobs.stepsOf(job) } : {}
  const position = await jobs.positions.of(job)
  const [deliveries, counts] = await Promise.all([jobs.deliveriesOf(job), childCountsOf(context, job)])
  const cost = costOf(context, job, { result, ...family })
  return jobObject(job, { result, position, deliveries, counts, cost, ...family })
}

interface Known {
  readonly result: unknown
  readonly children?: readonly DurableJob[]
  readonly steps?: readonly DoneStep[]
}

/**
 * Returns the cost of a job so far in US dollars, at current prices, including its child jobs and steps. Undefined if
 * none of them has a price. The charged amounts are in the usage ledger (docs/operate/usage.md).
 */
function costOf(
  { models }: { readonly models: Pick<ModelCatalogue, 'priceOf'> },
  job: DurableJob,
  { result, children = [], steps = [] }: Known,
): number | undefined {
  const ofSteps = steps.map(({ cost }) => (cost.cost_usd === undefined ? undefined : cost.cost_usd * NANOS_PER_USD))
  const isWhole = children.length === 0
  const own = isWhole ? nanosOf(models, job) : undefined
  const ofChildren = children.map((child) => nanosOf(models, child))
  const all = job.kind === batch.name ? [ofBatch(models, result)] : [own, ...ofChildren, ...ofSteps]
  const known = all.filter((nanos) => nanos !== undefined)
  return known.length === 0 ? undefined : known.reduce((sum, nanos) => sum + nanos, 0) / NANOS_PER_USD
}

type Prices = Pick<ModelCatalogue, 'priceOf'>

/**
 * Returns the cost of a job without its child jobs. A composed job reports the tokens of its child jobs as its own, so
 * its tokens are not counted here.
 */
function nanosOf(models: Prices, { pool, model, state, usage }: DurableJob): number | undefined {
  if (usage === null || usage === undefined || pool === 'research' || pool === 'batches') return undefined
  return callCost(meteredOf(usage), models.priceOf({ pool, model }), state === 'completed')
}

function ofBatch(models: Prices, result: unknown): number | undefined {
  const { model, usage, counts } = (result ?? {}) as { model?: string; usage?: object; counts?: { completed: number } }
  const price = typeof model === 'string' ? models.priceOf({ pool: 'inference', model }) : undefined
  if (!price || !usage || !counts) return undefined
  const ofTokens = callCost(meteredOf(usage), { ...price, per_call: 0 }, true)
  const ofCalls = price.per_call * counts.completed * NANOS_PER_USD
  return ofTokens === undefined && ofCalls === 0 ? undefined : (ofTokens ?? 0) + ofCalls
}

function meteredOf(usage: unknown) {
  const { input_tokens, cached_tokens, output_tokens } = usageOf(usage)
  const { type, seconds = 0 } = usage as { type?: unknown; seconds?: number }
  const audio_ms = type === 'duration' ? Math.round(seconds * 1_000) : 0
  return { input_tokens, cached_tokens, output_tokens, audio_ms, run_ms: 0, cost_nanos: 0 }
}

/** Maximum steps per page. Each step may have 64 KiB of input and 1 MiB of output. */
const LIMIT_MAX = 20
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
