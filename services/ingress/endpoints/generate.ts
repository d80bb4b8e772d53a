import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import type { IngressContext, WireFormat } from '#services/ingress/call.ts'
import { inTurns } from '#shared/in-turns.ts'
import { isGenerateOutput, mergeGenerateEvents } from '#shared/kinds/generate.ts'
import { chatProtocol } from './chat/chat.ts'
import type { Caller, JobEndpoint, PreparedCall } from './endpoint.ts'
import { messagesProtocol, parseVersion, parseWishesUpstream } from './messages/messages.ts'
import { getModel } from './model.ts'
import type { Protocol } from './protocol.ts'

/** POST /v1/chat/completions (docs/protocol.md, Chat requests). */
export const chatCompletions: JobEndpoint = {
  path: '/v1/chat/completions',
  format: 'openai',
  canStream: () => true,
  async prepare(context, caller, body) {
    const chat = body as { stream_options?: { include_usage?: unknown }; metadata?: Record<string, string> } | null
    const includeUsage = chat?.stream_options?.include_usage === true
    const call = await prepareGenerate(context, caller, chatProtocol, 'openai', body, { includeUsage, version: '' })
    return { ...call, metadata: chat?.metadata ?? undefined }
  },
}

/** POST /v1/messages (docs/protocol.md, Messages requests). */
export const messages: JobEndpoint = {
  path: '/v1/messages',
  format: 'anthropic',
  canStream: () => true,
  prepare(context, caller, body) {
    const version = parseVersion(caller.headers)
    const anthropic = parseWishesUpstream(caller.headers)
    const options = { includeUsage: true, version, anthropic }
    return prepareGenerate(context, caller, messagesProtocol, 'anthropic', body, options)
  },
}

/** The same for both protocols: decode, and encode what comes back. */
async function prepareGenerate(
  context: IngressContext,
  caller: Caller,
  protocol: Protocol,
  format: WireFormat,
  body: unknown,
  options: { includeUsage: boolean; version: string; anthropic?: GenerateRequest['anthropic'] },
): Promise<PreparedCall> {
  const decoding = protocol.decode(withoutJobFields(body, format), {
    getModel: (id) => getModel(context, caller, id, 'inference'),
    strictTurns: context.config.strictTurns,
    remoteImages: context.config.remoteImages,
  })
  const decoded = await inTurns(decoding)
  const request = options.anthropic ? { ...decoded, anthropic: options.anthropic } : decoded
  return {
    pool: 'inference',
    kind: 'generate',
    model: request.model,
    body: request,
    stream: request.stream,
    timeoutMs: context.config.requestTimeoutMs,
    encode: {
      request_id: caller.requestId,
      model: request.model,
      include_usage: options.includeUsage,
      version: options.version,
    },
    merge: mergeGenerateEvents,
    isOutput: isGenerateOutput,
    encodeWhole: (deltas, encode) => protocol.encodeWhole(deltas as GenerateEvent[], encode),
    openStream: (encode) => protocol.openStream(encode),
  }
}

/** `background`, and outside of chat also `store`, belong to the job: an upstream would refuse them. */
function withoutJobFields(body: unknown, format: WireFormat): unknown {
  if (typeof body !== 'object' || body === null || !('background' in body || 'store' in body)) return body
  const { background: _background, ...rest } = body as Record<string, unknown>
  if (format === 'anthropic') delete rest.store
  return rest
}
