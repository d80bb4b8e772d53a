import { z } from 'zod'

export const INPUTS_MAX = 256
export const PARTS_MAX = 256
export const CHARS_MAX = 1_000_000

/** Id of the built-in word list. A configured model with the same id takes precedence. */
export const WORD_LIST = 'word-list'
/**
 * Names of OpenAI's moderation models. A name without a configured model is replaced with the first name of this list. If the first name
 * has no configured model either, then the built-in word list is used.
 */
export const DEFAULT_NAMES = [
  'omni-moderation-latest',
  'omni-moderation-2024-09-26',
  'text-moderation-latest',
  'text-moderation-stable',
] as const

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

export const ModerationPart = z.discriminatedUnion('type', [
  z.object({ type: z.literal('text'), text: z.string().min(1) }),
  z.object({
    type: z.literal('image_url'),
    image_url: z.object({ url: z.string().min(1).describe('https URL, or data: URL with base64 content') }),
  }),
])
export type ModerationPart = z.infer<typeof ModerationPart>

/**
 * Body of `POST /v1/moderations` (docs/guides/moderations.md). The decoder checks `input`, because the error of a union schema would not name the
 * invalid item. Unknown fields are ignored.
 */
export const ModerationsBody = z.looseObject({
  input: z.unknown(),
  model: z
    .string()
    .nullish()
    .describe('Default: the model omni-moderation-latest if it is configured, otherwise word-list'),
})
export type ModerationsBody = z.infer<typeof ModerationsBody>

/** One input, which receives one result. An input is a text, or a list of parts that are classified together. */
export const ModerationInput = z.union([z.string(), z.array(ModerationPart).min(1).max(PARTS_MAX)])
export type ModerationInput = z.infer<typeof ModerationInput>

export const ModerateRequest = z.strictObject({
  model: z.string(),
  inputs: z.array(ModerationInput).min(1).max(INPUTS_MAX),
})
export type ModerateRequest = z.infer<typeof ModerateRequest>

export const ModerationResult = z.object({
  flagged: z.boolean(),
  categories: z
    .record(ModerationCategory, z.boolean().nullable())
    .describe('null: the model does not classify this category'),
  category_scores: z
    .record(ModerationCategory, z.number())
    .describe('Scores from 0 to 1. The word list returns only 0 or 1'),
  category_applied_input_types: z
    .record(ModerationCategory, z.array(z.enum(['text', 'image'])))
    .describe('Input types that were classified, by category'),
})
export type ModerationResult = z.infer<typeof ModerationResult>

export const ModerateEvent = z.strictObject({
  type: z.literal('moderated'),
  first: z.int().min(0).describe('Index of the input to which the first result belongs'),
  results: z.array(ModerationResult).min(1),
})
export type ModerateEvent = z.infer<typeof ModerateEvent>
