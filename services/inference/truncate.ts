import type { GenerateRequest, Turn } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'

/** Of the context at most so much is left for the answer. */
const ANSWER_SHARE = 0.25

/**
 * Leaves out the oldest turns of a prompt that is too long for its model, as few as will do (docs/responses.md, Truncation).
 *
 * What is left begins with instructions, where there are any, and then with what a user said, so that no output of a tool is
 * without its call. The last words of the user stay: where these alone are too long the engine refuses them.
 *
 * @param count Tokens of a prompt, by the model that is to read it.
 */
export async function fitPrompt(
  request: GenerateRequest,
  { limits }: Pick<ModelConfig, 'limits'>,
  count: (request: GenerateRequest) => Promise<number>,
): Promise<GenerateRequest> {
  if (!request.truncates || limits.context_tokens === undefined) return request
  const share = Math.floor(limits.context_tokens * ANSWER_SHARE)
  const room = limits.context_tokens - Math.min(request.max_tokens ?? share, share)
  if ((await count(request)) <= room) return request
  const shorter = shorterPrompts(request.turns)
  // The longest that fits, by halves: counting a long prompt takes its time.
  let [low, high] = [0, shorter.length - 1]
  while (low < high) {
    const middle = Math.floor((low + high) / 2)
    const turns = shorter[middle]?.() ?? []
    if ((await count({ ...request, turns })) <= room) high = middle
    else low = middle + 1
  }
  const turns = shorter[low]?.()
  return turns ? { ...request, turns } : request
}

/** What can be left of turns, the longest first. */
function shorterPrompts(turns: readonly Turn[]): (() => Turn[])[] {
  const first = turns.findIndex(({ role }) => role !== 'system')
  const head = turns.slice(0, Math.max(0, first))
  const starts = turns.flatMap(({ role }, at) => (role === 'user' && at > first ? [at] : []))
  return starts.map((start) => () => [...head, ...turns.slice(start)])
}
