/* Tests of token counting for prompts (docs/reference/compatibility.md, Counting tokens). */

import { expect, test } from 'vitest'
import { startStack } from '../../support/stack.ts'

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
  // The echo engine counts words, and the prompt is one long word. A small result therefore is a count of the engine, and a large result is
  // an estimate from the length.
  expect(await count('a'.repeat(1_000_000))).toBeLessThan(10)
  expect(await count('a'.repeat(3_000_000))).toBeGreaterThan(100_000)
})
