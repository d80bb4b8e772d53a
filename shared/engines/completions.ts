import type { GenerateEvent, GenerateRequest, Usage } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { ChatEngine, GenerateOptions } from './engine.ts'
import { isOpenAiServer } from './upstream/servers.ts'

/** Returns the number of raw prompts per call that a model's engine can complete ({@link ChatEngine.completes}). */
export function completesOf({ engine }: ModelConfig): ChatEngine['completes'] {
  if (engine.type === 'llama') return 'one'
  if (engine.type !== 'openai' || engine.api === 'responses') return undefined
  return (engine.completions ?? !isOpenAiServer(engine)) ? 'all' : undefined
}

/**
 * Rejects completion features that the engine of a model lacks.
 *
 * @throws ServiceError with the name of the request field
 */
export function requireCompletable(model: ModelConfig, request: GenerateRequest): void {
  const { completion, n, logprobs, max_tokens } = request
  const completes = completesOf(model)
  if (!completion || completes === 'all') return
  const { tokens, suffix, best_of: bestOf = n, echo } = completion
  const { id, engine } = model
  if (tokens && !completes)
    refuse('unsupported_value', 'prompt', `The model '${id}' does not support prompts as tokens. Send text.`)
  if (suffix !== undefined) refuse('unsupported_parameter', 'suffix', `The model '${id}' does not support 'suffix'.`)
  if (bestOf > n)
    refuse(
      'unsupported_value',
      'best_of',
      `The model '${id}' does not support 'best_of'. Request all choices with 'n'.`,
    )
  if (echo && logprobs) {
    const message = `The model '${id}' does not return log probabilities of its prompt. Omit 'echo' or 'logprobs'.`
    refuse('unsupported_value', 'logprobs', message)
  }
  if (max_tokens === 0 && !completes && engine.type !== 'echo') {
    refuse(
      'unsupported_value',
      'max_tokens',
      `The model '${id}' generates at least one token. Set 'max_tokens' to at least 1.`,
    )
  }
}

function refuse(code: 'unsupported_value' | 'unsupported_parameter', param: string, message: string): never {
  throw new ServiceError(code, message, { param })
}

export function choicesOf({ n, turns, completion }: GenerateRequest): number {
  return completion ? n * (completion.tokens ?? turns).length : n
}

/**
 * Generates a completion. If the engine accepts one prompt per call, then the calls run one after the other, and their events form one answer.
 *
 * @throws The errors of the engine
 */
export function complete(
  engine: ChatEngine,
  request: GenerateRequest,
  options: GenerateOptions,
): AsyncIterable<GenerateEvent> {
  if (!request.completion || engine.completes === 'all') return engine.generate(request, options)
  return completeEach(engine, request, options)
}

async function* completeEach(
  engine: ChatEngine,
  request: GenerateRequest,
  options: GenerateOptions,
): AsyncGenerator<GenerateEvent> {
  const prompts = (request.completion?.tokens ?? request.turns).length
  let sum: Usage | undefined
  for (let prompt = 0; prompt < prompts; prompt++) {
    const first = prompt * request.n
    for await (const event of engine.generate(promptOf(engine, request, prompt), options)) {
      if (event.type === 'usage') sum = addUsage(sum, event.usage)
      else if (event.type !== 'start') yield { ...event, choice: first + event.choice }
      else if (prompt === 0) yield event
      if (event.type === 'start' && !engine.completes) yield* echoed(request, prompt)
    }
  }
  if (sum) yield { type: 'usage', usage: sum }
}

function promptOf({ completes }: ChatEngine, request: GenerateRequest, prompt: number): GenerateRequest {
  const { completion, ...rest } = request
  const turns = request.turns.slice(prompt, prompt + 1)
  if (!completes || !completion) return { ...rest, turns }
  const { tokens, ...more } = completion
  return { ...rest, turns, completion: { ...more, ...(tokens && { tokens: tokens.slice(prompt, prompt + 1) }) } }
}

/**
 * Emits the prompt before the text of each choice (`echo` of the completions API). An engine that receives the prompt as a conversation
 * does not repeat the prompt itself.
 */
function* echoed({ completion, turns, n }: GenerateRequest, prompt: number): Generator<GenerateEvent> {
  const [part] = turns[prompt]?.parts ?? []
  if (!completion?.echo || part?.type !== 'text') return
  for (let choice = prompt * n; choice < (prompt + 1) * n; choice++) yield { type: 'text', choice, text: part.text }
}

function addUsage(sum: Usage | undefined, usage: Usage): Usage {
  if (!sum) return usage
  const total = { ...sum }
  for (const [name, value] of Object.entries(usage)) {
    if (typeof value !== 'number') continue
    const counted = name as Exclude<keyof Usage, 'estimated'>
    total[counted] = (total[counted] ?? 0) + value
  }
  return { ...total, ...(usage.estimated && { estimated: true }) }
}
