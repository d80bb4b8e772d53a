import type { GenerateRequest, Part, Usage } from '#schemas/kinds/generate.ts'
import { countTokens } from '#shared/engines/tokenizer/tokenizer.ts'

/** Only this many characters at the start of a text are tokenized. The number of tokens of a longer text is extrapolated. */
const SAMPLE_CHARS = 32 * 1024

/** Maximum time of counting. After this time, the tokens are estimated from the number of characters. */
const COUNT_MS = 5_000

const CHARS_PER_TOKEN = 4

/** Estimates the tokens of the prompt for the event `start`, which is sent before the upstream reports its count. */
export function estimateInputTokens(request: GenerateRequest): number {
  let chars = 0
  for (const text of promptTexts(request)) chars += text.length
  return Math.ceil(chars / CHARS_PER_TOKEN)
}

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
 * Estimates the usage of a call whose upstream reports none. Tokens are counted with the encoding o200k, and the usage is marked as estimated.
 *
 * @param output All text that the model generated: content, reasoning, arguments of calls.
 */
export async function estimateUsage(request: GenerateRequest, output: string): Promise<Usage> {
  const input = [...promptTexts(request)].join('\n')
  const [input_tokens, output_tokens] = [await countText(input), await countText(output)]
  return { input_tokens, output_tokens, estimated: true }
}

export async function countText(text: string): Promise<number> {
  const sample = text.slice(0, SAMPLE_CHARS)
  // The count is an estimate in any case, so an error or a timeout of the tokenizer does not fail the call.
  const tokens = await countTokens('o200k_base', sample, AbortSignal.timeout(COUNT_MS)).catch(
    () => sample.length / CHARS_PER_TOKEN,
  )
  return Math.round(tokens * Math.max(1, text.length / SAMPLE_CHARS))
}

function* promptTexts(request: GenerateRequest): Generator<string> {
  for (const turn of request.turns) {
    for (const part of turn.parts) yield partText(part)
  }
  for (const tool of request.tools) yield `${tool.name} ${tool.description ?? ''} ${JSON.stringify(tool.parameters)}`
}

/** Returns the text of a part. Images, audio and files have no text, and their token cost depends on the model. */
function partText(part: Part): string {
  if (part.type === 'text' || part.type === 'reasoning') return part.text
  return part.type === 'tool_call' ? `${part.name} ${part.arguments}` : ''
}
