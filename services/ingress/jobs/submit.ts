import { SubmitJob, Webhook } from '#schemas/jobs.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { requireEndpoint } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { createJob, sendAccepted } from '#services/ingress/calls/durable.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { boundMetadata, JobOptions } from '#services/ingress/calls/job-options.ts'
import { readIdempotencyKey } from '#services/ingress/calls/prefer-header.ts'
import { findEndpoint } from '#services/ingress/endpoints/endpoints.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** POST /v1/jobs (docs/guides/jobs.md, Submit): validates a call to another endpoint and runs it as a durable job. */
export async function submitJob(context: IngressContext, call: Call, body: unknown): Promise<void> {
  const jobs = requireJobs(context)
  refuseUnknown(SubmitJob, body)
  refuseUnknown(Webhook, (body as { webhook?: unknown } | null)?.webhook, 'webhook.')
  const submit = parseBody(SubmitJob, body, 'openai')
  const { endpoint: path, body: inner, ...fields } = submit
  const jobOptions = JobOptions.of(call.headers, fields)
  const endpoint = findEndpoint(path)
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
  // Options in headers are part of the fingerprint, like options in the body.
  const whole = jobOptions.isOfHeaders ? { ...(body as object), ...jobOptions.fields } : body
  const { job, isReplay } = await createJob(context, call, endpoint, prepared, whole, options)
  if (isReplay) call.reply.setHeader('idempotency-replayed', 'true')
  await sendAccepted(jobs, call, job)
}

/** Runs the validation of the called endpoint. Errors contain the path of the field in the outer body. */
async function prepareInner<T>(prepare: () => Promise<T>): Promise<T> {
  try {
    return await prepare()
  } catch (error) {
    if (!(error instanceof ServiceError) || error.param === null) throw error
    throw new ServiceError(error.code, error.message, { cause: error, param: `body.${error.param}` })
  }
}
