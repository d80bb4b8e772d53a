import type { EncodeContext } from '#schemas/job.ts'
import type { ResearchEvent } from '#schemas/research/research.ts'
import type { Answer, AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { ChatStream } from '#shared/protocols/chat/stream.ts'
import { chatEvents, encodeResearch, extrasOf } from './whole.ts'

/** Reports as chat completions, whole and in chunks. */
export const researchAnswer: Answer<ResearchEvent> = {
  whole: encodeResearch,
  open: (context) => new ResearchStream(context),
}

/**
 * Encodes one run as chat completion chunks, so that plain chat clients read the report: progress and the list of sources are
 * chunks without choices, which such clients pass over; all annotations come in one chunk, since clients that join deltas
 * cannot join lists. What comes of the end waits until the run has ended well.
 */
class ResearchStream implements AnswerStream<ResearchEvent> {
  readonly #chat: ChatStream
  readonly #head: object
  readonly #tail: object
  /** What is said beside the report, without the report. */
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
        return this.#say(event)
      case 'search_results':
      case 'usage':
        this.#extras.push(event)
        return this.#say(event)
      case 'end':
        this.#extras.push(event)
        return [this.#chunk({ choices: [], ...extrasOf(this.#extras) }), ...this.#say(event)]
      // A newer worker says more than this version can tell.
      default:
        return []
    }
  }

  /** @throws ServiceError `upstream_error` when the run said no end */
  end(): Frame[] {
    return this.#chat.end()
  }

  #say(event: ResearchEvent): Frame[] {
    return chatEvents(event).flatMap((each) => this.#chat.push(each))
  }

  /** A run that was taken up again begins to count anew: what its reader knows is not said twice. */
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
