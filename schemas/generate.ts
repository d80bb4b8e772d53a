import { z } from 'zod'
import { recordOf } from '#schemas/record.ts'
import { CodeFile, RUN_FILES_MAX } from './code.ts'
import { ResearchDomains } from './research/research.ts'
import { RESULTS_MAX } from './search.ts'

/**
 * The internal form of text generation: one request and one event stream in which three public APIs meet.
 *
 * The ingress decodes a body into a {@link GenerateRequest} and encodes {@link GenerateEvent}s into the caller's API. Workers and
 * engines know only this form. Clients and servers of these APIs change every month, so the internal form never names all of
 * their fields. Two mechanisms carry what it does not name, in both directions, between a caller and an upstream of one dialect:
 *
 * 1. `extra` holds unknown fields of a known object (a turn, a part, a tool, the request).
 * 2. `native` holds a whole object of an unknown type: a {@link NativePart} for a content block or an item, `native` of a
 *    {@link Tool} for a tool, and the event `native` for an output item, a content block, or fields of the answer.
 *
 * An engine of the same dialect sends them as they came. An engine of another dialect uses the substitute that the decoder put
 * next to them (a function, a text), or leaves them out. Example: `apply_patch` of type `custom` reaches an upstream with
 * `api: responses` unchanged, and any other upstream as a function with one string, `input`.
 */

/** Public API that a request came in by, or that an upstream speaks: chat completions, Messages, Responses. */
export const Dialect = z.enum(['openai', 'anthropic', 'responses'])
export type Dialect = z.infer<typeof Dialect>

const JsonObject = recordOf(z.string(), z.unknown())

const Extra = JsonObject.optional().describe('Unknown wire fields, for an upstream of the same dialect')

const MessageFields = JsonObject.optional().describe(
  'Responses: a message item of the assistant begins with this part. Its fields without role and content, such as phase',
)
const TextPart = z.strictObject({
  type: z.literal('text'),
  text: z.string(),
  extra: Extra,
  message: MessageFields,
})
const ImagePart = z.strictObject({
  type: z.literal('image'),
  url: z.string().describe('data: URL with base64 content, or an https URL where the deployment allows it'),
  detail: z.string().optional(),
  extra: Extra,
})
const AudioPart = z.strictObject({
  type: z.literal('audio'),
  data: z.string().describe('base64'),
  format: z.string(),
  extra: Extra,
})
const FilePart = z.strictObject({
  type: z.literal('file'),
  data: z.string().describe('data: URL with base64 content, or an https URL'),
  filename: z.string().optional(),
  extra: Extra,
})
const ReasoningPart = z.strictObject({
  type: z.literal('reasoning'),
  text: z.string(),
  signature: z.string().optional().describe('Opaque proof of origin, needed to send the text back to its model'),
  redacted: z.string().optional().describe('Opaque data of a redacted block; then text is empty'),
  extra: Extra,
})
const ToolCallPart = z.strictObject({
  type: z.literal('tool_call'),
  id: z.string(),
  name: z.string(),
  arguments: z.string().describe('JSON text, as the model wrote it. Of a custom tool: { "input": text }'),
  custom: z.boolean().optional().describe('Call of a custom tool, whose input is free text'),
  extra: Extra,
})
const NativePart = z.strictObject({
  type: z.literal('native'),
  dialect: Dialect,
  value: JsonObject.describe('The content block or item as it came'),
  isItem: z.boolean().optional().describe('Responses: an item of the input, not a part of a message'),
  text: z.string().optional().describe('Substitute for other dialects; absent: they leave the part out'),
  message: MessageFields,
})
/** Content block or item of a type without an internal form. */
export type NativePart = z.infer<typeof NativePart>

/** One piece of what a turn says. */
export const Part = z.discriminatedUnion('type', [
  TextPart,
  ImagePart,
  AudioPart,
  FilePart,
  ReasoningPart,
  ToolCallPart,
  NativePart,
])
export type Part = z.infer<typeof Part>

/** One turn of the conversation. `tool` answers one tool call of the nearest assistant turn before it. */
export const Turn = z.discriminatedUnion('role', [
  z.strictObject({
    role: z.literal('system'),
    parts: z.array(Part),
    name: z.string().optional(),
    developer: z.boolean().optional().describe('The caller wrote role developer'),
    extra: Extra,
  }),
  z.strictObject({ role: z.literal('user'), parts: z.array(Part), name: z.string().optional(), extra: Extra }),
  z.strictObject({ role: z.literal('assistant'), parts: z.array(Part), name: z.string().optional(), extra: Extra }),
  z.strictObject({
    role: z.literal('tool'),
    parts: z.array(Part),
    call_id: z.string(),
    is_error: z.boolean().optional(),
    custom: z.boolean().optional().describe('Output of a custom tool'),
    extra: Extra,
  }),
])
export type Turn = z.infer<typeof Turn>

/** A function the model may call. `parameters` is a JSON Schema of type object. */
export const Tool = z.strictObject({
  name: z.string(),
  description: z.string().optional(),
  parameters: JsonObject,
  strict: z.boolean().optional(),
  extra: Extra,
  native: JsonObject.nullable()
    .optional()
    .describe(
      'The tool as it came: an upstream of the same dialect gets it in place of the function. Null: the native tool before it covers it',
    ),
  native_only: z.boolean().optional().describe('There is no function for it: engines of other dialects leave it out'),
  custom: z.boolean().optional().describe('The function stands for a custom tool: its one string, input, is free text'),
  namespace: z.string().optional().describe('Responses: namespace of the function, which calls of it repeat'),
  called: z
    .string()
    .optional()
    .describe('Name in the calls that the caller gets, if it differs from the name the model sees'),
})
export type Tool = z.infer<typeof Tool>

/** A tool that the service runs itself (docs/responses.md, Hosted tools). The model is offered it as a function of this name. */
export const HostedTool = z.enum(['code_interpreter', 'web_search', 'file_search'])
export type HostedTool = z.infer<typeof HostedTool>

/** A whole request to generate, whichever protocol it came in by. Absent means: the engine's default. */
export const GenerateRequest = z.strictObject({
  dialect: Dialect.describe('The API the request came in by'),
  model: z.string(),
  named: z.string().optional().describe('Alias by which the caller named the model: the answer repeats it'),
  turns: z.array(Turn).describe('System turns included. A last assistant turn is a prefill, to be continued'),
  stream: z.boolean().describe('The caller reads deltas as they come'),
  truncates: z.boolean().optional().describe('Leave out the oldest turns of a prompt that is too long'),
  max_tokens: z.int().min(0).optional().describe('0: of a completion that only repeats its prompt'),
  temperature: z.number().optional(),
  top_p: z.number().optional(),
  top_k: z.int().optional(),
  n: z.int().min(1).default(1).describe('Choices; of completions: for each prompt'),
  stop: z.array(z.string()).default([]),
  presence_penalty: z.number().optional(),
  frequency_penalty: z.number().optional(),
  logit_bias: recordOf(z.string(), z.number()).optional(),
  seed: z.int().optional(),
  logprobs: z.boolean().default(false),
  top_logprobs: z.int().optional(),
  tools: z.array(Tool).default([]),
  tool_choice: z
    .discriminatedUnion('type', [
      z.strictObject({ type: z.literal('auto') }),
      z.strictObject({ type: z.literal('none') }),
      z.strictObject({ type: z.literal('required') }),
      z.strictObject({ type: z.literal('tool'), name: z.string() }),
    ])
    .optional(),
  allowed_tools: z.array(z.string()).optional().describe('Subset of tools the model may call; absent: all'),
  parallel_tool_calls: z.boolean().optional(),
  hosted: z
    .strictObject({
      tools: z.array(HostedTool).min(1).describe('Among the tools, by their names'),
      calls_max: z.int().min(1).optional().describe('Calls of them that are run at most'),
      search: z
        .strictObject({
          model: z.string().describe('A model of the pool that researches, whose workers search'),
          results_max: z.int().min(1).max(RESULTS_MAX).optional(),
          domains: ResearchDomains.optional(),
        })
        .optional()
        .describe('Absent: none of the tools searches'),
      files: z.array(CodeFile).max(RUN_FILES_MAX).optional().describe('In the directory of each run of code'),
    })
    .optional()
    .describe('Tools that the service runs, of a durable job'),
  response_format: z
    .discriminatedUnion('type', [
      z.strictObject({ type: z.literal('json_object') }),
      z.strictObject({
        type: z.literal('json_schema'),
        name: z.string().optional(),
        description: z.string().optional(),
        schema: recordOf(z.string(), z.unknown()),
        strict: z.boolean().optional(),
      }),
    ])
    .optional()
    .describe('Absent: free text'),
  reasoning: z
    .strictObject({
      effort: z.string().optional(),
      budget_tokens: z.int().optional(),
      enabled: z.boolean().optional(),
      adaptive: z.boolean().optional(),
    })
    .optional(),
  user: z.string().optional().describe('End user, for attribution'),
  completion: z
    .strictObject({
      tokens: z
        .array(z.array(z.int().min(0)))
        .optional()
        .describe('The prompts as tokens; then there are no turns'),
      echo: z.boolean().describe('Each choice begins with its prompt'),
      suffix: z.string().optional().describe('What comes after the text that is made'),
      best_of: z.int().min(1).optional().describe('Choices made for each prompt, of which the n best are given'),
    })
    .optional()
    .describe(
      'The turns, all of the user, are prompts to be gone on from, each with n choices of its own, in their order',
    ),
  anthropic: z
    .strictObject({
      version: z.string().optional().describe('anthropic-version'),
      beta: z.string().optional().describe('anthropic-beta: names of features with commas between'),
    })
    .optional()
    .describe('What the caller asked of the messages format in headers, for an upstream of that dialect'),
  headers: z
    .record(z.string(), z.string())
    .optional()
    .describe(
      "Headers of the caller that every upstream gets, in lower case: trace context, session, and the model's own",
    ),
  extra: Extra,
})
export type GenerateRequest = z.infer<typeof GenerateRequest>

const Logprob = z.strictObject({
  token: z.string(),
  logprob: z.number().nullable().describe('Null of the first token of a prompt that is repeated: nothing foretells it'),
  bytes: z.array(z.int()).nullable(),
  top_logprobs: z.array(
    z.strictObject({ token: z.string(), logprob: z.number().nullable(), bytes: z.array(z.int()).nullable() }),
  ),
})
/** One token with its log probability, in the OpenAI shape (docs/protocol.md, Chat answers). */
export type Logprob = z.infer<typeof Logprob>

const Choice = z.int().min(0).default(0).describe('Which of the n choices')

/** Why a choice ended. The words are OpenAI's; `stop_sequence` and `context` refine `stop` and `length` for messages. */
export const FinishReason = z.enum(['stop', 'length', 'tool_calls', 'content_filter'])
export type FinishReason = z.infer<typeof FinishReason>

/** Tokens used. `input_tokens` includes cached and cache-written ones, as OpenAI counts. */
export const Usage = z.strictObject({
  input_tokens: z.int().min(0),
  output_tokens: z.int().min(0),
  cached_tokens: z.int().min(0).optional().describe('Input tokens read from the prompt cache'),
  cache_write_tokens: z.int().min(0).optional().describe('Input tokens written to the prompt cache'),
  reasoning_tokens: z.int().min(0).optional(),
  estimated: z.boolean().optional().describe('Counted here with o200k, because neither engine nor upstream counts'),
})
export type Usage = z.infer<typeof Usage>

const NativeUsage = z.strictObject({
  dialect: Dialect,
  value: JsonObject.describe('The usage object of the upstream, as it came'),
})
/** Usage in the words of an upstream, for a caller of the same dialect. */
export type NativeUsage = z.infer<typeof NativeUsage>

/**
 * One step of an answer, in order. Texts of equal (type, choice, call) join by concatenation.
 *
 * An engine yields `start` first, then deltas, one `finish` for each choice, `usage` once, last.
 */
export const GenerateEvent = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('start'),
    model: z.string().describe('The model that answers, as the caller may see it'),
    input_tokens: z.int().min(0).describe('Known or estimated size of the prompt'),
    fingerprint: z.string().optional(),
    usage: Usage.optional().describe('Usage so far, if the upstream reports it at the start'),
    native_usage: NativeUsage.optional(),
  }),
  z.strictObject({ type: z.literal('text'), choice: Choice, text: z.string(), logprobs: z.array(Logprob).optional() }),
  z.strictObject({ type: z.literal('refusal'), choice: Choice, text: z.string() }),
  z.strictObject({
    type: z.literal('reasoning'),
    choice: Choice,
    text: z.string(),
    signature: z.string().optional(),
    redacted: z.string().optional(),
    summary: z
      .int()
      .min(0)
      .optional()
      .describe('Responses: ordinal of the part of the summary that the text belongs to. Absent: the thought itself'),
  }),
  z.strictObject({
    type: z.literal('tool_call'),
    choice: Choice,
    call: z.int().min(0).describe('Ordinal of the call in its choice'),
    id: z.string().describe('The id of the engine, or empty: the encoder makes one'),
    name: z.string(),
    custom: z.boolean().optional().describe('Call of a custom tool: its arguments are free text, not JSON'),
    extra: Extra,
  }),
  z
    .strictObject({
      type: z.literal('native'),
      choice: Choice,
      dialect: Dialect,
      scope: z
        .enum(['item', 'message', 'text', 'answer'])
        .describe(
          'item: a whole output item or content block. message: fields of the message that begins or goes on. ' +
            'text: fields of the text before it, such as citations; lists grow. answer: fields of the answer as a whole',
        ),
      text: z.string().describe('JSON object, or a piece of its text'),
      more: z.boolean().optional().describe('The text goes on in the next native event of the choice'),
    })
    .describe('Output without an internal form. Encoders of other dialects leave it out'),
  z.strictObject({ type: z.literal('tool_arguments'), choice: Choice, call: z.int().min(0), text: z.string() }),
  z
    .strictObject({
      type: z.literal('hosted_call'),
      choice: Choice,
      run: z.int().min(0).describe('Ordinal of the call in the answer'),
      tool: HostedTool,
      id: z.string().describe('As in tool_call'),
      input: z.string().describe('The code, or the query'),
    })
    .describe('The service runs a tool. Only jobs that compose say so'),
  z.strictObject({
    type: z.literal('hosted_result'),
    choice: Choice,
    run: z.int().min(0),
    status: z.enum(['completed', 'failed', 'incomplete']),
    output: z.array(recordOf(z.string(), z.unknown())).describe('As the item of the answer shows it'),
  }),
  z
    .strictObject({ type: z.literal('cut'), choice: Choice })
    .describe('What was being said broke off, and is said anew after this. Only jobs that compose say so'),
  z.strictObject({
    type: z.literal('finish'),
    choice: Choice,
    reason: FinishReason,
    stop_sequence: z.string().optional().describe('The stop string that was hit, where the engine tells'),
    context_full: z.boolean().optional().describe('With length: the context window was full before max_tokens'),
    calls_full: z.boolean().optional().describe('With length: no more tools are run for the answer'),
    filter: z
      .record(z.string(), z.unknown())
      .optional()
      .describe('content_filter_results, from upstream or the classifier'),
  }),
  z.strictObject({ type: z.literal('usage'), usage: Usage, native_usage: NativeUsage.optional() }),
])
export type GenerateEvent = z.infer<typeof GenerateEvent>

/** The one delta of a `count_tokens` job. */
export const CountTokensResult = z.strictObject({ input_tokens: z.int().min(0) })
export type CountTokensResult = z.infer<typeof CountTokensResult>
