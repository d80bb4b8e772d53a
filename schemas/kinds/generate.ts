import { z } from 'zod'
import { recordOf } from '#schemas/lib/record.ts'
import { CodeFile, RUN_FILES_MAX } from './code.ts'
import { ResearchDomains } from './research.ts'
import { RESULTS_MAX } from './search.ts'

/**
 * The internal form of text generation: one request schema and one event stream for three public APIs.
 *
 * The ingress decodes a request into a {@link GenerateRequest}, and encodes {@link GenerateEvent}s into the API of the client. Workers and engines
 * use only this form. The public APIs gain fields every month, so the internal form cannot name all of them. Between a client and an upstream of the
 * same dialect, two mechanisms carry such fields in both directions:
 *
 * 1. `extra` contains unknown fields of a known object (a message, a part, a tool, the request).
 * 2. `native` contains a whole object of an unknown type. In a {@link NativePart}, this object is a content block or an item, and in a
 *    {@link Tool}, the definition of a tool. In the event `native`, the object is an output item, a content block, or a set of fields of
 *    the response.
 *
 * An engine of the same dialect sends these fields unchanged. For an engine of another dialect, the decoder may have prepared a substitute, which is
 * a function or a text. The engine sends the substitute if there is one, and otherwise omits the fields. Example: `apply_patch` of type `custom`
 * reaches an upstream with `api: responses` unchanged. Any other upstream receives a function with one string parameter, `input`.
 */

/** Public API that a client called, or that an upstream provides: chat completions, Messages or Responses. */
export const Dialect = z.enum(['openai', 'anthropic', 'responses'])
export type Dialect = z.infer<typeof Dialect>

const JsonObject = recordOf(z.string(), z.unknown())

const Extra = JsonObject.optional().describe('Unknown wire fields, for an upstream of the same dialect')

const MessageFields = JsonObject.optional().describe(
  'Responses: fields of the assistant message item that begins with this part, such as phase. Without role and content',
)
const TextPart = z.strictObject({
  type: z.literal('text'),
  text: z.string(),
  extra: Extra,
  message: MessageFields,
})
const ImagePart = z.strictObject({
  type: z.literal('image'),
  url: z.string().describe('data: URL with base64 content, or an https URL if the deployment allows it'),
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
  arguments: z.string().describe('JSON text, as the model wrote it. For a custom tool: { "input": text }'),
  custom: z.boolean().optional().describe('Call of a custom tool, whose input is free text'),
  extra: Extra,
})
const NativePart = z.strictObject({
  type: z.literal('native'),
  dialect: Dialect,
  value: JsonObject.describe('The content block or item, unchanged'),
  isItem: z.boolean().optional().describe('Responses: an item of the input, not a part of a message'),
  text: z.string().optional().describe('Substitute for other dialects. Absent: other dialects omit the part'),
  message: MessageFields,
})
export type NativePart = z.infer<typeof NativePart>

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

/** One message of the conversation. A `tool` message is the result of one tool call of the preceding assistant message. */
export const Turn = z.discriminatedUnion('role', [
  z.strictObject({
    role: z.literal('system'),
    parts: z.array(Part),
    name: z.string().optional(),
    developer: z.boolean().optional().describe('The client sent role developer'),
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

/** A function that the model may call. `parameters` is a JSON Schema of type object. */
export const Tool = z.strictObject({
  name: z.string(),
  description: z.string().optional(),
  parameters: JsonObject,
  strict: z.boolean().optional(),
  extra: Extra,
  native: JsonObject.nullable()
    .optional()
    .describe(
      'Original tool, sent to an upstream of the same dialect instead of the function. null: the previous native tool includes this one',
    ),
  native_only: z.boolean().optional().describe('The tool has no function form: engines of other dialects omit it'),
  custom: z
    .boolean()
    .optional()
    .describe('The function represents a custom tool: its only argument, input, is free text'),
  namespace: z.string().optional().describe('Responses: namespace of the function, repeated in its calls'),
  called: z
    .string()
    .optional()
    .describe('Name in the tool calls of the response, if different from the name in the prompt'),
})
export type Tool = z.infer<typeof Tool>

/** A tool that the service runs (docs/guides/responses.md, Hosted tools). The model sees a function of this name. */
export const HostedTool = z.enum(['code_interpreter', 'web_search', 'file_search'])
export type HostedTool = z.infer<typeof HostedTool>

/** A generate request of any API. If a field is absent, then the engine uses its default. */
export const GenerateRequest = z.strictObject({
  dialect: Dialect.describe('API of the request'),
  model: z.string(),
  named: z.string().optional().describe('Model alias of the request, repeated in the response'),
  turns: z
    .array(Turn)
    .describe('Messages, including system messages. A final assistant message is a prefill that the model continues'),
  stream: z.boolean().describe('The client streams the response'),
  truncates: z.boolean().optional().describe('Drop the oldest messages of a prompt that is too long'),
  max_tokens: z.int().min(0).optional().describe('0: a completion that only returns its prompt'),
  temperature: z.number().optional(),
  top_p: z.number().optional(),
  top_k: z.int().optional(),
  n: z.int().min(1).default(1).describe('Number of choices. Completions: per prompt'),
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
      tools: z.array(HostedTool).min(1).describe('Names of hosted tools in `tools`'),
      calls_max: z.int().min(1).optional().describe('Maximum calls of hosted tools'),
      search: z
        .strictObject({
          model: z.string().describe('Model of the research pool, whose workers run searches'),
          results_max: z.int().min(1).max(RESULTS_MAX).optional(),
          domains: ResearchDomains.optional(),
        })
        .optional()
        .describe('Absent: no search tool'),
      files: z
        .array(CodeFile)
        .max(RUN_FILES_MAX)
        .optional()
        .describe('Files in the working directory of each code run'),
    })
    .optional()
    .describe('Tools that the service runs as steps of a durable job'),
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
  affinity: z
    .string()
    .optional()
    .describe('Hash of the conversation. Calls with an equal hash go to one server of the model'),
  completion: z
    .strictObject({
      tokens: z
        .array(z.array(z.int().min(0)))
        .optional()
        .describe('Prompts as tokens. If set, there are no messages'),
      echo: z.boolean().describe('Each choice starts with its prompt'),
      suffix: z.string().optional().describe('Text after the generated text'),
      best_of: z.int().min(1).optional().describe('Choices generated per prompt, of which the n best are returned'),
    })
    .optional()
    .describe('Raw completion: each message is a prompt with n choices, in prompt order'),
  anthropic: z
    .strictObject({
      version: z.string().optional().describe('anthropic-version'),
      beta: z.string().optional().describe('anthropic-beta: comma-separated feature names'),
    })
    .optional()
    .describe('Anthropic request headers, for an upstream of the same dialect'),
  headers: z
    .record(z.string(), z.string())
    .optional()
    .describe(
      'Client headers that are sent to every upstream, in lower case: trace context, session, and headers configured for the model',
    ),
  extra: Extra,
})
export type GenerateRequest = z.infer<typeof GenerateRequest>

const Logprob = z.strictObject({
  token: z.string(),
  logprob: z.number().nullable().describe('null for the first token of a returned prompt, which has no probability'),
  bytes: z.array(z.int()).nullable(),
  top_logprobs: z.array(
    z.strictObject({ token: z.string(), logprob: z.number().nullable(), bytes: z.array(z.int()).nullable() }),
  ),
})
/** One token with its log probability, in the OpenAI shape (docs/reference/compatibility.md, Chat answers). */
export type Logprob = z.infer<typeof Logprob>

const Choice = z.int().min(0).default(0).describe('Index of the choice')

/**
 * Finish reason in the OpenAI format. The Anthropic format has more reasons. For these, the finish event also has `stop_sequence` (with `stop`) and
 * `context_full` (with `length`).
 */
export const FinishReason = z.enum(['stop', 'length', 'tool_calls', 'content_filter'])
export type FinishReason = z.infer<typeof FinishReason>

/** Token usage. `input_tokens` includes cached and cache-written tokens, as in the OpenAI API. */
export const Usage = z.strictObject({
  input_tokens: z.int().min(0),
  output_tokens: z.int().min(0),
  cached_tokens: z.int().min(0).optional().describe('Input tokens read from the prompt cache'),
  cache_write_tokens: z.int().min(0).optional().describe('Input tokens written to the prompt cache'),
  reasoning_tokens: z.int().min(0).optional(),
  estimated: z.boolean().optional().describe('Estimated with o200k, because neither engine nor upstream reports usage'),
})
export type Usage = z.infer<typeof Usage>

const NativeUsage = z.strictObject({
  dialect: Dialect,
  value: JsonObject.describe('Unchanged usage object of the upstream'),
})
/** Usage object of an upstream, returned unchanged to a client of the same dialect. */
export type NativeUsage = z.infer<typeof NativeUsage>

/**
 * One event of a generated response. Deltas with equal type, choice and call are pieces of one text, in order.
 *
 * An engine yields one `start`, then deltas, one `finish` per choice, and one `usage` as the last event.
 */
export const GenerateEvent = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('start'),
    model: z.string().describe('Model name that the client may see'),
    input_tokens: z.int().min(0).describe('Known or estimated prompt tokens'),
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
      .describe('Responses: index of the summary part. Absent: unabridged reasoning text'),
  }),
  z.strictObject({
    type: z.literal('tool_call'),
    choice: Choice,
    call: z.int().min(0).describe('Index of the call in its choice'),
    id: z.string().describe('Call id of the engine. Empty: the encoder creates one'),
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
          'item: a whole output item or content block. message: fields of the current or next message. ' +
            'text: fields of the preceding text, such as citations; lists are appended. answer: fields of the whole response',
        ),
      text: z.string().describe('JSON object, or a piece of its text'),
      more: z.boolean().optional().describe('The text continues in the next native event of the choice'),
    })
    .describe(
      'Part of the output of an upstream that no other event can express. Sent unchanged to callers of the same API, and omitted for others',
    ),
  z.strictObject({ type: z.literal('tool_arguments'), choice: Choice, call: z.int().min(0), text: z.string() }),
  z
    .strictObject({
      type: z.literal('hosted_call'),
      choice: Choice,
      run: z.int().min(0).describe('Index of the call in the response'),
      tool: HostedTool,
      id: z.string().describe('Call id, as in tool_call'),
      input: z.string().describe('Code or query'),
    })
    .describe('The service runs a hosted tool. Only composed jobs emit this event'),
  z.strictObject({
    type: z.literal('hosted_result'),
    choice: Choice,
    run: z.int().min(0),
    status: z.enum(['completed', 'failed', 'incomplete']),
    output: z.array(recordOf(z.string(), z.unknown())).describe('Output in the format of the response item'),
  }),
  z
    .strictObject({ type: z.literal('cut'), choice: Choice })
    .describe('The output of the choice was interrupted and starts again. Only composed jobs emit this event'),
  z.strictObject({
    type: z.literal('finish'),
    choice: Choice,
    reason: FinishReason,
    stop_sequence: z.string().optional().describe('Matched stop string, if the engine reports it'),
    context_full: z.boolean().optional().describe('With length: the context window was full before max_tokens'),
    calls_full: z.boolean().optional().describe('With length: the maximum number of tool calls was reached'),
    filter: z
      .record(z.string(), z.unknown())
      .optional()
      .describe('content_filter_results of the upstream or the classifier'),
  }),
  z.strictObject({ type: z.literal('usage'), usage: Usage, native_usage: NativeUsage.optional() }),
])
export type GenerateEvent = z.infer<typeof GenerateEvent>

export const CountTokensResult = z.strictObject({ input_tokens: z.int().min(0) })
export type CountTokensResult = z.infer<typeof CountTokensResult>
