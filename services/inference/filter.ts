import type { GenerateEvent } from '#schemas/generate.ts'
import type { ContentFilter } from '#shared/content-filter/content-filter.ts'

/** Passes events on and puts what the filter found on each `finish` that brings no results of its own. */
export async function* filterContent(
  events: AsyncIterable<GenerateEvent>,
  filter: ContentFilter,
): AsyncGenerator<GenerateEvent> {
  const texts: string[] = []
  for await (const event of events) {
    if (event.type === 'text') texts[event.choice] = (texts[event.choice] ?? '') + event.text
    if (event.type !== 'finish' || event.filter) {
      yield event
      continue
    }
    const { detected } = filter.classify(texts[event.choice] ?? '')
    const results = Object.fromEntries(detected.map((category) => [category, { filtered: false, detected: true }]))
    yield detected.length > 0 ? { ...event, filter: results } : event
  }
}
