import { z } from 'zod'
import type { ChildEnd } from '#shared/kinds/composition.ts'

export const CHARS_PER_TOKEN = 3

const Tokens = z.union([
  z.looseObject({ prompt_tokens: z.int().min(0), completion_tokens: z.int().min(0) }),
  z.looseObject({ input_tokens: z.int().min(0), output_tokens: z.int().min(0) }),
])

export function usageOf(end: ChildEnd): { input: number; output: number } {
  if (end.state !== 'completed') return { input: 0, output: 0 }
  for (const from of [(end.result as { usage?: unknown } | null)?.usage, end.usage]) {
    const { data } = Tokens.safeParse(from)
    if (data && 'prompt_tokens' in data)
      return { input: Number(data.prompt_tokens), output: Number(data.completion_tokens) }
    if (data) return { input: Number(data.input_tokens), output: Number(data.output_tokens) }
  }
  return { input: 0, output: 0 }
}
