import { z } from 'zod'

export const INPUTS_MAX = 2_048
export const TOKENS_MAX = 300_000

/** Format of vectors: numbers, or base64 of little-endian float32 values. */
export const EncodingFormat = z.enum(['float', 'base64'])
export type EncodingFormat = z.infer<typeof EncodingFormat>

/**
 * Body of `POST /v1/embeddings` (docs/reference/compatibility.md, Embedding requests). The decoder checks `input`, because the error of a union
 * schema would not name the invalid item. Unknown fields are ignored.
 */
export const EmbeddingsBody = z.looseObject({
  model: z.string().describe('Model id or alias'),
  input: z.unknown(),
  encoding_format: EncodingFormat.nullish().transform((format) => format ?? 'float'),
  dimensions: z.int().min(1).nullish().describe('Length of the vectors. Default: the length of the model'),
  user: z.string().nullish().describe('Ignored'),
})
export type EmbeddingsBody = z.infer<typeof EmbeddingsBody>

export const EmbedInput = z.union([z.string(), z.array(z.int().min(0))])
export type EmbedInput = z.infer<typeof EmbedInput>

export const EmbedRequest = z.strictObject({
  model: z.string(),
  inputs: z.array(EmbedInput).min(1).max(INPUTS_MAX).describe("Texts, or tokens in the model's token_encoding"),
  dimensions: z.int().min(1).optional().describe('Length to which vectors are shortened and normalised'),
})
export type EmbedRequest = z.infer<typeof EmbedRequest>

/** Events of an embeddings job. Each `vectors` event contains consecutive vectors, in input order. The last event is the usage. */
export const EmbedEvent = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('vectors'),
    first: z.int().min(0).describe('Index of the input to which the first vector belongs'),
    vectors: z.array(z.string()).min(1).describe('Base64 of little-endian float32 values'),
  }),
  z.strictObject({
    type: z.literal('usage'),
    usage: z.strictObject({ input_tokens: z.int().min(0), output_tokens: z.literal(0) }),
  }),
])
export type EmbedEvent = z.infer<typeof EmbedEvent>
