import { z } from 'zod'
import { EmbeddingsBody, EmbedInput, TOKENS_MAX } from '#schemas/kinds/embeddings.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { readInputs } from '#services/ingress/body/decode.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { JobEndpoint } from '#services/ingress/calls/call.ts'
import { getModel } from '#services/ingress/calls/endpoint.ts'
import { answerBytesMax, inputsTooLong, inputTooLong, TOKEN_BYTES_MAX } from '#shared/engines/batching/limits.ts'
import { embed } from '#shared/kinds/embed/embed.ts'
import { ServiceError } from '#shared/lib/error.ts'

export const embeddings: JobEndpoint = {
  path: '/v1/embeddings',
  async describe() {
    const { EmbeddingsAnswer: Embeddings } = await import('#schemas/answers/tools.ts')
    return {
      id: 'createEmbeddings',
      tag: 'Embeddings',
      summary: 'Create embeddings',
      guide: 'embeddings',
      body: { EmbeddingsRequest: EmbeddingsBody.extend({ input: z.union([EmbedInput, z.array(EmbedInput)]) }) },
      answer: { description: 'One vector per input, in input order.', json: { Embeddings } },
    }
  },
  format: 'openai',
  kind: embed,
  fields: EmbeddingsBody.shape,
  prepare(context, caller, body) {
    const asked = parseBody(EmbeddingsBody, body, 'openai')
    const model = getModel(context, caller, asked.model, 'embeddings')
    const inputs = readInputs(asked.input, 'input')
    requireShort(inputs, model)
    const dimensions = dimensionsOf(asked.dimensions ?? undefined, model)
    return {
      model: model.id,
      named: asked.model,
      body: { model: model.id, inputs, ...(dimensions !== undefined && { dimensions }) },
      stream: false,
      timeoutMs: context.config.requestTimeoutMs,
      answerBytesMax: answerBytesMax(inputs.length),
      encode: { encoding_format: asked.encoding_format },
    }
  },
}

/**
 * Refuses inputs that certainly have more tokens than the limit. The ingress has no tokenizer, so it computes only a
 * lower bound from the bytes. The worker counts exactly.
 *
 * @throws ServiceError if an input or the sum of all inputs is too long
 */
export function requireShort(inputs: readonly EmbedInput[], { limits, engine }: ModelConfig): void {
  // The tokenizer of the local model server counts a word of any length as one token, so the bytes give no lower bound.
  const most = engine.type === 'local' ? undefined : limits.context_tokens
  let sum = 0
  for (const [index, input] of inputs.entries()) {
    const isTokens = typeof input !== 'string'
    const least = isTokens ? input.length : Math.ceil(Buffer.byteLength(input) / TOKEN_BYTES_MAX)
    if (most !== undefined && least > most) throw inputTooLong(index, isTokens ? least : `over ${least}`, most)
    sum += least
  }
  if (sum > TOKENS_MAX) throw inputsTooLong()
}

function dimensionsOf(asked: number | undefined, { id, embeddings }: ModelConfig): number | undefined {
  if (asked === undefined || asked === embeddings.dimensions) return asked
  const param = 'dimensions'
  if (!embeddings.can_shorten) {
    const own = embeddings.dimensions === undefined ? '' : ` The vectors have ${embeddings.dimensions} numbers.`
    const message = `Invalid 'dimensions': the vectors of the model '${id}' cannot be shortened.${own}`
    throw new ServiceError('unsupported_value', message, { param })
  }
  if (embeddings.dimensions === undefined || asked < embeddings.dimensions) return asked
  const message = `Invalid 'dimensions': integer above maximum value. Expected a value <= ${embeddings.dimensions}, but got ${asked} instead.`
  throw new ServiceError('integer_above_max_value', message, { param })
}
