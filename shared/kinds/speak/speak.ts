import type { EncodeContext } from '#schemas/job.ts'
import { SPEECH_BYTES_MAX, type SpeakEvent, SpeakRequest, type SpeechFormat } from '#schemas/kinds/speech.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { unfinished } from '#shared/kinds/encode.ts'
import type { Kind } from '#shared/kinds/kind.ts'

/** Maximum bytes of a complete answer: the audio as base64, plus the JSON around it. */
const ANSWER_BYTES_MAX = Math.ceil(SPEECH_BYTES_MAX / 3) * 4 + 64 * 1024

export const speak: Kind<SpeakRequest, SpeakEvent> = {
  name: 'speak',
  pool: 'inference',
  request: SpeakRequest,
  answerBytesMax: ANSWER_BYTES_MAX,
  // Events are not merged, because two base64 texts cannot simply be concatenated.
  merge: () => undefined,
  isOutput: ({ type }) => type === 'audio',
  answer: () => speechAnswer,
}

const TYPES: Readonly<Record<SpeechFormat, string>> = {
  mp3: 'audio/mpeg',
  opus: 'audio/ogg',
  aac: 'audio/aac',
  flac: 'audio/flac',
  wav: 'audio/wav',
  pcm: 'audio/pcm',
}

/** Answer of `POST /v1/audio/speech` (docs/guides/speech.md). A caller receives audio bytes or a stream of pieces. A stored job has a JSON result. */
const speechAnswer: Answer<SpeakEvent> = {
  whole(events, context) {
    const pieces = events.flatMap((event) => (event.type === 'audio' ? [Buffer.from(event.audio, 'base64')] : []))
    const audio = Buffer.concat(pieces).toString('base64')
    return { object: 'audio.speech', content_type: typeOf(context), audio, usage: usageOf(events) }
  },
  open: () => new SpeechStream(),
  bytes: {
    type: typeOf,
    of: (event) => (event.type === 'audio' ? Buffer.from(event.audio, 'base64') : undefined),
  },
}

class SpeechStream implements AnswerStream<SpeakEvent> {
  readonly #used: SpeakEvent[] = []

  push(event: SpeakEvent): Frame[] {
    if (event.type === 'usage') this.#used.push(event)
    else return [{ data: JSON.stringify({ type: 'speech.audio.delta', audio: event.audio }) }]
    return []
  }

  end(): Frame[] {
    return [{ data: JSON.stringify({ type: 'speech.audio.done', usage: usageOf(this.#used) }) }]
  }
}

function typeOf({ speech }: EncodeContext): string {
  return TYPES[speech?.format ?? 'mp3']
}

function usageOf(events: readonly SpeakEvent[]): object {
  const used = events.find((event) => event.type === 'usage')
  if (!used) throw unfinished()
  const { input_tokens, output_tokens } = used.usage
  return { input_tokens, output_tokens, total_tokens: input_tokens + output_tokens }
}
