import type { GenerateRequest, Part, Usage } from '#schemas/generate.ts'

/** Characters that are counted; of a longer text the rest is taken to be like its beginning. */
const SAMPLE_CHARS = 32 * 1024

/**
 * Characters counted at a time. The tokenizer's cost grows with the square of a run without spaces (60,000 characters
 * of Japanese block the process for 8 s); cutting adds a token here and there, about 1 %.
 */
const SLICE_CHARS = 256

/** Characters of a token, on average over English prose and code. */
const CHARS_PER_TOKEN = 4

/** The prompt's tokens at a glance: good enough for `start`, before the upstream has counted. */
export function guessInputTokens(request: GenerateRequest): number {
  let chars = 0
  for (const text of promptTexts(request)) chars += text.length
  return Math.ceil(chars / CHARS_PER_TOKEN)
}

/** Usage as the upstream counted it. Counts that it left out are estimated, and the usage is marked so. */
export async function completeUsage(
  counted: Partial<Usage> | undefined,
  request: GenerateRequest,
  output: string,
): Promise<Usage> {
  const { input_tokens, output_tokens } = counted ?? {}
  if (input_tokens !== undefined && output_tokens !== undefined) return { ...counted, input_tokens, output_tokens }
  return { ...(await estimateUsage(request, output)), ...counted }
}

/**
 * Usage of a call whose upstream reports none, counted with o200k and marked as estimated.
 *
 * @param output All text the model wrote: content, reasoning, arguments of calls.
 */
export async function estimateUsage(request: GenerateRequest, output: string): Promise<Usage> {
  const input = [...promptTexts(request)].join('\n')
  const [input_tokens, output_tokens] = [await countText(input), await countText(output)]
  return { input_tokens, output_tokens, estimated: true }
}

/** Tokens of a text in o200k, an estimate where nobody counts. */
export async function countText(text: string): Promise<number> {
  // Loaded on first use: the vocabulary costs tens of megabytes, and most upstreams count for themselves.
  const { countTokens } = await import('gpt-tokenizer/encoding/o200k_base')
  const length = Math.min(text.length, SAMPLE_CHARS)
  let tokens = 0
  for (let at = 0; at < length; at += SLICE_CHARS) {
    // What looks like a special token (<|endoftext|>) is plain text here; by default the tokenizer throws on it.
    tokens += countTokens(text.slice(at, Math.min(at + SLICE_CHARS, length)), { disallowedSpecial: new Set() })
  }
  return Math.round(tokens * Math.max(1, text.length / SAMPLE_CHARS))
}

function* promptTexts(request: GenerateRequest): Generator<string> {
  for (const turn of request.turns) {
    for (const part of turn.parts) yield partText(part)
  }
  for (const tool of request.tools) yield `${tool.name} ${tool.description ?? ''} ${JSON.stringify(tool.parameters)}`
}

/** Images, audio and files have no text; what they cost differs from model to model. */
function partText(part: Part): string {
  if (part.type === 'text' || part.type === 'reasoning') return part.text
  return part.type === 'tool_call' ? `${part.name} ${part.arguments}` : ''
}
