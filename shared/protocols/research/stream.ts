import type { EncodeContext } from '#schemas/job.ts'
import type { ResearchEvent } from '#schemas/research/research.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { ChatStream } from '#shared/protocols/chat/stream.ts'
import { chatEvents, encodeResearch, extrasOf } from './whole.ts'

export const researchAnswer: Answer<ResearchEvent> = {
  whole: encodeResearch,
  open: (context) => new ResearchStream(context),
}

/**
 * Encodes one run as chat completion chunks, so that plain chat clients can read the report.
 *
 * Progress and sources are chunks without choices, which such clients ignore. All annotations are in one chunk, since clients that merge
 * deltas cannot merge lists. Events of the end are sent only after the run has ended successfully.
 */
class ResearchStream implements AnswerStream<ResearchEvent> {
  readonly #chat: ChatStream
  readonly #head: object
  readonly #tail: object
  /** All events except progress and the report's text. */
  readonly #extras: ResearchEvent[] = []
  #sequence = 0

  constructor(context: EncodeContext) {
    const { call_id, created_at, model, include_usage } = context
    this.#chat = new ChatStream(context)
    this.#head = {
      id: `chatcmpl-${call_id}`,
      object: 'chat.completion.chunk',
      created: created_at,
      model,
      system_fingerprint: '',
    }
    this.#tail = include_usage ? { usage: null } : {}
  }

  push(event: ResearchEvent): Frame[] {
    switch (event.type) {
      case 'progress':
        return this.#progress(event)
      case 'annotations':
        this.#extras.push(event)
        return [this.#annotations(event)]
      case 'text':
        return this.#chatFrames(event)
      case 'search_results':
      case 'usage':
        this.#extras.push(event)
        return this.#chatFrames(event)
      case 'end':
        this.#extras.push(event)
        return [this.#chunk({ choices: [], ...extrasOf(this.#extras) }), ...this.#chatFrames(event)]
      // Workers of newer versions may send unknown event types.
      default:
        return []
    }
  }

  /** @throws ServiceError `upstream_error` if the run has no end event */
  end(): Frame[] {
    return this.#chat.end()
  }

  #chatFrames(event: ResearchEvent): Frame[] {
    return chatEvents(event).flatMap((each) => this.#chat.push(each))
  }

  /** A resumed run restarts its sequence numbers. Progress that the client already received is dropped. */
  #progress({ type: _, ...progress }: Extract<ResearchEvent, { type: 'progress' }>): Frame[] {
    if (progress.sequence <= this.#sequence) return []
    this.#sequence = progress.sequence
    return [this.#chunk({ choices: [], research_progress: progress })]
  }

  #annotations({ annotations }: Extract<ResearchEvent, { type: 'annotations' }>): Frame {
    return this.#chunk({ choices: [{ index: 0, delta: { annotations }, logprobs: null, finish_reason: null }] })
  }

  #chunk(rest: object): Frame {
    return { data: JSON.stringify({ ...this.#head, ...rest, ...this.#tail }) }
  }
}
