import { z } from 'zod'

/** Inputs of one request. */
export const INPUTS_MAX = 2_048
/** Tokens of all inputs of one request together. */
export const TOKENS_MAX = 300_000

/** How vectors are written: as numbers, or as base64 of little-endian float32. */
export const EncodingFormat = z.enum(['float', 'base64'])
export type EncodingFormat = z.infer<typeof EncodingFormat>

/**
 * The wire shape of `POST /v1/embeddings` (docs/protocol.md, Embedding requests) but for `input`, whose four forms are
 * told apart by hand: a union could not say which item of which form is wrong. Unknown fields are ignored.
 */
export const EmbeddingsBody = z.looseObject({
  model: z.string(),
  input: z.unknown(),
  encoding_format: EncodingFormat.nullish().transform((format) => format ?? 'float'),
  dimensions: z.int().min(1).nullish(),
  user: z.string().nullish().describe('Ignored'),
})
export type EmbeddingsBody = z.infer<typeof EmbeddingsBody>

/** One input: a text, or the tokens of one. */
export const EmbedInput = z.union([z.string(), z.array(z.int().min(0))])
export type EmbedInput = z.infer<typeof EmbedInput>

/** A request for embeddings, as it travels to a worker. */
export const EmbedRequest = z.strictObject({
  model: z.string(),
  inputs: z.array(EmbedInput).min(1).max(INPUTS_MAX).describe("Tokens are of the model's token_encoding"),
  dimensions: z.int().min(1).optional().describe('Vectors are cut to this length and normalised again'),
})
export type EmbedRequest = z.infer<typeof EmbedRequest>

/** What a job of embeddings yields: the vectors in the order of the inputs, in pieces, then what they took. */
export const EmbedEvent = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('vectors'),
    first: z.int().min(0).describe('Index of the input that the first of them belongs to'),
    vectors: z.array(z.string()).min(1).describe('Base64 of little-endian float32'),
  }),
  z.strictObject({
    type: z.literal('usage'),
    usage: z.strictObject({ input_tokens: z.int().min(0), output_tokens: z.literal(0) }),
  }),
])
export type EmbedEvent = z.infer<typeof EmbedEvent>
