import { z } from 'zod'

/** Characters of a text that is spoken, and of the instructions how. */
export const SPEECH_CHARS_MAX = 4_096
/** Bytes of the audio of one call: eight minutes without compression. */
export const SPEECH_BYTES_MAX = 24 * 1024 * 1024

/** Formats of audio as OpenAI's API names them. */
export const SpeechFormat = z.enum(['mp3', 'opus', 'aac', 'flac', 'wav', 'pcm'])
export type SpeechFormat = z.infer<typeof SpeechFormat>

const Voice = z.union([z.string().min(1).max(1_000), z.object({ id: z.string().min(1).max(1_000) })])

/** The wire shape of `POST /v1/audio/speech` (docs/speech.md). Unknown fields are ignored. */
export const SpeechBody = z.looseObject({
  model: z.string(),
  input: z.string().min(1).max(SPEECH_CHARS_MAX),
  voice: Voice.nullish().describe("A name, or an object with an id; default: the server's"),
  instructions: z.string().max(SPEECH_CHARS_MAX).nullish(),
  response_format: SpeechFormat.nullish().transform((format) => format ?? 'mp3'),
  speed: z.number().min(0.25, 'decimal').max(4, 'decimal').nullish(),
  stream_format: z
    .enum(['audio', 'sse'])
    .nullish()
    .transform((format) => format ?? 'audio'),
})
export type SpeechBody = z.infer<typeof SpeechBody>

/** A request for speech, as it travels to a worker. */
export const SpeakRequest = z.strictObject({
  model: z.string(),
  input: z.string().min(1),
  voice: Voice.optional(),
  instructions: z.string().optional(),
  response_format: SpeechFormat,
  speed: z.number().optional(),
})
export type SpeakRequest = z.infer<typeof SpeakRequest>

/** What a job of speech yields: the bytes of the audio in pieces, then what they took. */
export const SpeakEvent = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('audio'), audio: z.string().min(1).describe('Base64 of the next bytes') }),
  z.strictObject({
    type: z.literal('usage'),
    usage: z.strictObject({ input_tokens: z.int().min(0), output_tokens: z.literal(0) }),
  }),
])
export type SpeakEvent = z.infer<typeof SpeakEvent>

/** How speech is answered. */
export const SpeechForm = z.strictObject({ format: SpeechFormat })
