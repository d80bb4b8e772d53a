import { z } from 'zod'

/** Containers the service takes, found by content. mpga is mp3, and m4a is mp4, by another name. */
export const AudioFormat = z.enum(['flac', 'mp3', 'mp4', 'mpeg', 'ogg', 'wav', 'webm'])
export type AudioFormat = z.infer<typeof AudioFormat>

/** How long audio is cut at silences (docs/protocol.md, Uploads). */
export const VoiceActivity = z.strictObject({
  threshold: z.number().min(0).max(1).default(0.5).describe('How sure it must be that somebody speaks'),
  silence_duration_ms: z.int().min(0).max(10_000).default(200).describe('Silence that ends a piece'),
  prefix_padding_ms: z.int().min(0).max(10_000).default(300).describe('Audio kept before speech'),
})
export type VoiceActivity = z.infer<typeof VoiceActivity>

/** A request to transcribe, as it travels to a worker: the internal form of every transcription call. */
export const TranscribeRequest = z.strictObject({
  model: z.string(),
  audio: z.strictObject({
    blob: z.string().optional().describe('Where the file lies; absent: it is in base64'),
    base64: z.string().optional().describe('The file itself, of a call whose body was JSON'),
    sha256: z.string().describe('Hex; stands for the file in an idempotency fingerprint'),
    bytes: z.int().min(1),
    format: AudioFormat,
  }),
  language: z.string().optional().describe('ISO-639-1'),
  prompt: z.string().optional(),
  temperature: z.number().min(0).max(1).default(0).describe('0: raised by itself while the text looks wrong'),
  words: z.boolean().default(false).describe('Word times are wanted'),
  logprobs: z.boolean().default(false),
  diarize: z.boolean().default(false).describe('Segments shall say who speaks'),
  speakers: z
    .array(z.strictObject({ name: z.string(), reference: z.string().describe('Base64 of an audio file') }))
    .max(4)
    .default([]),
  vad: VoiceActivity.optional().describe('Cut at silences; absent: as the engine likes'),
  stream: z.boolean().optional().describe('Text is wanted as it becomes known, even where that costs segments'),
})
export type TranscribeRequest = z.infer<typeof TranscribeRequest>

/** One word and when it was said, in seconds. */
export const Word = z.strictObject({ word: z.string(), start: z.number(), end: z.number() })
export type Word = z.infer<typeof Word>

/** One piece of the transcript with all that any format shows of it. Times in seconds. */
export const TranscriptSegment = z.strictObject({
  id: z.int().min(0),
  seek: z.int().default(0),
  start: z.number(),
  end: z.number(),
  text: z.string(),
  tokens: z.array(z.int()).default([]),
  temperature: z.number().default(0),
  avg_logprob: z.number().default(0),
  compression_ratio: z.number().default(0),
  no_speech_prob: z.number().default(0),
  words: z.array(Word).optional(),
  speaker: z.string().optional().describe('A known name, or A, B, … in order of appearance'),
})
export type TranscriptSegment = z.infer<typeof TranscriptSegment>

/** Log probability of a token of the transcript. */
export const TokenLogprob = z.strictObject({
  token: z.string(),
  logprob: z.number(),
  bytes: z.array(z.int()).nullable().default(null),
})
export type TokenLogprob = z.infer<typeof TokenLogprob>

/**
 * What a transcription yields, in this order: one `start`; `text` and `segment` as the text becomes known, the text of a
 * segment before it; `usage`; `finish`. All texts joined are the transcript. Without `finish` it did not end well.
 */
export const TranscribeEvent = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('start'),
    language: z.string().describe('ISO-639-1, or empty'),
    duration: z.number().describe('Seconds'),
    input_tokens: z.int().min(0).default(0).describe('Ten a second of audio: counts when the call ends before `usage`'),
  }),
  z.strictObject({
    type: z.literal('text'),
    text: z.string(),
    logprobs: z.array(TokenLogprob).optional(),
    segment: z.int().optional().describe('Id of the segment it belongs to'),
  }),
  z.strictObject({ type: z.literal('segment'), segment: TranscriptSegment }),
  z.strictObject({
    type: z.literal('usage'),
    usage: z.strictObject({
      input_tokens: z.int().min(0).describe('Ten a second of audio where the engine does not count'),
      input_token_details: z
        .strictObject({ audio_tokens: z.int().min(0), text_tokens: z.int().min(0) })
        .optional()
        .describe('Where some are of the prompt'),
      output_tokens: z.int().min(0),
    }),
  }),
  z.strictObject({ type: z.literal('finish') }),
])
export type TranscribeEvent = z.infer<typeof TranscribeEvent>

/** How a transcript is said (docs/protocol.md, Transcripts). */
export const TranscriptFormat = z.enum(['json', 'text', 'srt', 'verbose_json', 'vtt', 'diarized_json'])
export type TranscriptFormat = z.infer<typeof TranscriptFormat>

/** What a caller's answer looks like, beside its transcript. */
export const TranscriptForm = z.strictObject({
  format: TranscriptFormat,
  words: z.boolean().describe('verbose_json brings words'),
  segments: z.boolean().describe('verbose_json brings segments'),
  logprobs: z.boolean().describe('json brings log probabilities'),
  translated: z.boolean().optional().describe('It was said in other words: verbose_json names the task'),
})
export type TranscriptForm = z.infer<typeof TranscriptForm>
