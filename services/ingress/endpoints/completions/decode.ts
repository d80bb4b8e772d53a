import { CompletionsRequest } from '#schemas/completions.ts'
import { type EmbedInput, TOKENS_MAX } from '#schemas/embeddings.ts'
import type { GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { type DecodeContext, outputTokens, readInputs, refuse } from '#services/ingress/body/decode.ts'
import { extraOf, type Pieces, parseBody } from '#services/ingress/body/validate.ts'
import { exactSeed, requireSampling } from '#services/ingress/endpoints/chat/decode.ts'
import { choicesOf, requireCompletable } from '#shared/engines/completions.ts'

/** Default of the API. Without `max_tokens`, an answer therefore ends after 16 tokens. */
const MAX_TOKENS = 16
const CHOICES_MAX = 2_048

/**
 * Fields that have an internal form, or no meaning for upstreams. All other fields are passed to an upstream of the
 * same dialect.
 */
const CONSUMED: ReadonlySet<string> = new Set([
  ...['model', 'prompt', 'stream', 'stream_options', 'temperature', 'top_p', 'max_tokens', 'n', 'best_of', 'echo'],
  ...['suffix', 'stop', 'presence_penalty', 'frequency_penalty', 'logit_bias', 'seed', 'logprobs', 'user'],
  ...['metadata', 'store'],
])

/**
 * Decodes a completions body (docs/reference/compatibility.md, Completions). Checks the shape first, then the model,
 * then the rules that depend on the model. Each prompt becomes a user turn or a list of tokens.
 *
 * @throws ServiceError with the path of the first problem
 */
// biome-ignore lint/correctness/useYield: decoding takes a few milliseconds; the other decoders yield, and callers expect a generator.
export function* decodeCompletions(body: unknown, context: DecodeContext): Pieces<GenerateRequest> {
  const asked = parseBody(CompletionsRequest, body, 'openai')
  const prompts = readInputs(asked.prompt, 'prompt')
  const model = context.getModel(asked.model)
  requireSampling({ ...asked, logprobs: typeof asked.logprobs === 'number' }, model)
  requireChoices(asked)
  const request = requestOf(asked, prompts, model)
  if (choicesOf(request) > CHOICES_MAX) {
    refuse('invalid_value', 'prompt', `Expected at most ${CHOICES_MAX} choices in one call, counted over all prompts.`)
  }
  requireCompletable(model, request)
  return request
}

function requestOf(asked: CompletionsRequest, prompts: EmbedInput[], model: ModelConfig): GenerateRequest {
  const { logprobs } = asked
  return {
    dialect: 'openai',
    model: model.id,
    turns: prompts.flatMap((text) =>
      typeof text === 'string' ? [{ role: 'user', parts: [{ type: 'text', text }] }] : [],
    ),
    stream: asked.stream ?? false,
    max_tokens: outputTokens(model, asked.max_tokens ?? MAX_TOKENS),
    temperature: asked.temperature ?? undefined,
    top_p: asked.top_p ?? undefined,
    n: asked.n ?? 1,
    stop: typeof asked.stop === 'string' ? [asked.stop] : (asked.stop ?? []),
    presence_penalty: asked.presence_penalty ?? undefined,
    frequency_penalty: asked.frequency_penalty ?? undefined,
    logit_bias: asked.logit_bias ?? undefined,
    seed: typeof asked.seed === 'number' ? exactSeed(asked.seed) : undefined,
    logprobs: typeof logprobs === 'number',
    top_logprobs: logprobs ?? undefined,
    tools: [],
    user: asked.user ?? undefined,
    completion: {
      tokens: tokensOf(prompts),
      echo: asked.echo ?? false,
      suffix: asked.suffix || undefined,
      best_of: asked.best_of ?? undefined,
    },
    extra: extraOf(asked, CONSUMED),
  }
}

/** The prompts that are token lists; undefined if the prompts are texts. */
function tokensOf(prompts: readonly EmbedInput[]): number[][] | undefined {
  const lists = prompts.filter((prompt) => typeof prompt !== 'string')
  if (lists.length === 0) return undefined
  if (lists.reduce((sum, { length }) => sum + length, 0) <= TOKENS_MAX) return lists
  return refuse(
    'invalid_value',
    'prompt',
    `Expected at most ${TOKENS_MAX} tokens in one call, counted over all prompts.`,
  )
}

function requireChoices({ n, best_of: bestOf, stream, echo, max_tokens: maxTokens }: CompletionsRequest): void {
  const given = n ?? 1
  if (typeof bestOf === 'number') {
    if (bestOf < given) refuse('invalid_value', 'best_of', "Invalid 'best_of': must be at least as large as 'n'.")
    if (stream && bestOf > given) {
      refuse('invalid_value', 'best_of', "Invalid 'best_of': ranked choices cannot be streamed.")
    }
  }
  if (maxTokens === 0 && !echo) {
    refuse(
      'integer_below_min_value',
      'max_tokens',
      "Invalid 'max_tokens': 0 is valid only with 'echo', to repeat the prompt.",
    )
  }
}
