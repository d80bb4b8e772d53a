import type { ChatCompletion } from '#schemas/chat.ts'
import type { GenerateEvent } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type {
  ResearchEvent,
  ResearchQuality,
  ResearchSource,
  ResearchStop,
  ResearchUsage,
} from '#schemas/research/research.ts'
import { encodeChat } from '#shared/protocols/chat/whole.ts'

export interface ResearchExtras {
  search_results: ResearchSource[]
  citations: string[]
  research: (ResearchQuality & { stop_reason: ResearchStop } & Omit<ResearchUsage, TokenField>) | undefined
}

type TokenField = 'input_tokens' | 'output_tokens'

export interface ResearchCompletion extends ChatCompletion, ResearchExtras {}

/**
 * The whole answer: a chat completion with annotations and {@link ResearchExtras}.
 *
 * @throws ServiceError `upstream_error` if the events have no end
 */
export function encodeResearch(events: readonly ResearchEvent[], context: EncodeContext): ResearchCompletion {
  const completion = encodeChat(events.flatMap(chatEvents), context)
  const [choice] = completion.choices
  if (choice)
    choice.message.annotations = events.flatMap((each) => (each.type === 'annotations' ? each.annotations : []))
  return { ...completion, ...extrasOf(events) }
}

/** Converts an event into events of text generation. The report is the text of choice 0. */
export function chatEvents(event: ResearchEvent): GenerateEvent[] {
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

export function extrasOf(events: readonly ResearchEvent[]): ResearchExtras {
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
