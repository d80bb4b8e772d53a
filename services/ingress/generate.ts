import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { isGenerateOutput, mergeGenerateEvents } from '#shared/engines/generate-events.ts'
import { ServiceError } from '#shared/error.ts'
import type { AttachedJob } from '#shared/jobs/attached-job.ts'
import type { Call, IngressContext } from './call.ts'
import type { EncodeContext, Protocol } from './protocol.ts'
import { respondStream, respondWhole } from './respond.ts'
import { UsageCount } from './usage-count.ts'

/** What the two protocols ask of the caller beside the body. */
export interface GenerateOptions {
  readonly includeUsage: boolean
  /** Date of the messages format; empty for chat completions. */
  readonly version: string
}

/**
 * Answers one call to generate text: decode, submit, stream or collect, encode. The same for both protocols.
 *
 * @throws ServiceError as long as nothing was sent
 */
export async function generate(
  context: IngressContext,
  call: Call,
  protocol: Protocol,
  body: unknown,
  options: GenerateOptions,
): Promise<void> {
  const request = protocol.decode(body, {
    getModel: (id) => getModel(context, call, id),
    strictTurns: context.config.strictTurns,
    remoteImages: context.config.remoteImages,
  })
  call.facts.model = request.model
  const job = await submit(context, call, request)
  const encode: EncodeContext = {
    requestId: call.requestId,
    callId: job.id.slice('job_'.length),
    createdSeconds: Math.floor(job.envelope.created_at_ms / 1_000),
    request,
    ...options,
  }
  const usage = new UsageCount(context, call)
  try {
    if (request.stream) {
      const encoder = protocol.openStream(encode)
      const onDelta = (delta: unknown) => usage.see(delta as GenerateEvent)
      await respondStream(call, job, encoder, onDelta, context.config.slowReaderMs)
    } else {
      const encodeAll = (deltas: unknown[]) => {
        for (const delta of deltas) usage.see(delta as GenerateEvent)
        return protocol.encodeWhole(deltas as GenerateEvent[], encode)
      }
      await respondWhole(call, job, encodeAll, context.config.slowReaderMs)
    }
  } finally {
    usage.end()
    noteJob(context, call, job)
    context.jobs.cancel(job)
  }
}

/** Finds a model for a call of this key. @throws ServiceError `model_not_found`, `model_not_allowed`, `model_not_supported` */
export function getModel(context: IngressContext, call: Call, id: string): ModelConfig {
  const model = context.models.find(id)
  if (!model) {
    throw new ServiceError(
      'model_not_found',
      `The model '${id.slice(0, 200)}' does not exist or you do not have access to it.`,
      {
        param: 'model',
      },
    )
  }
  if (call.key.models && !call.key.models.includes(model.id)) {
    throw new ServiceError('model_not_allowed', `This API key may not use the model '${model.id}'.`, { param: 'model' })
  }
  if (model.pool !== 'inference') {
    throw new ServiceError('model_not_supported', `The model '${model.id}' does not generate text.`, { param: 'model' })
  }
  return model
}

async function submit(context: IngressContext, call: Call, request: GenerateRequest): Promise<AttachedJob> {
  const job = await context.jobs.submit({
    pool: 'inference',
    kind: 'generate',
    tenant: call.key.id,
    model: request.model,
    body: request,
    stream: request.stream,
    timeoutMs: context.config.requestTimeoutMs,
    requestId: call.requestId,
    traceparent: call.req.get('traceparent'),
    merge: mergeGenerateEvents,
    isOutput: isGenerateOutput,
  })
  call.facts.job_id = job.id
  // A closed connection is the only way an SDK has to say stop (contract A.7).
  const onClose = () => context.jobs.cancel(job)
  call.res.once('close', onClose)
  if (call.res.destroyed) onClose()
  return job
}

function noteJob(context: IngressContext, call: Call, job: AttachedJob): void {
  const { created_at_ms, pool, model } = job.envelope
  call.facts.attempts = job.attempt
  if (job.startedAtMs !== undefined) {
    call.facts.queue_ms = job.startedAtMs - created_at_ms
    context.metrics.queueSeconds.observe({ pool }, call.facts.queue_ms / 1_000)
  }
  if (job.firstOutputAtMs !== undefined) {
    call.facts.first_output_ms = job.firstOutputAtMs - created_at_ms
    context.metrics.firstOutputSeconds.observe({ pool, model }, call.facts.first_output_ms / 1_000)
  }
}
