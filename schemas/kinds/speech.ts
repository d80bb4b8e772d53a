import { z } from 'zod'

/** Maximum characters of the input text, and separately of the instructions. */
export const SPEECH_CHARS_MAX = 4_096
/** Maximum bytes of audio per call. More than eight minutes of uncompressed audio (24 kHz, 16 bits, mono) have this size. */
export const SPEECH_BYTES_MAX = 24 * 1024 * 1024

export const SpeechFormat = z.enum(['mp3', 'opus', 'aac', 'flac', 'wav', 'pcm'])
export type SpeechFormat = z.infer<typeof SpeechFormat>

const Voice = z.union([z.string().min(1).max(1_000), z.object({ id: z.string().min(1).max(1_000) })])

/** Body of `POST /v1/audio/speech` (docs/guides/speech.md). Unknown fields are ignored. */
export const SpeechBody = z.looseObject({
  model: z.string().describe('Model id or alias'),
  input: z.string().min(1).max(SPEECH_CHARS_MAX).describe('Text to speak'),
  voice: Voice.nullish().describe('Voice name, or an object with an id. Default: the default voice of the server'),
  instructions: z.string().max(SPEECH_CHARS_MAX).nullish().describe('Instructions for tone and style'),
  response_format: SpeechFormat.nullish().transform((format) => format ?? 'mp3'),
  speed: z.number().min(0.25, 'decimal').max(4, 'decimal').nullish().describe('Playback speed. Default: 1'),
  stream_format: z
    .enum(['audio', 'sse'])
    .nullish()
    .transform((format) => format ?? 'audio'),
})
export type SpeechBody = z.infer<typeof SpeechBody>

export const SpeakRequest = z.strictObject({
  model: z.string(),
  input: z.string().min(1),
  voice: Voice.optional(),
  instructions: z.string().optional(),
  response_format: SpeechFormat,
  speed: z.number().optional(),
})
export type SpeakRequest = z.infer<typeof SpeakRequest>

export const SpeakEvent = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('audio'), audio: z.string().min(1).describe('Next bytes of the audio, in base64') }),
  z.strictObject({
    type: z.literal('usage'),
    usage: z.strictObject({ input_tokens: z.int().min(0), output_tokens: z.literal(0) }),
  }),
])
export type SpeakEvent = z.infer<typeof SpeakEvent>

export const SpeechForm = z.strictObject({ format: SpeechFormat })
