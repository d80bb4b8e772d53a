import { z } from 'zod'

/** Supported containers, detected from the content of the file. `mpga` is an alias of `mp3`, and `m4a` of `mp4`. */
export const AudioFormat = z.enum(['flac', 'mp3', 'mp4', 'mpeg', 'ogg', 'wav', 'webm'])
export type AudioFormat = z.infer<typeof AudioFormat>

/** Voice activity detection, which splits long audio at silences (docs/reference/compatibility.md, Uploads). */
export const VoiceActivity = z.strictObject({
  threshold: z.number().min(0).max(1).default(0.5).describe('Minimum probability of speech, from 0 to 1'),
  silence_duration_ms: z.int().min(0).max(10_000).default(200).describe('Silence that ends a segment, in milliseconds'),
  prefix_padding_ms: z.int().min(0).max(10_000).default(300).describe('Audio included before speech, in milliseconds'),
})
export type VoiceActivity = z.infer<typeof VoiceActivity>

export const TranscribeRequest = z.strictObject({
  model: z.string(),
  audio: z.strictObject({
    blob: z.string().optional().describe('Blob with the file. Absent: the file is in `base64`'),
    base64: z.string().optional().describe('The file, for JSON requests'),
    sha256: z.string().describe('Hash of the file in hex. Represents the file in the idempotency fingerprint'),
    bytes: z.int().min(1),
    format: AudioFormat,
  }),
  language: z.string().optional().describe('ISO 639-1 code'),
  prompt: z.string().optional(),
  temperature: z
    .number()
    .min(0)
    .max(1)
    .default(0)
    .describe('Sampling temperature. 0: raised automatically while the text is implausible'),
  words: z.boolean().default(false).describe('Return word timestamps'),
  logprobs: z.boolean().default(false),
  diarize: z.boolean().default(false).describe('Label segments with speakers'),
  speakers: z
    .array(z.strictObject({ name: z.string(), reference: z.string().describe('Voice sample: audio file in base64') }))
    .max(4)
    .default([]),
  vad: VoiceActivity.optional().describe('Split at silences. Absent: the engine decides'),
  stream: z.boolean().optional().describe('Stream the text, even if the result then has no segments'),
})
export type TranscribeRequest = z.infer<typeof TranscribeRequest>

export const Word = z.strictObject({ word: z.string(), start: z.number(), end: z.number() })
export type Word = z.infer<typeof Word>

/** A segment with the fields of all response formats. Times are in seconds. */
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
  speaker: z.string().optional().describe('Name of a known speaker, or A, B, … in order of appearance'),
})
export type TranscriptSegment = z.infer<typeof TranscriptSegment>

export const TokenLogprob = z.strictObject({
  token: z.string(),
  logprob: z.number(),
  bytes: z.array(z.int()).nullable().default(null),
})
export type TokenLogprob = z.infer<typeof TokenLogprob>

/**
 * Events of a transcription. One `start` comes first, followed by `text` and `segment` events, then `usage` and `finish`. The texts of a segment
 * precede the event of the segment. The transcript is the concatenation of all texts. A missing `finish` means that the transcription failed.
 */
export const TranscribeEvent = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('start'),
    language: z.string().describe('ISO 639-1 code, or empty'),
    duration: z.number().describe('Length of the audio, in seconds'),
    input_tokens: z.int().min(0).default(0).describe('10 per second of audio. Applies if the call ends before `usage`'),
  }),
  z.strictObject({
    type: z.literal('text'),
    text: z.string(),
    logprobs: z.array(TokenLogprob).optional(),
    segment: z.int().optional().describe('Id of the segment'),
  }),
  z.strictObject({ type: z.literal('segment'), segment: TranscriptSegment }),
  z.strictObject({
    type: z.literal('usage'),
    usage: z.strictObject({
      input_tokens: z.int().min(0).describe('10 per second of audio if the engine reports no usage'),
      input_token_details: z
        .strictObject({ audio_tokens: z.int().min(0), text_tokens: z.int().min(0) })
        .optional()
        .describe('Present if the prompt has tokens'),
      output_tokens: z.int().min(0),
    }),
  }),
  z.strictObject({ type: z.literal('finish') }),
])
export type TranscribeEvent = z.infer<typeof TranscribeEvent>

/** Format of the response (docs/reference/compatibility.md, Transcripts). */
export const TranscriptFormat = z.enum(['json', 'text', 'srt', 'verbose_json', 'vtt', 'diarized_json'])
export type TranscriptFormat = z.infer<typeof TranscriptFormat>

export const TranscriptForm = z.strictObject({
  format: TranscriptFormat,
  words: z.boolean().describe('verbose_json: include words'),
  segments: z.boolean().describe('verbose_json: include segments'),
  logprobs: z.boolean().describe('json: include log probabilities'),
  translated: z
    .boolean()
    .optional()
    .describe('The transcript is a translation: verbose_json reports the task translate'),
})
export type TranscriptForm = z.infer<typeof TranscriptForm>
