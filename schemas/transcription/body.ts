import { z } from 'zod'
import { TranscriptFormat, VoiceActivity } from './transcription.ts'

/**
 * The fields of `POST /v1/audio/transcriptions` but for the file (docs/protocol.md, Transcription fields), from a form
 * or from JSON.
 *
 * Unknown fields are ignored, and `null` stands for absent. A bound whose message is `decimal` is reported as one on a
 * decimal number.
 */

const DECIMAL = 'decimal'
const NAME_CHARS_MAX = 100
const KEYWORDS_MAX = 100

/** Speakers that can be known by their voices (docs/transcription.md, Who speaks). */
export const SPEAKERS_MAX = 4
/** Longest prompt; engines use the end of it, about a thousand characters. */
export const PROMPT_CHARS_MAX = 16 * 1024
/** Longest data URL of a speaker's voice: ten seconds of stereo WAV in 24 bits at 48 kHz are 3.7 MiB in base64. */
export const REFERENCE_CHARS_MAX = 4 * 1024 * 1024

const ServerVad = z.object({
  type: z.literal('server_vad'),
  threshold: z.number().min(0, DECIMAL).max(1, DECIMAL).nullish(),
  silence_duration_ms: VoiceActivity.shape.silence_duration_ms.unwrap().nullish(),
  prefix_padding_ms: VoiceActivity.shape.prefix_padding_ms.unwrap().nullish(),
})

/** The fields, checked one by one; the rules between them are in the decoder. */
export const TranscriptionBody = z.object({
  model: z.string().min(1),
  language: z.string().nullish().describe('ISO-639-1'),
  languages: z.array(z.string()).max(KEYWORDS_MAX).nullish().describe('Hints: languages that may be spoken'),
  keywords: z
    .array(z.string().max(NAME_CHARS_MAX))
    .max(KEYWORDS_MAX)
    .nullish()
    .describe('Hints: words that may be said'),
  prompt: z.string().max(PROMPT_CHARS_MAX).nullish(),
  response_format: TranscriptFormat.nullish(),
  temperature: z.number().min(0, DECIMAL).max(1, DECIMAL).nullish(),
  timestamp_granularities: z
    .array(z.enum(['word', 'segment']))
    .max(2)
    .nullish(),
  include: z.array(z.literal('logprobs')).max(1).nullish(),
  stream: z.boolean().nullish(),
  chunking_strategy: z.union([z.string().describe('auto'), ServerVad]).nullish(),
  known_speaker_names: z.array(z.string().min(1).max(NAME_CHARS_MAX)).max(SPEAKERS_MAX).nullish(),
  known_speaker_references: z.array(z.string().min(1).max(REFERENCE_CHARS_MAX)).max(SPEAKERS_MAX).nullish(),
})
export type TranscriptionBody = z.infer<typeof TranscriptionBody>

/** The fields of `POST /v1/audio/translations` but for the file (docs/transcription.md, Translations). Unknown fields are ignored. */
export const TranslationBody = TranscriptionBody.pick({ model: true, prompt: true, temperature: true }).extend({
  response_format: TranscriptFormat.exclude(['diarized_json']).nullish(),
  stream: z.literal(false).nullish().describe('Translations are whole'),
})
export type TranslationBody = z.infer<typeof TranslationBody>

/** The audio of a call whose body is JSON: a data URL, or base64 with the name of the file (docs/websocket.md). */
export const JsonAudioBody = z.object({
  file: z.union([
    z.string(),
    z.object({
      data: z.string(),
      filename: z.string().nullish().describe('Its extension tells what the content does not'),
    }),
  ]),
})
