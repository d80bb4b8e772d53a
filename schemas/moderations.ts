import { z } from 'zod'

/** Inputs of one call. */
export const INPUTS_MAX = 256
/** Parts of one input that has several. */
export const PARTS_MAX = 256
/** Characters of all texts of one call together. */
export const CHARS_MAX = 1_000_000

/** The id of the word list that is always there. A model of the catalogue that has the same name comes first. */
export const WORD_LIST = 'word-list'
/** Names that mean the default where no model of the catalogue has them; a model that has the first is the default. */
export const DEFAULT_NAMES = [
  'omni-moderation-latest',
  'omni-moderation-2024-09-26',
  'text-moderation-latest',
  'text-moderation-stable',
] as const

/** What an input may be judged to hold, as OpenAI's API names it. */
export const ModerationCategory = z.enum([
  'harassment',
  'harassment/threatening',
  'hate',
  'hate/threatening',
  'illicit',
  'illicit/violent',
  'self-harm',
  'self-harm/instructions',
  'self-harm/intent',
  'sexual',
  'sexual/minors',
  'violence',
  'violence/graphic',
])
export type ModerationCategory = z.infer<typeof ModerationCategory>

/** A part of an input. */
export const ModerationPart = z.discriminatedUnion('type', [
  z.object({ type: z.literal('text'), text: z.string().min(1) }),
  z.object({
    type: z.literal('image_url'),
    image_url: z.object({ url: z.string().min(1).describe('An https URL, or a data: URL with base64') }),
  }),
])
export type ModerationPart = z.infer<typeof ModerationPart>

/**
 * The wire shape of `POST /v1/moderations` (docs/moderations.md) but for `input`, whose forms are told apart by hand: a union could
 * not say which item of which form is wrong. Unknown fields are ignored.
 */
export const ModerationsBody = z.looseObject({
  input: z.unknown(),
  model: z
    .string()
    .nullish()
    .describe('Default: the model omni-moderation-latest where there is one, else the word list'),
})
export type ModerationsBody = z.infer<typeof ModerationsBody>

/** One input, which gets one result: a text, or parts that are judged together. */
export const ModerationInput = z.union([z.string(), z.array(ModerationPart).min(1).max(PARTS_MAX)])
export type ModerationInput = z.infer<typeof ModerationInput>

/** A request for judgements, as it travels to a worker. */
export const ModerateRequest = z.strictObject({
  model: z.string(),
  inputs: z.array(ModerationInput).min(1).max(INPUTS_MAX),
})
export type ModerateRequest = z.infer<typeof ModerateRequest>

/** What was found in one input. */
export const ModerationResult = z.object({
  flagged: z.boolean(),
  categories: z.record(ModerationCategory, z.boolean().nullable()).describe('null: the model does not look for it'),
  category_scores: z.record(ModerationCategory, z.number()).describe('0 to 1; the word list knows these two only'),
  category_applied_input_types: z
    .record(ModerationCategory, z.array(z.enum(['text', 'image'])))
    .describe('What was looked at for each category'),
})
export type ModerationResult = z.infer<typeof ModerationResult>

/** What a job of moderation yields: results in the order of the inputs, in pieces. */
export const ModerateEvent = z.strictObject({
  type: z.literal('moderated'),
  first: z.int().min(0).describe('Index of the input that the first of them belongs to'),
  results: z.array(ModerationResult).min(1),
})
export type ModerateEvent = z.infer<typeof ModerateEvent>
