import type { GenerateRequest, Tool, Turn } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { AnyItem, ResponsesRequest } from '#schemas/responses/request.ts'
import {
  type DecodeContext,
  outputTokens,
  refuse,
  requireBoundedSchemas,
  requireJson,
  requireTools,
} from '#services/ingress/body/decode.ts'
import { extraOf, type Pieces } from '#services/ingress/body/validate.ts'
import { ItemTurns } from './items.ts'
import { decodeTools, toolNames, toolUse } from './tools.ts'

/** Stored context that a request continues. */
export interface ConversationContext {
  /** Prompt of the previous response, without instructions. */
  readonly turns: readonly Turn[]
  readonly items: readonly AnyItem[]
  readonly param: 'previous_response_id' | 'conversation'
  readonly referenced: ReadonlyMap<string, AnyItem>
  /** Maximum characters of all referenced items. Limited, because a short reference can stand for megabytes. */
  readonly referencedCharsMax: number
}

const PIECE_ITEMS = 100

/**
 * Decodes a body whose shape was checked (docs/guides/responses.md, Requests). Checks the model first, then the rules
 * that depend on the model, then the items.
 *
 * @throws ServiceError with the path of the first problem
 */
export function* decodeResponses(
  body: ResponsesRequest,
  before: ConversationContext,
  context: DecodeContext & { readonly isHosting: boolean },
): Pieces<GenerateRequest> {
  const model = context.getModel(body.model)
  const decoded = decodeTools(body, context.isHosting)
  const tools = decoded.map(({ tool }) => tool)
  const functions = decoded.filter(({ tool }) => !tool.native_only)
  const offered = functions.map(({ tool }) => tool)
  const pathAt = (field: string) => (index: number) => `${functions[index]?.path}.${field}`
  requireTools(model, offered, pathAt('name'))
  const format = responseFormat(body, model)
  requireBoundedSchemas(offered, pathAt('parameters'), format, 'text.format.schema')
  const logprobs = wantsLogprobs(body, model)
  const turns = yield* decodeInput(body, before, context, model, tools)
  const { use, native } = toolUse(body, tools)
  return {
    dialect: 'responses',
    model: model.id,
    turns,
    stream: body.stream ?? false,
    truncates: body.truncation === 'auto' ? true : undefined,
    max_tokens: outputTokens(model, body.max_output_tokens ?? undefined),
    temperature: body.temperature ?? undefined,
    top_p: body.top_p ?? undefined,
    n: 1,
    stop: [],
    presence_penalty: body.presence_penalty ?? undefined,
    frequency_penalty: body.frequency_penalty ?? undefined,
    logprobs,
    top_logprobs: logprobs ? (body.top_logprobs ?? undefined) : undefined,
    tools,
    ...use,
    response_format: format,
    reasoning: reasoning(body, model),
    user: body.user ?? undefined,
    extra: extra(body, native),
  }
}

function* decodeInput(
  { input, instructions, previous_response_id, conversation, prompt }: ResponsesRequest,
  before: ConversationContext,
  { remoteImages }: DecodeContext,
  model: ModelConfig,
  tools: readonly Tool[],
): Pieces<Turn[]> {
  const items = new ItemTurns({ model, remoteImages, ...before, nameOf: toolNames(tools) })
  if (instructions) items.turns.push({ role: 'system', parts: [{ type: 'text', text: instructions }] })
  items.addTurns(before.turns, before.param)
  for (const item of before.items) yield* items.add(item, [before.param])
  if (typeof input === 'string') yield* items.add({ type: 'message', role: 'user', content: input }, ['input'])
  else if (!input || input.length === 0) {
    // A prompt template stored at the upstream may already contain the input.
    if (!prompt) refuseEmpty(input, previous_response_id ? before.param : conversation && before.param)
  } else {
    for (const [index, item] of input.entries()) {
      if (index % PIECE_ITEMS === 0) yield
      yield* items.add(item, ['input', index])
    }
  }
  return items.finish()
}

function refuseEmpty(input: readonly unknown[] | null | undefined, param: string | null | undefined): void {
  if (input) return refuse('empty_array', 'input', "Invalid 'input': empty array. Expected at least one item.")
  const message = param
    ? `Missing required parameter: 'input'. A request that continues '${param}' needs new input.`
    : "Missing required parameter: 'input'."
  refuse('missing_required_parameter', 'input', message)
}

function responseFormat({ text }: ResponsesRequest, model: ModelConfig): GenerateRequest['response_format'] {
  const format = text?.format
  if (!format || format.type === 'text') return undefined
  requireJson(model, 'text.format')
  if (format.type === 'json_object') return { type: 'json_object' }
  const { name, description, schema, strict } = format
  return {
    type: 'json_schema',
    name,
    description: description ?? undefined,
    schema,
    strict: strict ?? undefined,
  }
}

function wantsLogprobs({ include, top_logprobs }: ResponsesRequest, model: ModelConfig): boolean {
  const isWanted = include?.includes('message.output_text.logprobs') || (top_logprobs ?? 0) > 0
  if (isWanted && !model.capabilities.logprobs) {
    refuse('unsupported_value', 'top_logprobs', `The model '${model.id}' does not support log probabilities.`)
  }
  return isWanted
}

/** Reasoning options; undefined for a model without reasoning. */
function reasoning({ reasoning }: ResponsesRequest, model: ModelConfig): GenerateRequest['reasoning'] {
  const effort = reasoning?.effort
  if (!effort || !model.capabilities.reasoning) return undefined
  return effort === 'none' ? { effort, enabled: false } : { effort }
}

/** Fields that have an internal form, or no meaning for upstreams, because Sluice stores the responses. */
const CONSUMED: ReadonlySet<string> = new Set([
  ...['model', 'input', 'instructions', 'previous_response_id', 'conversation', 'tools', 'tool_choice', 'stream'],
  ...['parallel_tool_calls', 'reasoning', 'text', 'background', 'include', 'max_output_tokens', 'metadata'],
  ...[
    'presence_penalty',
    'frequency_penalty',
    'store',
    'stream_options',
    'temperature',
    'top_logprobs',
    'top_p',
    'user',
  ],
])
const REASONING_CONSUMED: ReadonlySet<string> = new Set(['effort'])
const TEXT_CONSUMED: ReadonlySet<string> = new Set(['format'])
const NOTHING: ReadonlySet<string> = new Set()

/**
 * Fields that are passed to the upstream unchanged.
 *
 * @param toolChoice Choice of a native tool
 */
function extra(body: ResponsesRequest, toolChoice: unknown): Record<string, unknown> | undefined {
  return extraOf(
    {
      ...extraOf(body, CONSUMED),
      reasoning: extraOf(body.reasoning ?? {}, REASONING_CONSUMED),
      text: extraOf(body.text ?? {}, TEXT_CONSUMED),
      include: body.include?.length ? body.include : undefined,
      tool_choice: toolChoice,
    },
    NOTHING,
  )
}
