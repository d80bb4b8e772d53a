import type { IncomingMessage } from 'node:http'
import type { z } from 'zod'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { GenerateRequest } from '#schemas/generate.ts'
import { type EncodeContext, type ModelPool, POOLS, type SharedHistory } from '#schemas/job.ts'
import type { ModelConfig, ModelTask, ModelWork } from '#schemas/models.ts'
import type { WireFormat } from '#services/ingress/body/body.ts'
import { requireRemoteUrl } from '#services/ingress/body/decode.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { similarNameOf } from '#shared/lib/similar-name.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { nativeUrlsOf } from '#shared/outbound/native-urls.ts'
import type { Call, IngressContext } from './call.ts'

export type Caller = Pick<Call, 'key' | 'headers'>

export interface PreparedCall {
  readonly model: string
  readonly named?: string | undefined
  /**
   * Body in the internal form of the kind. After a job was created from it, {@link takeBody} removes it, so that the
   * memory can be freed.
   */
  body: unknown
  /** Id of the caller's end user, whose calls have their own rate limit. */
  readonly userId?: string | undefined
  readonly attachments?: readonly string[]
  /**
   * Stored segments of a conversation with which the prompt begins. A durable job stores references to these segments
   * instead of a copy.
   */
  readonly history?: SharedHistory | undefined
  readonly stream: boolean
  /**
   * True if the answer is plain text. No keep-alives are written then, because their characters would become part of
   * the text.
   */
  readonly isText?: boolean
  /**
   * True if the bytes of an answer are sent while they are generated. Only for an attached job, because a durable job
   * stores the whole answer first.
   */
  readonly isBytes?: boolean
  readonly timeoutMs: number
  /**
   * Time that a cancelled job has to write a partial result, in milliseconds. Only for composed durable jobs. If
   * undefined, then the job is cancelled at once.
   */
  readonly partialMs?: number
  readonly answerBytesMax?: number
  readonly encode?: Partial<EncodeContext>
  readonly metadata?: Record<string, string> | undefined
  /**
   * Called when the durable job is stored, before its id is sent.
   *
   * @throws ServiceError to cancel the job
   */
  readonly onCreated?: (job: DurableJob) => Promise<void>
}

/**
 * How an endpoint answers calls that become durable jobs. Calls with `Prefer: respond-async` receive the job object
 * instead.
 */
export interface StoredAnswers {
  accepted(context: IngressContext, call: Call, job: DurableJob): Promise<void>
  formatted(result: unknown, encode: Partial<EncodeContext>): unknown
  stream(context: IngressContext, call: Call, job: DurableJob, isBackground: boolean): Promise<void>
}

type NamedSchemas = Readonly<Record<string, z.ZodType>>

/** Entry of an endpoint in the API reference. The key of a schema is the name of its component in the OpenAPI document. */
export interface EndpointReference {
  readonly id: string
  readonly tag: 'Chat' | 'Responses' | 'Embeddings' | 'Audio' | 'Tools'
  /** Summary as an imperative without a full stop, such as "Create a batch". */
  readonly summary: string
  readonly description?: string
  /** Page of the guide, optionally with an anchor: `embeddings#reranking`. */
  readonly guide?: string
  readonly headers?: readonly 'anthropic-version'[]
  readonly form?: 'multipart/form-data'
  readonly body: NamedSchemas
  readonly answer: {
    readonly description: string
    readonly json: NamedSchemas
    readonly media?: readonly string[]
    /** Schema of each `data:` line of a stream; null if events have several schemas. Absent: the answer is never streamed. */
    readonly events?: NamedSchemas | null
  }
}

/**
 * An endpoint whose calls become jobs. From this record follow the routes, the API reference, docs/reference/endpoints.md and
 * the console. Jobs, batches and WebSockets accept the calls of each record.
 */
export interface JobEndpoint {
  readonly path: string
  /** Loads the schemas of the answer, which need 3 MiB of memory. */
  describe(): Promise<EndpointReference>
  readonly format: WireFormat
  readonly kind: Kind
  /**
   * True if every call becomes a durable job. If the caller waits for the answer, then closing the connection still
   * cancels the job.
   */
  readonly isDurable?: boolean
  /** Whether this call becomes a durable job. The body is not validated yet, so it may have any shape. */
  isStored?(context: IngressContext, body: unknown, caller: Caller): boolean
  /** How durable jobs are answered; default: the job object, and the recorded events as the stream. */
  readonly stored?: StoredAnswers
  /**
   * Checks that a caller may use a model for this endpoint. Default: any model of the kind's pool.
   *
   * @throws ServiceError as `getModel`
   */
  requireModel?(context: IngressContext, caller: Caller, model: string): void
  /** Whether the answer to this body can be streamed. If so, streaming is the default over a WebSocket. */
  canStream?(body: Record<string, unknown>): boolean
  readBody?(context: IngressContext, call: Call, req: IncomingMessage): Promise<unknown>
  prepare(context: IngressContext, caller: Caller, body: unknown): PreparedCall | Promise<PreparedCall>
}

export function takeBody(call: PreparedCall): unknown {
  const { body } = call
  call.body = undefined
  return body
}

/** Encoding options of an answer, without the job id and the creation time, which a job adds later. */
export function encodeOf({ model, named, encode }: PreparedCall, requestId: string) {
  return { request_id: requestId, model: named ?? model, include_usage: false, version: '', ...encode }
}

export function encodeContextOf(
  call: PreparedCall,
  requestId: string,
  jobId: string,
  createdAtMs: number,
): EncodeContext {
  const call_id = jobId.slice('job_'.length)
  return { ...encodeOf(call, requestId), call_id, created_at: Math.floor(createdAtMs / 1_000) }
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
    const [work] = works
    const wanted = work in TASKS ? TASKS[work as ModelTask] : POOLS[work as ModelPool].work
    const message = `The model '${model.id}' does not ${wanted}. GET /v1/models lists what each can do.`
    throw new ServiceError('model_not_supported', message, { param: 'model' })
  }
  return model
}

const TASKS: Readonly<Record<ModelTask, string>> = { moderation: 'moderate', speech: 'speak', rerank: 'rerank' }

function isDoing({ task, pool }: ModelConfig, works: readonly string[]): boolean {
  return works.includes(task ?? pool)
}

const NAMED_MAX = 10

/**
 * Error for an unknown model id. The message lists models that the key may use, most similar first.
 *
 * @param works Lists only models for one of these kinds of work; undefined: all models
 */
export function modelNotFound(
  context: Pick<IngressContext, 'models'>,
  key: Pick<Caller['key'], 'models'>,
  id: string,
  works?: readonly ModelWork[],
): ServiceError {
  const message = `The model '${beginningOf(id, 200)}' ${NO_ACCESS}${namedFor(context, key, id, works)}`
  return new ServiceError('model_not_found', message, { param: 'model' })
}

function namedFor(
  { models }: Pick<IngressContext, 'models'>,
  key: Pick<Caller['key'], 'models'>,
  id: string,
  works: readonly ModelWork[] | undefined,
): string {
  const usable = models.models.filter((model) => isUsable(model, key) && (!works || isDoing(model, works)))
  const names = similarNameOf(
    id,
    usable.flatMap((model) => [model.id, ...model.aliases]),
  ).map(({ name }) => name)
  const more = names.length > NAMED_MAX ? ` and ${names.length - NAMED_MAX} more` : ''
  return names.length > 0 ? ` This key may use: ${names.slice(0, NAMED_MAX).join(', ')}${more}.` : ''
}

export const NO_ACCESS = 'does not exist or you do not have access to it.'

export function isUsable(model: ModelConfig, key: Pick<Caller['key'], 'models'>): boolean {
  return !key.models || key.models.includes(model.id)
}

/**
 * Headers that are forwarded to every upstream: vendor parts of the trace context (W3C Trace Context, W3C Baggage), and
 * session ids. Routers use a session id to keep a conversation on one server. The header `traceparent` is part of the
 * job and is forwarded separately.
 */
const FORWARDED = ['tracestate', 'baggage', 'x-session-id', 'x-session-affinity', 'session-id'] as const

/**
 * Maximum characters of one forwarded header. A longer value is dropped, because every attempt of the job carries the
 * headers. No real session id is this long.
 */
const HEADER_CHARS_MAX = 4_096

/**
 * Request fields whose values come from the call and not from its body: the alias of the model, and headers for the
 * upstream.
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
