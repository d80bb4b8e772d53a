import { expect, test } from 'vitest'
import { startStack } from '../../support/stack.ts'

/** Token counts of prompts (docs/reference/compatibility.md, Counting tokens). */

test("count_tokens uses the engine's count, or an estimate if the prompt exceeds every context window", async () => {
  await using stack = await startStack()
  const count = async (content: string) => {
    const body = { model: 'echo-1', messages: [{ role: 'user', content }] }
    const answer = await stack.post('/v1/messages/count_tokens', body, {
      headers: { 'anthropic-version': '2023-06-01' },
    })
    expect(answer.status).toBe(200)
    return ((await answer.json()) as { input_tokens: number }).input_tokens
  }
  // The echo engine counts words. A prompt of one long word therefore has few tokens if it is counted, and many if the number is estimated.
  expect(await count('a'.repeat(1_000_000))).toBeLessThan(10)
  expect(await count('a'.repeat(3_000_000))).toBeGreaterThan(100_000)
})
