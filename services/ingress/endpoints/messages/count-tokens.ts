import { CountTokensResult } from '#schemas/generate.ts'
import type { JobEndpoint } from '#services/ingress/endpoints/endpoint.ts'
import { getModel } from '#services/ingress/endpoints/model.ts'
import { ServiceError } from '#shared/error.ts'
import { inTurns } from '#shared/in-turns.ts'
import { messagesEncoding } from '#shared/protocols/protocols.ts'
import { tolerant } from '#shared/tolerant.ts'
import { decodeCountTokens, parseVersion, parseWishesUpstream } from './messages.ts'

/** Counting is quick or it fails. */
const TIMEOUT_MS = 30_000

/** POST /v1/messages/count_tokens: counted by the engine's own tokenizer, as a job of its pool. */
export const countTokens: JobEndpoint = {
  path: '/v1/messages/count_tokens',
  format: 'anthropic',
  async prepare(context, caller, body) {
    const version = parseVersion(caller.headers)
    const anthropic = parseWishesUpstream(caller.headers)
    const decoding = decodeCountTokens(body, {
      getModel: (id) => getModel(context, caller, id, 'inference'),
      strictTurns: context.config.strictTurns,
      remoteImages: context.config.remoteImages,
    })
    const request = { ...(await inTurns(decoding)), anthropic }
    return {
      pool: 'inference',
      kind: 'count_tokens',
      model: request.model,
      body: request,
      stream: false,
      timeoutMs: TIMEOUT_MS,
      encode: { request_id: caller.requestId, model: request.model, include_usage: false, version },
      merge: () => undefined,
      isOutput: () => true,
      encodeWhole([result]) {
        const parsed = tolerant(CountTokensResult).safeParse(result)
        if (!parsed.success) throw new ServiceError('internal_error', 'The tokens could not be counted.')
        return { input_tokens: parsed.data.input_tokens }
      },
      openStream: (encode) => messagesEncoding.openStream(encode),
    }
  },
}
