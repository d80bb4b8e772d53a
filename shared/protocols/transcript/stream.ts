import type { EncodeContext } from '#schemas/job.ts'
import type { TokenLogprob, TranscribeEvent } from '#schemas/transcription/transcription.ts'
import { type Answer, type AnswerStream, type Frame, frameOf } from '#shared/kinds/answer.ts'
import { SurrogateBuffer } from '#shared/lib/surrogate-buffer.ts'
import { unfinished } from '#shared/protocols/encode.ts'
import { soundSegment, type TranscriptUsage, usageOf } from './gather.ts'
import { diarizedSegment, encodeTranscript, formOf, segmentId } from './whole.ts'

/** The answer of a transcription (docs/reference/compatibility.md, Transcripts), in the format that the job requests. */
export const transcriptAnswer: Answer<TranscribeEvent> = {
  whole: encodeTranscript,
  open: (context) => new TranscriptStream(context),
}

type TextEvent = Extract<TranscribeEvent, { type: 'text' }>

/**
 * Encodes one stream of a transcript (docs/internals/protocol.md, Transcript streams): text deltas, segments for diarized_json, and one `done` event
 * at the end.
 *
 * The deltas concatenate to the text of `done`, which equals the text of the whole answer and is trimmed. Leading whitespace is therefore
 * dropped, and trailing whitespace is held back until more text follows.
 */
export class TranscriptStream implements AnswerStream<TranscribeEvent> {
  readonly #isDiarized: boolean
  readonly #wantsLogprobs: boolean
  readonly #characters = new SurrogateBuffer()
  readonly #allLogprobs: TokenLogprob[] = []
  #logprobs: TokenLogprob[] = []
  #blanks = ''
  #text = ''
  #usage: TranscriptUsage = usageOf(undefined)
  #isFinished = false

  /** @throws ServiceError `internal_error` if the job has no transcript format */
  constructor(context: EncodeContext) {
    const { format, logprobs } = formOf(context)
    this.#isDiarized = format === 'diarized_json'
    this.#wantsLogprobs = logprobs
  }

  push(event: TranscribeEvent): Frame[] {
    switch (event.type) {
      case 'start':
        return []
      case 'text':
        return this.#delta(event)
      case 'segment': {
        const segment = diarizedSegment(soundSegment(event.segment))
        return this.#isDiarized && segment.text !== '' ? [frameOf(segment)] : []
      }
      case 'usage':
        this.#usage = usageOf(event.usage)
        return []
      case 'finish':
        this.#isFinished = true
        return []
      // Workers of newer versions may send unknown event types.
      default:
        return []
    }
  }

  /** @throws ServiceError `upstream_error` if the engine did not finish */
  end(): Frame[] {
    if (!this.#isFinished) throw unfinished()
    const rest = this.#flush()
    const logprobs = this.#wantsLogprobs ? { logprobs: this.#allLogprobs } : {}
    const usage = { type: 'tokens', ...this.#usage }
    return [...rest, frameOf({ type: 'transcript.text.done', text: this.#text, ...logprobs, usage })]
  }

  #delta({ text, logprobs, segment }: TextEvent): Frame[] {
    if (this.#wantsLogprobs) {
      for (const logprob of logprobs ?? []) {
        this.#logprobs.push(logprob)
        this.#allLogprobs.push(logprob)
      }
    }
    return this.#textFrames(this.#trim(this.#characters.push(text)), segment)
  }

  /** The part of the text that can be sent now: without leading whitespace, and without whitespace at its end. */
  #trim(text: string): string {
    const all = this.#text === '' ? text.trimStart() : this.#blanks + text
    const trimmed = all.trimEnd()
    this.#blanks = all.slice(trimmed.length)
    return trimmed
  }

  /** Frames for a piece of text. Log probabilities of whitespace that was held back are sent with the text after it. */
  #textFrames(delta: string, segment?: number): Frame[] {
    if (delta === '') return []
    this.#text += delta
    const logprobs = this.#takeLogprobs()
    const place = this.#isDiarized && segment !== undefined ? { segment_id: segmentId(segment) } : {}
    return [frameOf({ type: 'transcript.text.delta', delta, ...logprobs, ...place })]
  }

  #takeLogprobs(): { logprobs?: TokenLogprob[] } {
    if (!this.#wantsLogprobs || this.#logprobs.length === 0) return {}
    const logprobs = this.#logprobs
    this.#logprobs = []
    return { logprobs }
  }

  #flush(): Frame[] {
    const rest = this.#textFrames(this.#trim(this.#characters.flush()))
    if (this.#logprobs.length === 0) return rest
    return [...rest, frameOf({ type: 'transcript.text.delta', delta: '', ...this.#takeLogprobs() })]
  }
}
