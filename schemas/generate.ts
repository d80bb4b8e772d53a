import { z } from 'zod'
import { CodeFile, RUN_FILES_MAX } from './code.ts'
import { ResearchDomains } from './research/research.ts'
import { RESULTS_MAX } from './search.ts'

/**
 * The internal form of text generation: one request and one event stream in which chat completions and messages meet.
 *
 * The ingress decodes both wire protocols into {@link GenerateRequest} and encodes {@link GenerateEvent}s back into
 * either; workers and engines know only this form. Fields that have no internal meaning travel in `extra` and are put
 * back when the upstream speaks the dialect they came from, so nothing a user sets is silently dropped.
 */

const Extra = z
  .record(z.string(), z.unknown())
  .optional()
  .describe('Unknown wire fields, for an upstream of the same dialect')

const TextPart = z.strictObject({ type: z.literal('text'), text: z.string(), extra: Extra })
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
})
const ToolCallPart = z.strictObject({
  type: z.literal('tool_call'),
  id: z.string(),
  name: z.string(),
  arguments: z.string().describe('JSON text, as the model wrote it'),
  extra: Extra,
})

/** One piece of what a turn says. */
export const Part = z.discriminatedUnion('type', [
  TextPart,
  ImagePart,
  AudioPart,
  FilePart,
  ReasoningPart,
  ToolCallPart,
])
export type Part = z.infer<typeof Part>

/** One turn of the conversation. `tool` answers one tool call of the nearest assistant turn before it. */
export const Turn = z.discriminatedUnion('role', [
  z.strictObject({ role: z.literal('system'), parts: z.array(Part), name: z.string().optional(), extra: Extra }),
  z.strictObject({ role: z.literal('user'), parts: z.array(Part), name: z.string().optional(), extra: Extra }),
  z.strictObject({ role: z.literal('assistant'), parts: z.array(Part), name: z.string().optional(), extra: Extra }),
  z.strictObject({
    role: z.literal('tool'),
    parts: z.array(Part),
    call_id: z.string(),
    is_error: z.boolean().optional(),
    extra: Extra,
  }),
])
export type Turn = z.infer<typeof Turn>

/** A function the model may call. `parameters` is a JSON Schema of type object. */
export const Tool = z.strictObject({
  name: z.string(),
  description: z.string().optional(),
  parameters: z.record(z.string(), z.unknown()),
  strict: z.boolean().optional(),
  extra: Extra,
})
export type Tool = z.infer<typeof Tool>

/** A tool that the service runs itself (docs/responses.md, Hosted tools). The model is offered it as a function of this name. */
export const HostedTool = z.enum(['code_interpreter', 'web_search', 'file_search'])
export type HostedTool = z.infer<typeof HostedTool>

/** A whole request to generate, whichever protocol it came in by. Absent means: the engine's default. */
export const GenerateRequest = z.strictObject({
  dialect: z.enum(['openai', 'anthropic']).describe('The wire protocol the request came in by'),
  model: z.string(),
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
  logit_bias: z.record(z.string(), z.number()).optional(),
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
        schema: z.record(z.string(), z.unknown()),
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
  }),
  z.strictObject({ type: z.literal('text'), choice: Choice, text: z.string(), logprobs: z.array(Logprob).optional() }),
  z.strictObject({ type: z.literal('refusal'), choice: Choice, text: z.string() }),
  z.strictObject({
    type: z.literal('reasoning'),
    choice: Choice,
    text: z.string(),
    signature: z.string().optional(),
    redacted: z.string().optional(),
  }),
  z.strictObject({
    type: z.literal('tool_call'),
    choice: Choice,
    call: z.int().min(0).describe('Ordinal of the call in its choice'),
    id: z.string().describe('The id of the engine, or empty: the encoder makes one'),
    name: z.string(),
  }),
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
    output: z.array(z.record(z.string(), z.unknown())).describe('As the item of the answer shows it'),
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
  z.strictObject({ type: z.literal('usage'), usage: Usage }),
])
export type GenerateEvent = z.infer<typeof GenerateEvent>

/** The one delta of a `count_tokens` job. */
export const CountTokensResult = z.strictObject({ input_tokens: z.int().min(0) })
export type CountTokensResult = z.infer<typeof CountTokensResult>
