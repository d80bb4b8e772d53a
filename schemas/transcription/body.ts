import { z } from 'zod'
import { TranscriptFormat, VoiceActivity } from './transcription.ts'

/**
 * Fields of `POST /v1/audio/transcriptions` without the file (docs/reference/compatibility.md, Transcription fields). The client sends them as a form
 * or as JSON.
 *
 * Unknown fields are ignored. `null` means absent. If a value violates a bound with the message `decimal`, then the error code begins with
 * `decimal_`.
 */

const DECIMAL = 'decimal'
const NAME_CHARS_MAX = 100
const KEYWORDS_MAX = 100

export const SPEAKERS_MAX = 4
/** Maximum characters of the prompt. Engines read only about the last thousand characters. */
export const PROMPT_CHARS_MAX = 16 * 1024
/** Maximum characters of the data URL of a voice sample. Ten seconds of 24-bit stereo WAV at 48 kHz are 3.7 MiB in base64. */
export const REFERENCE_CHARS_MAX = 4 * 1024 * 1024

const ServerVad = z.object({
  type: z.literal('server_vad'),
  threshold: z.number().min(0, DECIMAL).max(1, DECIMAL).nullish(),
  silence_duration_ms: VoiceActivity.shape.silence_duration_ms.unwrap().nullish(),
  prefix_padding_ms: VoiceActivity.shape.prefix_padding_ms.unwrap().nullish(),
})

/** The decoder, not this schema, checks rules that relate two fields. */
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
