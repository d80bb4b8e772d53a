import { SPEECH_BYTES_MAX, type SpeakEvent, SpeakRequest } from '#schemas/speech.ts'
import { speechAnswer } from '#shared/protocols/speech/speech.ts'
import type { Kind } from './kind.ts'

/** Bytes of a whole answer: the audio in base64, and what JSON adds. */
const ANSWER_BYTES_MAX = Math.ceil(SPEECH_BYTES_MAX / 3) * 4 + 64 * 1024

/** Text to speech. */
export const speak: Kind<SpeakRequest, SpeakEvent> = {
  name: 'speak',
  pool: 'inference',
  request: SpeakRequest,
  answerBytesMax: ANSWER_BYTES_MAX,
  // Base64 of two pieces does not join.
  merge: () => undefined,
  isOutput: ({ type }) => type === 'audio',
  answer: () => speechAnswer,
}
