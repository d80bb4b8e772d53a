import type { GenerateEvent } from '#schemas/generate.ts'
import type { ContentFilter } from '#shared/content-filter/content-filter.ts'

/**
 * Makes a function that every event of one answer passes through: it puts what the filter found on each `finish` that
 * brings no results of its own. A plain call and not one more generator, which would cost every token a microtask.
 */
export function filterWith(filter: ContentFilter): (event: GenerateEvent) => GenerateEvent {
  const texts: string[] = []
  return (event) => {
    if (event.type === 'text') texts[event.choice] = (texts[event.choice] ?? '') + event.text
    if (event.type !== 'finish' || event.filter) return event
    const { detected } = filter.classify(texts[event.choice] ?? '')
    if (detected.length === 0) return event
    const results = detected.map((category) => [category, { filtered: false, detected: true }])
    return { ...event, filter: Object.fromEntries(results) }
  }
}
