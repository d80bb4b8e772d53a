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

/** A segment of a transcript, with the fields of all response formats. Times are in seconds. */
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

/**
 * Message of a failed check of a decimal number. The message makes the decoder choose an error code that begins with `decimal_`, such as
 * `decimal_above_max_value`.
 */
const DECIMAL = 'decimal'
const NAME_CHARS_MAX = 100
const KEYWORDS_MAX = 100

export const SPEAKERS_MAX = 4
/** Maximum characters of the prompt. Engines read only about the last thousand characters. */
const PROMPT_CHARS_MAX = 16 * 1024
/** Maximum characters of the data URL of a voice sample. Ten seconds of 24-bit stereo WAV at 48 kHz are 3.7 MiB in base64. */
export const REFERENCE_CHARS_MAX = 4 * 1024 * 1024

const ServerVad = z.object({
  type: z.literal('server_vad'),
  threshold: z.number().min(0, DECIMAL).max(1, DECIMAL).nullish(),
  silence_duration_ms: VoiceActivity.shape.silence_duration_ms.unwrap().nullish(),
  prefix_padding_ms: VoiceActivity.shape.prefix_padding_ms.unwrap().nullish(),
})

/**
 * Fields of `POST /v1/audio/transcriptions` without the file, as a form or as JSON (docs/reference/compatibility.md, Transcription fields).
 * This schema checks each field alone. The decoder checks the rules that relate two fields. Unknown fields are ignored, and `null` means
 * absent.
 */
export const TranscriptionBody = z.object({
  model: z.string().min(1).describe('Model id or alias'),
  language: z.string().nullish().describe('Language of the audio, as ISO 639-1 code. Default: detected'),
  languages: z.array(z.string()).max(KEYWORDS_MAX).nullish().describe('Hint: languages that may occur in the audio'),
  keywords: z
    .array(z.string().max(NAME_CHARS_MAX))
    .max(KEYWORDS_MAX)
    .nullish()
    .describe('Hint: words that may occur in the audio'),
  prompt: z.string().max(PROMPT_CHARS_MAX).nullish().describe('Text that guides style and spelling'),
  response_format: TranscriptFormat.nullish().describe('Default: json'),
  temperature: z.number().min(0, DECIMAL).max(1, DECIMAL).nullish().describe('Sampling temperature. Default: 0'),
  timestamp_granularities: z
    .array(z.enum(['word', 'segment']))
    .max(2)
    .nullish(),
  include: z.array(z.literal('logprobs')).max(1).nullish().describe('Additional output to include'),
  stream: z.boolean().nullish().describe('Stream the transcript as server-sent events. Default: false'),
  chunking_strategy: z.union([z.string().describe('auto: split the audio at silences'), ServerVad]).nullish(),
  known_speaker_names: z
    .array(z.string().min(1).max(NAME_CHARS_MAX))
    .max(SPEAKERS_MAX)
    .nullish()
    .describe('Names of known speakers, at most 4'),
  known_speaker_references: z
    .array(z.string().min(1).max(REFERENCE_CHARS_MAX))
    .max(SPEAKERS_MAX)
    .nullish()
    .describe('Voice samples of the known speakers, as data URLs in the same order'),
})
export type TranscriptionBody = z.infer<typeof TranscriptionBody>

/** Fields of `POST /v1/audio/translations` without the file (docs/guides/transcription.md, Translations). Unknown fields are ignored. */
export const TranslationBody = TranscriptionBody.pick({ model: true, prompt: true, temperature: true }).extend({
  response_format: TranscriptFormat.exclude(['diarized_json']).nullish(),
  stream: z.literal(false).nullish().describe('Translations cannot be streamed'),
})
export type TranslationBody = z.infer<typeof TranslationBody>

/** Audio of a JSON request: a data URL, or base64 with a file name (docs/guides/websocket.md). */
export const JsonAudioBody = z.object({
  file: z.union([
    z.string(),
    z.object({
      data: z.string(),
      filename: z.string().nullish().describe('The extension selects the format if the content is ambiguous'),
    }),
  ]),
})
