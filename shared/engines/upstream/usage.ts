import type { GenerateRequest, Part, Usage } from '#schemas/generate.ts'

/** Maximum characters that are counted. The rest of a longer text is extrapolated. */
const SAMPLE_CHARS = 32 * 1024

/**
 * Characters per tokenizer call. The tokenizer's cost grows with the square of a run without spaces: 60,000 characters of Japanese block
 * the process for 8 s. Splitting adds about 1 % to the count.
 */
const SLICE_CHARS = 256

/** Characters per token, on average over English prose and code. */
const CHARS_PER_TOKEN = 4

/** A quick estimate of the prompt's tokens, for `start` before the upstream has counted. */
export function estimateInputTokens(request: GenerateRequest): number {
  let chars = 0
  for (const text of promptTexts(request)) chars += text.length
  return Math.ceil(chars / CHARS_PER_TOKEN)
}

/** Usage as the upstream counted it. Missing counts are estimated, and the usage is marked as estimated. */
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
 * @param output All text that the model generated: content, reasoning, arguments of calls.
 */
export async function estimateUsage(request: GenerateRequest, output: string): Promise<Usage> {
  const input = [...promptTexts(request)].join('\n')
  const [input_tokens, output_tokens] = [await countText(input), await countText(output)]
  return { input_tokens, output_tokens, estimated: true }
}

/** Tokens of a text in o200k, for engines that do not count. */
export async function countText(text: string): Promise<number> {
  // Loaded on first use, because the vocabulary takes tens of megabytes and most upstreams count themselves.
  const { countTokens } = await import('gpt-tokenizer/encoding/o200k_base')
  const length = Math.min(text.length, SAMPLE_CHARS)
  let tokens = 0
  for (let at = 0; at < length; at += SLICE_CHARS) {
    // Text that looks like a special token (<|endoftext|>) is plain text here; by default the tokenizer throws on it.
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

/** Images, audio and files have no text. Their token cost depends on the model. */
function partText(part: Part): string {
  if (part.type === 'text' || part.type === 'reasoning') return part.text
  return part.type === 'tool_call' ? `${part.name} ${part.arguments}` : ''
}
