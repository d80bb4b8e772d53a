import { SPEECH_BYTES_MAX, type SpeakEvent, SpeakRequest } from '#schemas/speech.ts'
import { speechAnswer } from '#shared/protocols/speech/speech.ts'
import type { Kind } from './kind.ts'

/** Maximum bytes of a complete answer: the audio as base64, plus the JSON around it. */
const ANSWER_BYTES_MAX = Math.ceil(SPEECH_BYTES_MAX / 3) * 4 + 64 * 1024

export const speak: Kind<SpeakRequest, SpeakEvent> = {
  name: 'speak',
  pool: 'inference',
  request: SpeakRequest,
  answerBytesMax: ANSWER_BYTES_MAX,
  // Base64 texts of two events cannot be concatenated.
  merge: () => undefined,
  isOutput: ({ type }) => type === 'audio',
  answer: () => speechAnswer,
}
