import { type ModelPool, POOLS } from '#schemas/job.ts'
import type { GenerateRequest } from '#schemas/kinds/generate.ts'
import type { ModelConfig, ModelTask, ModelWork } from '#schemas/models.ts'
import { requireRemoteUrl } from '#services/ingress/body/decode.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { affinityKeyOf, affinityModelOf } from '#shared/engines/upstream/affinity.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { similarNameOf } from '#shared/lib/similar-name.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { nativeUrlsOf } from '#shared/outbound/native-urls.ts'
import type { Caller, IngressContext, PreparedCall } from './call.ts'

export function takeBody(call: PreparedCall): unknown {
  const { body } = call
  call.body = undefined
  return body
}

/** Encoding options of an answer, without the job id and the creation time, which are known only after the job was created. */
export function encodeOf({ model, named, encode }: PreparedCall, requestId: string) {
  return { request_id: requestId, model: named ?? model, include_usage: false, version: '', ...encode }
}

/**
 * Finds a model that a caller may use for one of several kinds of work, such as embedding.
 *
 * @throws ServiceError `model_not_found`, `model_not_allowed`, `model_not_supported`
 */
export function getModel(
  context: IngressContext,
  { key }: Pick<Caller, 'key'>,
  id: string,
  ...works: readonly [ModelWork, ...ModelWork[]]
): ModelConfig {
  const model = context.models.find(id)
  if (!model) {
    throw modelNotFound(context, key, id, works)
  }
  if (!isUsable(model, key)) {
    const message = `This API key may not use the model '${model.id}'.${namedFor(context, key, id, works)}`
    throw new ServiceError('model_not_allowed', message, { param: 'model' })
  }
  if (!isDoing(model, works)) {
    const message = `The model '${model.id}' does not ${phraseOf(works)}.${namedFor(context, key, id, works)}`
    throw new ServiceError('model_not_supported', message, { param: 'model' })
  }
  return model
}

const TASKS: Readonly<Record<ModelTask, string>> = { moderation: 'moderate', speech: 'speak', rerank: 'rerank' }

/** Returns a verb phrase for the first of some kinds of work, such as `generate text`. */
function phraseOf([work]: readonly [ModelWork, ...ModelWork[]]): string {
  return work in TASKS ? TASKS[work as ModelTask] : POOLS[work as ModelPool].work
}

function isDoing({ task, pool }: ModelConfig, works: readonly string[]): boolean {
  return works.includes(task ?? pool)
}

const NAMED_MAX = 10
const ID_CHARS_MAX = 200

/**
 * Returns the error for an unknown model id. The message lists models that the key may use, most similar first.
 *
 * @param works Lists only models for one of these kinds of work. Default: all models
 */
export function modelNotFound(
  context: Pick<IngressContext, 'models'>,
  key: Pick<Caller['key'], 'models'>,
  id: string,
  works?: readonly [ModelWork, ...ModelWork[]],
): ServiceError {
  const message = `The model '${beginningOf(id, ID_CHARS_MAX)}' ${NO_ACCESS}${namedFor(context, key, id, works)}`
  return new ServiceError('model_not_found', message, { param: 'model' })
}

function namedFor(
  { models }: Pick<IngressContext, 'models'>,
  key: Pick<Caller['key'], 'models'>,
  id: string,
  works: readonly [ModelWork, ...ModelWork[]] | undefined,
): string {
  const usable = models.models.filter((model) => isUsable(model, key) && (!works || isDoing(model, works)))
  const similar = similarNameOf(
    id,
    usable.flatMap((model) => [model.id, ...model.aliases]),
  )
  const names = similar.map(({ name }) => name)
  const [nearest] = similar
  // If a key is restricted to some models, then the message does not ask "Did you mean …?". The name may be the correct
  // name of a model that the key may not use.
  const isTypo =
    !key.models && nearest && nearest.distance > 0 && nearest.distance <= Math.min(id.length, nearest.name.length) / 4
  const meant = isTypo ? ` Did you mean ${nearest.name}?` : ''
  const more = names.length > NAMED_MAX ? ` and ${names.length - NAMED_MAX} more` : ''
  if (names.length > 0) return `${meant} This key may use: ${names.slice(0, NAMED_MAX).join(', ')}${more}.`
  return works ? ` No model that this key may use can ${phraseOf(works)}.` : ''
}

export const NO_ACCESS = 'does not exist or you do not have access to it.'

export function isUsable(model: ModelConfig, key: Pick<Caller['key'], 'models'>): boolean {
  return !key.models || key.models.includes(model.id)
}

/**
 * Headers that are forwarded to every upstream. Routers use a session id to keep a conversation on one server.
 */
const FORWARDED = ['x-session-id', 'x-session-affinity', 'session-id'] as const

/**
 * Headers that are not copied here, even if `forward_headers` names them. The field `traceparent` of the job contains all
 * three, and upstream requests get them from this field.
 */
const TRACE_CONTEXT: ReadonlySet<string> = new Set(['traceparent', 'tracestate', 'baggage'])

/**
 * Maximum characters of one forwarded header. A longer value is dropped, because every attempt of the job carries the
 * headers. No real session id is this long.
 */
const HEADER_CHARS_MAX = 4_096

/**
 * Returns the request fields whose values come from the call instead of its body: the alias of the model, and headers
 * for the upstream.
 *
 * @param asked Field `model` of the body
 */
export function upstreamFields(
  caller: Pick<Caller, 'key' | 'headers'>,
  model: ModelConfig,
  asked: unknown,
): Pick<GenerateRequest, 'named' | 'headers'> {
  const headers: Record<string, string> = {}
  for (const name of [...FORWARDED, ...model.forward_headers]) {
    if (TRACE_CONTEXT.has(name)) continue
    const value = caller.headers[name]
    if (typeof value === 'string' && value !== '' && value.length <= HEADER_CHARS_MAX) headers[name] = value
  }
  if (model.project_header !== undefined) headers[model.project_header] = encodeURIComponent(projectIdOf(caller.key))
  return {
    ...(typeof asked === 'string' && asked !== model.id && { named: asked }),
    ...(Object.keys(headers).length > 0 && { headers }),
  }
}

/**
 * Returns the affinity key of a request. Empty if the model has only one server, or needs no key for another reason
 * (`shared/engines/upstream/affinity.ts`).
 *
 * @param conversation Id of the stored conversation
 */
export function affinityField(
  { models, conversations }: Pick<IngressContext, 'models' | 'conversations'>,
  { key, headers }: Pick<Caller, 'key' | 'headers'>,
  model: ModelConfig,
  request: GenerateRequest,
  conversation?: string,
): Pick<GenerateRequest, 'affinity'> {
  const placed = affinityModelOf(model, (id) => models.find(id))
  if (!placed) return {}
  const affinity = affinityKeyOf(request, { project: projectIdOf(key), headers, id: conversation })
  return affinity === undefined ? {} : { affinity: conversations.keyOf(placed, affinity) }
}

/**
 * Checks the URLs in native parts, which are passed to an upstream unchanged. The hosts must be public. URLs of images
 * and files are refused if the operator does not allow remote images.
 *
 * @throws ServiceError `invalid_value`, `unsupported_value`
 */
export async function requireNativeUrls(request: GenerateRequest, remoteImages: boolean): Promise<void> {
  await runYielding(checkNativeUrls(request, remoteImages))
}

function* checkNativeUrls(request: GenerateRequest, remoteImages: boolean): Generator<undefined, void> {
  for (const { url, isMedia } of yield* nativeUrlsOf(request)) {
    requireRemoteUrl(url, 'body', remoteImages || !isMedia)
    yield
  }
}

/** Header with the id of the caller's end user, for attribution and a limit per user (docs/guides/code.md, End users). */
const USER_HEADER = 'x-service-userid'
const USER_ID_CHARS_MAX = 256

export function userIdOf({ headers }: Caller): string | undefined {
  const userId = headers[USER_HEADER]?.toString().trim()
  if (!userId) return undefined
  if (userId.length <= USER_ID_CHARS_MAX) return userId
  const message = `Invalid '${USER_HEADER}': expected at most ${USER_ID_CHARS_MAX} characters.`
  throw new ServiceError('string_above_max_length', message, { param: USER_HEADER })
}
