/*
 * Endpoints of text generation: chat completions, completions, messages, and the token count of a message.
 *
 * The problem: clients use several API formats, and models several engines. Without a common form, each format would need
 * code for each engine.
 *
 * 1. Fields that control the job, such as `background`, are removed, because upstreams would refuse them.
 * 2. `chat/decode.ts` or `messages/decode.ts` validates the body and converts it to a `GenerateRequest`, the internal
 *    form that all engines share. The key must have access to the model.
 * 3. Headers for the upstream are added, and URLs that the upstream would fetch are checked.
 * 4. `services/ingress/calls/answer.ts` makes a job of the call. The encoders in `shared/kinds/generate/` convert its events
 *    to the format of the caller.
 */

import { ChatRequest } from '#schemas/chat.ts'
import { CompletionsRequest } from '#schemas/completions.ts'
import type { GenerateRequest } from '#schemas/kinds/generate.ts'
import { CountTokensRequest, MessagesRequest } from '#schemas/messages.ts'
import type { WireFormat } from '#services/ingress/body/body.ts'
import type { DecodeContext } from '#services/ingress/body/decode.ts'
import type { Pieces } from '#services/ingress/body/validate.ts'
import type { Caller, IngressContext, JobEndpoint, PreparedCall } from '#services/ingress/calls/call.ts'
import { affinityField, getModel, requireNativeUrls, upstreamFields } from '#services/ingress/calls/endpoint.ts'
import { countTokens, generate } from '#shared/kinds/generate/generate.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { decodeChat, decodeCompletions } from './chat/decode.ts'
import {
  decodeCount,
  decodeMessages,
  type MessagesContext,
  parseUpstreamHeaders,
  parseVersion,
} from './messages/decode.ts'
import { searchesHere, withSearch } from './messages/native.ts'

const COUNT_TIMEOUT_MS = 30_000

const COMPLETION = 'The completion. With `stream: true`, chunks of the completion, followed by `[DONE]`.'

export const chatCompletions: JobEndpoint = {
  path: '/v1/chat/completions',
  async describe() {
    const { ChatCompletionAnswer, ChatCompletionChunk } = await import('#schemas/answers/chat.ts')
    return {
      id: 'createChatCompletion',
      tag: 'Chat',
      summary: 'Create a chat completion',
      description: 'Supports streaming, tools, JSON schemas, image input and log probabilities.',
      guide: 'text',
      body: { ChatCompletionRequest: ChatRequest },
      answer: {
        description: COMPLETION,
        json: { ChatCompletion: ChatCompletionAnswer },
        events: { ChatCompletionChunk },
      },
    }
  },
  format: 'openai',
  kind: generate,
  fields: ChatRequest.shape,
  canStream: () => true,
  prepare: (context, caller, body) => prepareOpenAi(context, caller, decodeChat, body),
}

export const completions: JobEndpoint = {
  ...chatCompletions,
  path: '/v1/completions',
  async describe() {
    const { CompletionAnswer: Completion } = await import('#schemas/answers/chat.ts')
    return {
      id: 'createCompletion',
      tag: 'Chat',
      summary: 'Create a completion of a raw prompt',
      description: '`prompt` is a string, a list of strings, a list of tokens, or a list of token lists.',
      guide: 'text',
      body: { CompletionRequest: CompletionsRequest },
      answer: { description: COMPLETION, json: { Completion }, events: { Completion } },
    }
  },
  fields: CompletionsRequest.shape,
  prepare: (context, caller, body) => prepareOpenAi(context, caller, decodeCompletions, body),
}

export const messages: JobEndpoint = {
  path: '/v1/messages',
  async describe() {
    const { MessageAnswer: Message } = await import('#schemas/answers/messages.ts')
    return {
      id: 'createMessage',
      tag: 'Chat',
      summary: 'Create a message (Anthropic format)',
      guide: 'text',
      headers: ['anthropic-version'],
      body: { MessageRequest: MessagesRequest },
      answer: { description: 'The message. With `stream: true`, its events.', json: { Message }, events: null },
    }
  },
  format: 'anthropic',
  kind: generate,
  fields: MessagesRequest.shape,
  canStream: () => true,
  isStored: searchesHere,
  async prepare(context, caller, body) {
    const call = await prepareMessages(context, caller, decodeMessages, withoutJobFields(body, 'anthropic'))
    return { ...call, body: withSearch(context, caller, call.body) }
  },
}

/**
 * POST /v1/messages/count_tokens (docs/reference/compatibility.md, Counting tokens). A worker of the model counts with
 * the tokenizer of its engine.
 */
export const messagesCount: JobEndpoint = {
  path: '/v1/messages/count_tokens',
  async describe() {
    const { TokenCountAnswer: TokenCount } = await import('#schemas/answers/messages.ts')
    return {
      id: 'countMessageTokens',
      tag: 'Chat',
      summary: 'Count the tokens of a message request',
      guide: 'text',
      headers: ['anthropic-version'],
      body: { CountTokensRequest },
      answer: { description: 'The number of input tokens.', json: { TokenCount } },
    }
  },
  format: 'anthropic',
  kind: countTokens,
  fields: CountTokensRequest.shape,
  async prepare(context, caller, body) {
    return { ...(await prepareMessages(context, caller, decodeCount, body)), timeoutMs: COUNT_TIMEOUT_MS }
  },
}

type Decode = (body: unknown, context: DecodeContext) => Pieces<GenerateRequest>

async function prepareOpenAi(
  context: IngressContext,
  caller: Caller,
  decode: Decode,
  body: unknown,
): Promise<PreparedCall> {
  const asked = body as { stream_options?: { include_usage?: unknown }; metadata?: Record<string, string> } | null
  const call = await prepareGenerate(context, caller, decode, withoutJobFields(body, 'openai'))
  const include_usage = asked?.stream_options?.include_usage === true
  return { ...call, encode: { include_usage }, metadata: asked?.metadata ?? undefined }
}

async function prepareMessages(
  context: IngressContext,
  caller: Caller,
  decode: (body: unknown, context: MessagesContext) => Pieces<GenerateRequest>,
  body: unknown,
): Promise<PreparedCall & { body: GenerateRequest }> {
  const version = parseVersion(caller.headers)
  const anthropic = parseUpstreamHeaders(caller.headers)
  const decodeFor: Decode = (given, decoding) => decode(given, { ...decoding, beta: anthropic.beta })
  const { body: request, ...call } = await prepareGenerate(context, caller, decodeFor, body)
  return { ...call, body: { ...request, anthropic }, encode: { include_usage: true, version } }
}

async function prepareGenerate(
  context: IngressContext,
  caller: Caller,
  decode: Decode,
  body: unknown,
): Promise<PreparedCall & { body: GenerateRequest }> {
  const decoding = decode(body, {
    getModel: (id) => getModel(context, caller, id, 'inference'),
    strictTurns: context.config.strictTurns,
    remoteImages: context.config.remoteImages,
  })
  const request = await runYielding(decoding)
  const { model, stream } = request
  const config = getModel(context, caller, model, 'inference')
  const fields = upstreamFields(caller, config, (body as { model?: unknown }).model)
  Object.assign(request, fields, affinityField(context, caller, config, request))
  await requireNativeUrls(request, context.config.remoteImages)
  return { model, named: request.named, body: request, stream, timeoutMs: context.config.requestTimeoutMs }
}

/** Removes fields that control the job. In chat completions, `store` is a field of the API and stays. */
function withoutJobFields(body: unknown, format: WireFormat): unknown {
  if (typeof body !== 'object' || body === null || !('background' in body || 'store' in body)) return body
  const { background: _background, ...rest } = body as Record<string, unknown>
  if (format === 'anthropic') delete rest.store
  return rest
}
