import type { Frame } from '#shared/kinds/answer.ts'
import type { NewEvent } from '#shared/store/store.ts'

/** How what a durable run says is kept. */

/** The usage as the answer says it. Tokens that it does not tell, such as those of a plain text, are those of the events. */
export function usageOf(result: unknown, events: readonly unknown[]): unknown {
  const said = (result as { usage?: object } | null)?.usage
  if (said && ('input_tokens' in said || 'prompt_tokens' in said)) return said
  const last = events.findLast((event) => (event as { type?: unknown }).type === 'usage') as
    | { usage?: object }
    | undefined
  return last ? { ...last.usage, ...said } : said
}

/** What is kept is the message, whichever wire it will be read on. */
export function outputOf({ data }: Frame): NewEvent {
  return { type: 'job.output.delta', data: { chunk: JSON.parse(data) } }
}
