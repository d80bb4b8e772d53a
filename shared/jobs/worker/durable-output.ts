import type { Frame } from '#shared/kinds/answer.ts'
import type { NewEvent } from '#shared/store/store.ts'

/**
 * Usage of a job, as reported by the answer. Token counts that the answer lacks (plain text, for example) come from the events.
 */
export function usageOf(result: unknown, events: readonly unknown[]): unknown {
  const reported = (result as { usage?: object } | null)?.usage
  if (reported && ('input_tokens' in reported || 'prompt_tokens' in reported)) return reported
  const last = events.findLast((event) => (event as { type?: unknown }).type === 'usage') as
    | { usage?: object }
    | undefined
  return last ? { ...last.usage, ...reported } : reported
}

/** The stored event of one streamed message. The message is stored without framing, so that any transport can send it later. */
export function outputOf({ data }: Frame): NewEvent {
  return { type: 'job.output.delta', data: { chunk: JSON.parse(data) } }
}
