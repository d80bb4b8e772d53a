import {
  ListModels,
  type Model,
  type ModelConfig,
  type ModelInfo,
  type ModelWork,
  type Support,
  workOf,
} from '#schemas/models.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { isUsable, modelNotFound } from '#services/ingress/calls/endpoint.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { effectiveLimits, projectIdOf } from '#shared/keys/keys.ts'
import { DEFAULT_SECRET_ID, type WebhookSecret } from '#shared/keys/webhook-secrets.ts'
import { ServiceError } from '#shared/lib/error.ts'

const PREFIX = '/v1/models/'

/**
 * GET /v1/models: lists the models that this key may use, each under its id and its aliases. Clients of the Messages
 * API receive Anthropic's response format, in pages (docs/reference/compatibility.md, Model lists).
 */
export async function listModels(context: IngressContext, call: Call): Promise<void> {
  const named = context.models.models.filter((model) => isUsable(model, call.key)).flatMap(namesOf)
  const list = () => ({ object: 'list', data: named.map(({ model, name }) => modelOf(context, model, name)) })
  await call.reply.whole(call.format === 'anthropic' ? pageOf(named, call) : list())
}

/**
 * GET /v1/models/{model}: returns one model. The id may contain slashes, escaped or not
 * (docs/reference/compatibility.md, Model lists). If the caller used an alias, then the answer contains the alias as
 * the id.
 */
export async function retrieveModel(context: IngressContext, call: Call): Promise<void> {
  const id = decode(call.path.slice(PREFIX.length))
  const model = id === undefined ? undefined : context.models.find(id)
  if (!model || !isUsable(model, call.key)) throw modelNotFound(context, call.key, id ?? '')
  await call.reply.whole(call.format === 'anthropic' ? modelInfoOf(model, id ?? '') : modelOf(context, model, id ?? ''))
}

interface Named {
  readonly model: ModelConfig
  readonly name: string
}

function namesOf(model: ModelConfig): Named[] {
  return [model.id, ...model.aliases].map((name) => ({ model, name }))
}

/**
 * Returns a page of the list in the format of the Messages API. The cursors `after_id` and `before_id` are names of
 * models.
 *
 * @throws ServiceError if a cursor is not in the list
 */
function pageOf(all: readonly Named[], call: Call): object {
  const { limit, after_id, before_id } = parseBody(ListModels, { ...call.query }, 'messages')
  if (after_id !== undefined && before_id !== undefined) {
    throw new ServiceError('invalid_value', 'before_id cannot be combined with after_id.', { param: 'before_id' })
  }
  const isBackward = before_id !== undefined
  const end = isBackward ? indexOf(all, before_id, 'before_id') : all.length
  const start = after_id === undefined ? 0 : indexOf(all, after_id, 'after_id') + 1
  const page = isBackward ? all.slice(Math.max(0, end - limit), end) : all.slice(start, start + limit)
  const data = page.map(({ model, name }) => modelInfoOf(model, name))
  const has_more = isBackward ? end > limit : start + limit < all.length
  return { data, has_more, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
}

function indexOf(all: readonly Named[], id: string, param: string): number {
  const index = all.findIndex(({ name }) => name === id)
  if (index !== -1) return index
  throw new ServiceError('invalid_value', `No model has the id '${excerpt(id)}'. GET /v1/models lists the models.`, {
    param,
  })
}

function modelOf({ jobs }: IngressContext, model: ModelConfig, id: string): Model {
  const { created, owned_by, limits, price } = model
  const work = workOf(model)
  return {
    id,
    object: 'model',
    created,
    owned_by,
    permission: [],
    root: '',
    parent: '',
    ...(id !== model.id && { alias_of: model.id }),
    ...(jobs.presence.openCircuits.has(model.id) && { status: 'failing' as const }),
    capabilities: work ? CAPABILITIES[work](model) : [],
    ...(limits.context_tokens !== undefined && { context_length: limits.context_tokens }),
    ...(limits.max_output_tokens !== undefined && { max_output_tokens: limits.max_output_tokens }),
    ...(Object.values(price).some((amount) => amount > 0) && { price }),
  }
}

const CAPABILITIES: Readonly<Record<ModelWork, (model: ModelConfig) => string[]>> = {
  inference: ({ capabilities }) => [
    'chat',
    'completions',
    'messages',
    ...Object.entries(capabilities).flatMap(([name, isAble]) => (isAble ? [name] : [])),
  ],
  moderation: ({ capabilities }) => ['moderation', ...(capabilities.images ? ['images'] : [])],
  speech: () => ['speech'],
  embeddings: () => ['embeddings', 'rerank'],
  rerank: () => ['rerank'],
  research: () => ['deep_research'],
  transcription: ({ transcription: { diarize, translates } }) => [
    'transcription',
    ...(diarize ? ['diarization'] : []),
    ...(translates ? ['translation'] : []),
  ],
}

function decode(escaped: string): string | undefined {
  try {
    return decodeURIComponent(escaped)
  } catch {
    return undefined
  }
}

function modelInfoOf(model: ModelConfig, name: string): ModelInfo {
  const { created, limits } = model
  return {
    id: name,
    type: 'model',
    display_name: name,
    created_at: new Date(created * 1_000).toISOString().replace('.000Z', 'Z'),
    lifecycle: 'active',
    line: null,
    deprecated_at: null,
    retires_at: null,
    max_input_tokens: limits.context_tokens ?? null,
    max_tokens: limits.max_output_tokens ?? null,
    capabilities: capabilitiesOf(model),
  }
}

/**
 * Returns capabilities in the format of the Messages API. Features that Sluice offers for no model are reported as
 * unsupported, even if the model itself has them.
 */
function capabilitiesOf(model: ModelConfig): ModelInfo['capabilities'] {
  const { images, files, json, reasoning } = model.capabilities
  const isText = workOf(model) === 'inference'
  const no = { supported: false }
  const when = (isAble: boolean): Support => ({ supported: isText && isAble })
  const thinks = when(reasoning)
  return {
    batch: no,
    citations: no,
    code_execution: no,
    context_management: {
      ...no,
      clear_thinking_20251015: null,
      clear_tool_uses_20250919: null,
      compact_20260112: null,
    },
    effort: { ...thinks, low: thinks, medium: thinks, high: thinks, xhigh: thinks, max: thinks },
    image_input: when(images),
    pdf_input: when(files),
    server_tools: { ...no, code_execution: no, web_search: no },
    structured_outputs: when(json),
    thinking: { ...thinks, types: { adaptive: thinks, between_tools: thinks, disabled: thinks, enabled: thinks } },
  }
}

/** GET /v1/key: identity, rights and limits of the calling key. Allowed for every valid key. */
export async function readOwnKey({ config, keys }: IngressContext, { key, reply }: Call): Promise<void> {
  const { id, name = null, scopes = ['calls'], endpoints = null, models = null, expires_at = null } = key
  const limits = effectiveLimits(key, config, (project) => keys.limitsOf(project))
  const project = projectIdOf(key)
  const project_name = keys.known.projects.find((one) => one.id === project)?.name ?? null
  const head = { id, object: 'api_key', name, project, project_name }
  await reply.whole({ ...head, scopes, endpoints, models, limits, expires_at })
}

export async function listWebhookSecrets(context: IngressContext, call: Call): Promise<void> {
  requireJobs(context)
  const secrets = await context.keys.webhookSecretsOf(projectIdOf(call.key))
  call.reply.setHeader('cache-control', 'no-store')
  await call.reply.whole({ object: 'list', data: secrets.map(secretObject) })
}

function secretObject({ id, secret, created_at }: WebhookSecret) {
  const isDefault = id === DEFAULT_SECRET_ID
  return { id, object: 'webhook_secret', secret, created_at: isDefault ? null : created_at, is_default: isDefault }
}
