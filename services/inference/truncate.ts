import type { GenerateRequest, Turn } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'

/** Maximum share of the context that is reserved for the answer. */
const ANSWER_SHARE = 0.25

/**
 * Removes as few of the oldest turns as possible from a prompt that exceeds the model's context (docs/guides/responses.md, Truncation).
 *
 * The rest consists of the instructions, if any, and the conversation from some user turn on, so that no tool output loses its call. The
 * last user turn always stays; if it alone is too long, then the engine refuses it.
 *
 * @param count Returns the tokens of a prompt by the model's tokenizer.
 */
export async function fitPrompt(
  request: GenerateRequest,
  { limits }: Pick<ModelConfig, 'limits'>,
  count: (request: GenerateRequest) => Promise<number>,
): Promise<GenerateRequest> {
  if (!request.truncates || limits.context_tokens === undefined) return request
  const share = Math.floor(limits.context_tokens * ANSWER_SHARE)
  const budget = limits.context_tokens - Math.min(request.max_tokens ?? share, share)
  if ((await count(request)) <= budget) return request
  const shorter = shorterPrompts(request.turns)
  // Binary search for the longest prompt that fits, since counting a long prompt is slow.
  let [low, high] = [0, shorter.length - 1]
  while (low < high) {
    const middle = Math.floor((low + high) / 2)
    const turns = shorter[middle]?.() ?? []
    if ((await count({ ...request, turns })) <= budget) high = middle
    else low = middle + 1
  }
  const turns = shorter[low]?.()
  return turns ? { ...request, turns } : request
}

/** All candidates of a truncated conversation, the longest first. */
function shorterPrompts(turns: readonly Turn[]): (() => Turn[])[] {
  const first = turns.findIndex(({ role }) => role !== 'system')
  const head = turns.slice(0, Math.max(0, first))
  const starts = turns.flatMap(({ role }, at) => (role === 'user' && at > first ? [at] : []))
  return starts.map((start) => () => [...head, ...turns.slice(start)])
}
