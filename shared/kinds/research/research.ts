import type { ChatCompletion } from '#schemas/chat.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import {
  type ResearchEvent,
  type ResearchQuality,
  ResearchRequest,
  type ResearchSource,
  type ResearchStop,
  type ResearchUsage,
} from '#schemas/kinds/research.ts'
import { type Answer, type AnswerStream, type Frame, frameOf } from '#shared/kinds/answer.ts'
import { ChatStream } from '#shared/kinds/generate/chat/stream.ts'
import { encodeChat } from '#shared/kinds/generate/chat/whole.ts'
import type { Kind } from '#shared/kinds/kind.ts'

/** Maximum text of a merged event, in UTF-16 units, so that queue records and stream frames stay small. */
const MERGED_TEXT_MAX = 16 * 1024

export const research: Kind<ResearchRequest, ResearchEvent> = {
  name: 'research',
  pool: 'research',
  request: ResearchRequest,
  merge: mergeResearchEvents,
  // Progress is not output, so a job can be retried after progress. The retry repeats progress events with equal sequence numbers, which the stream
  // drops.
  isOutput: ({ type }) => type !== 'progress',
  answer: () => researchAnswer,
}

function mergeResearchEvents(a: ResearchEvent, b: ResearchEvent): ResearchEvent | undefined {
  if (a.type !== 'text' || b.type !== 'text' || a.text.length + b.text.length > MERGED_TEXT_MAX) return undefined
  return { type: 'text', text: a.text + b.text }
}

interface ResearchExtras {
  search_results: ResearchSource[]
  citations: string[]
  research: (ResearchQuality & { stop_reason: ResearchStop } & Omit<ResearchUsage, TokenField>) | undefined
}

type TokenField = 'input_tokens' | 'output_tokens'

export interface ResearchCompletion extends ChatCompletion, ResearchExtras {}

function encodeResearch(events: readonly ResearchEvent[], context: EncodeContext): ResearchCompletion {
  const completion = encodeChat(events.flatMap(chatEvents), context)
  const [choice] = completion.choices
  if (choice)
    choice.message.annotations = events.flatMap((each) => (each.type === 'annotations' ? each.annotations : []))
  return { ...completion, ...extrasOf(events) }
}

function chatEvents(event: ResearchEvent): GenerateEvent[] {
  switch (event.type) {
    case 'text':
      return [{ type: 'text', choice: 0, text: event.text }]
    case 'usage':
      return [{ type: 'usage', usage: tokensOf(event.usage) }]
    case 'end':
      return [{ type: 'finish', choice: 0, reason: event.finish_reason }]
    default:
      return []
  }
}

function extrasOf(events: readonly ResearchEvent[]): ResearchExtras {
  const extras: ResearchExtras = { search_results: [], citations: [], research: undefined }
  let usage: Omit<ResearchUsage, TokenField> = { searches: 0, pages: 0, cost_usd: 0 }
  for (const event of events) {
    if (event.type === 'search_results') extras.search_results.push(...event.results)
    if (event.type === 'annotations') extras.citations = citedUrls(event.annotations)
    if (event.type === 'usage') {
      const { searches, pages, cost_usd } = event.usage
      usage = { searches, pages, cost_usd }
    }
    if (event.type === 'end') extras.research = { ...event.quality, stop_reason: event.stop_reason, ...usage }
  }
  return extras
}

type Annotations = Extract<ResearchEvent, { type: 'annotations' }>['annotations']

function citedUrls(annotations: Annotations): string[] {
  return [...new Set(annotations.map(({ url_citation }) => url_citation.url))]
}

function tokensOf({ input_tokens, output_tokens }: ResearchUsage) {
  return { input_tokens, output_tokens }
}

const researchAnswer: Answer<ResearchEvent> = {
  whole: encodeResearch,
  open: (context) => new ResearchStream(context),
}

/**
 * Encodes one run as chat completion chunks, so that plain chat clients can read the report.
 *
 * Progress and sources are sent as chunks without choices, which plain chat clients ignore. All annotations are in one chunk, because the SDKs do not
 * merge lists of annotations. The last chunks are sent only after the run has ended successfully.
 */
class ResearchStream implements AnswerStream<ResearchEvent> {
  readonly #chat: ChatStream
  readonly #head: object
  readonly #tail: object
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
      // An event of an unknown type comes from a worker of a newer version, and is ignored.
      default:
        return []
    }
  }

  end(): Frame[] {
    return this.#chat.end()
  }

  #chatFrames(event: ResearchEvent): Frame[] {
    return chatEvents(event).flatMap((each) => this.#chat.push(each))
  }

  /** Encodes progress. A retried run repeats its sequence numbers from 1, so progress that the client has already received is dropped. */
  #progress({ type: _, ...progress }: Extract<ResearchEvent, { type: 'progress' }>): Frame[] {
    if (progress.sequence <= this.#sequence) return []
    this.#sequence = progress.sequence
    return [this.#chunk({ choices: [], research_progress: progress })]
  }

  #annotations({ annotations }: Extract<ResearchEvent, { type: 'annotations' }>): Frame {
    return this.#chunk({ choices: [{ index: 0, delta: { annotations }, logprobs: null, finish_reason: null }] })
  }

  #chunk(rest: object): Frame {
    return frameOf({ ...this.#head, ...rest, ...this.#tail })
  }
}
