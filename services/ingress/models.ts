import type { Model, ModelConfig } from '#schemas/models.ts'
import { ServiceError } from '#shared/error.ts'
import type { Call, IngressContext } from './call.ts'

const PREFIX = '/v1/models/'

/** GET /v1/models (spec 4.7): the models this key may use. */
export function listModels(context: IngressContext, call: Call): void {
  const visible = context.models.models.filter((model) => isVisible(model, call))
  call.res.json({ object: 'list', data: visible.map(modelOf) })
}

/** GET /v1/models/{model} (spec 4.8). The id may hold slashes, escaped or not (contract 0.13). */
export function retrieveModel(context: IngressContext, call: Call): void {
  const id = decode(call.req.path.slice(PREFIX.length))
  const model = id === undefined ? undefined : context.models.find(id)
  if (!model || !isVisible(model, call)) {
    throw new ServiceError(
      'model_not_found',
      `The model '${id?.slice(0, 200) ?? ''}' does not exist or you do not have access to it.`,
      {
        param: 'model',
      },
    )
  }
  call.res.json(modelOf(model))
}

function isVisible(model: ModelConfig, call: Call): boolean {
  return !call.key.models || call.key.models.includes(model.id)
}

function modelOf(model: ModelConfig): Model {
  const { id, created, owned_by, limits } = model
  return {
    id,
    object: 'model',
    created,
    owned_by,
    permission: [],
    root: '',
    parent: '',
    capabilities: capabilitiesOf(model),
    ...(limits.context_tokens !== undefined && { context_length: limits.context_tokens }),
    ...(limits.max_output_tokens !== undefined && { max_output_tokens: limits.max_output_tokens }),
  }
}

function capabilitiesOf({ pool, capabilities, transcription }: ModelConfig): string[] {
  if (pool === 'embeddings') return ['embeddings']
  if (pool === 'transcription') return ['transcription', ...(transcription.diarize ? ['diarization'] : [])]
  return ['chat', 'messages', ...Object.entries(capabilities).flatMap(([name, isAble]) => (isAble ? [name] : []))]
}

function decode(escaped: string): string | undefined {
  try {
    return decodeURIComponent(escaped)
  } catch {
    return undefined
  }
}
