import { SubmitJob, Webhook } from '#schemas/jobs.ts'
import { ServiceError } from '#shared/error.ts'
import { checkWebhookUrl } from '#shared/outbound/guard.ts'
import { requireEndpoint } from './auth.ts'
import type { Call, IngressContext } from './call.ts'
import { boundMetadata, createJob, requireJobs, sendAccepted } from './durable.ts'
import { findEndpoint } from './endpoints.ts'
import { isJobId } from './jobs-paths.ts'
import { parseBody, refuseUnknown } from './validate.ts'
import { readIdempotencyKey } from './wishes.ts'

/** Events a webhook is told unless it asks for others (contract H.7). */
const WEBHOOK_EVENTS_DEFAULT = ['job.completed', 'job.failed', 'job.cancelled', 'job.expired']
/** How far ahead a job may be scheduled. */
const RUN_AHEAD_MS_MAX = 7 * 24 * 3_600_000

/** POST /v1/jobs (contract H.3): a call to another endpoint, checked as that endpoint would, to be run as a durable job. */
export async function submitJob(context: IngressContext, call: Call, body: unknown): Promise<void> {
  const jobs = requireJobs(context)
  refuseUnknown(SubmitJob, body)
  refuseUnknown(Webhook, (body as { webhook?: unknown } | null)?.webhook, 'webhook.')
  const submit = parseBody(SubmitJob, body, 'openai')
  const endpoint = findEndpoint(submit.endpoint)
  requireEndpoint(call.key, endpoint.path)
  const { key, requestId } = call
  const prepared = prepareInner(() => {
    const inner = endpoint.prepare(context, { key, requestId, headers: call.req.headers }, submit.body)
    boundMetadata(inner.metadata)
    return inner
  })
  call.facts.model = prepared.model
  call.facts.user_id = prepared.userId
  await context.limits.countUser(key.id, prepared.userId)
  const wishes = {
    idempotencyKey: readIdempotencyKey(call.req.headers['idempotency-key']),
    isAsync: true,
    deadlineInMs: deadlineOf(context, submit),
    startInMs: submit.start_within_seconds == null ? undefined : submit.start_within_seconds * 1_000,
    runAtMs: runAtOf(submit),
    priority: submit.priority ?? undefined,
    metadata: boundMetadata(submit.metadata ?? undefined),
    webhook: webhookOf(context, submit),
    parentId: submit.parent_id ?? undefined,
  }
  if (wishes.parentId !== undefined) await requireParent(jobs, key.id, wishes.parentId)
  const { job, isReplay } = await createJob(context, call, endpoint, prepared, body, wishes)
  if (isReplay) call.res.setHeader('idempotency-replayed', 'true')
  sendAccepted(call, job)
}

/** Problems of the inner body are named by their path from the outer one. */
function prepareInner<T>(prepare: () => T): T {
  try {
    return prepare()
  } catch (error) {
    if (!(error instanceof ServiceError) || error.param === null) throw error
    throw new ServiceError(error.code, error.message, { cause: error, param: `body.${error.param}` })
  }
}

function deadlineOf({ config }: IngressContext, { expires_after_seconds }: SubmitJob): number {
  if (expires_after_seconds == null) return config.jobDeadlineMs
  const ms = expires_after_seconds * 1_000
  if (ms <= config.jobDeadlineMaxMs) return ms
  const most = Math.floor(config.jobDeadlineMaxMs / 1_000)
  throw new ServiceError('integer_above_max_value', `A job may take at most ${most} seconds here.`, {
    param: 'expires_after_seconds',
  })
}

function runAtOf({ run_at }: SubmitJob): number | undefined {
  if (run_at == null) return undefined
  const ms = run_at * 1_000
  if (ms <= Date.now() + RUN_AHEAD_MS_MAX) return ms
  const message = 'A job may be scheduled at most 7 days ahead. Times are unix seconds.'
  throw new ServiceError('invalid_value', message, { param: 'run_at' })
}

function webhookOf({ config }: IngressContext, { webhook }: SubmitJob): { url: string; events: string[] } | undefined {
  if (!webhook) return undefined
  checkWebhookUrl(webhook.url, { allowPrivate: config.webhookAllowPrivate })
  return { url: webhook.url, events: webhook.events ?? WEBHOOK_EVENTS_DEFAULT }
}

async function requireParent(jobs: ReturnType<typeof requireJobs>, tenant: string, id: string): Promise<void> {
  const parent = isJobId(id) && (await jobs.store.find(tenant, id))
  if (!parent) throw new ServiceError('invalid_value', 'There is no such parent job.', { param: 'parent_id' })
}
