import { CountTokensResult } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import type { Call, IngressContext } from './call.ts'
import { getModel } from './generate.ts'
import { decodeCountTokens, parseVersion } from './messages.ts'

/** Counting is quick or it fails. */
const TIMEOUT_MS = 30_000

/** POST /v1/messages/count_tokens (contract C.6): counted by the engine's own tokenizer, as a job of its pool. */
export async function countTokens(context: IngressContext, call: Call, body: unknown): Promise<void> {
  parseVersion(call.req.headers)
  const request = decodeCountTokens(body, {
    getModel: (id) => getModel(context, call, id),
    strictTurns: context.config.strictTurns,
    remoteImages: context.config.remoteImages,
  })
  call.facts.model = request.model
  const job = await context.jobs.submit({
    pool: 'inference',
    kind: 'count_tokens',
    tenant: call.key.id,
    model: request.model,
    body: request,
    stream: false,
    timeoutMs: TIMEOUT_MS,
    requestId: call.requestId,
    traceparent: call.req.get('traceparent'),
    merge: () => undefined,
    isOutput: () => true,
  })
  call.facts.job_id = job.id
  call.res.once('close', () => context.jobs.cancel(job))
  if (call.res.destroyed) return context.jobs.cancel(job)
  const [result] = (await job.next()) ?? []
  if (call.res.destroyed) return
  const parsed = CountTokensResult.safeParse(result)
  if (!parsed.success) throw new ServiceError('internal_error', 'The tokens could not be counted.')
  call.res.json({ input_tokens: parsed.data.input_tokens })
}
