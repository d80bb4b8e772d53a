import { z } from 'zod'
import type { Logprob } from '#schemas/generate.ts'
import { recordOf } from '#schemas/record.ts'

/** What saying an answer in the words of the Responses API needs of its request (docs/responses.md, Answers). */
export const ResponsesForm = z.strictObject({
  shown: recordOf(z.string(), z.unknown()).describe('Fields of the response that repeat the request'),
  summarizes: z
    .boolean()
    .describe('The caller asked for a summary of the reasoning: it stands where one is looked for'),
  is_hosting: z
    .boolean()
    .optional()
    .describe('The service runs tools for it: its stream goes on from attempt to attempt'),
  includes: z.array(z.string()).optional().describe('Values of include, such as code_interpreter_call.outputs'),
  is_kept: z.boolean().describe('Who reads the record of its stream says the beginning and the end of it'),
  has_instructions: z
    .boolean()
    .describe('The first turn is the instructions, which a next response does not take over'),
})
export type ResponsesForm = z.infer<typeof ResponsesForm>

/** Where a response is. `incomplete` is one that ended by a limit or a filter. */
export type ResponseStatus = 'queued' | 'in_progress' | 'completed' | 'failed' | 'cancelled' | 'incomplete'

type ItemStatus = 'in_progress' | 'completed' | 'incomplete'

/** A piece of a message. */
export type OutputContent =
  | { type: 'output_text'; text: string; annotations: unknown[]; logprobs: Logprob[] }
  | { type: 'refusal'; refusal: string }

/** What the model said. */
export interface MessageItem {
  id: string
  type: 'message'
  status: ItemStatus
  role: 'assistant'
  content: OutputContent[]
}

/** What the model thought: as it came, or as the summary that was asked for. */
export interface ReasoningItem {
  id: string
  type: 'reasoning'
  status: ItemStatus
  summary: { type: 'summary_text'; text: string }[]
  content?: { type: 'reasoning_text'; text: string }[]
  /** Opaque: what its model needs to read it again. */
  encrypted_content?: string
}

/** A function that is to be called. */
export interface FunctionCallItem {
  id: string
  type: 'function_call'
  status: ItemStatus
  call_id: string
  name: string
  arguments: string
}

/** Call of a custom tool; `input` is free text. */
export interface CustomCallItem {
  id: string
  type: 'custom_tool_call'
  status: ItemStatus
  call_id: string
  name: string
  input: string
}

/** An item of the upstream that Sluice has no form for, as it came. */
export interface NativeItem {
  id: string
  type: 'native'
  [field: string]: unknown
}

/** Code that the service ran (docs/responses.md, Hosted tools). */
export interface CodeInterpreterItem {
  id: string
  type: 'code_interpreter_call'
  status: ItemStatus | 'interpreting' | 'failed'
  code: string
  container_id: string
  /** What it printed and drew. */
  outputs: Record<string, unknown>[] | null
}

/** Something that a search found. */
export interface FoundItem {
  url: string
  title: string
  excerpt: string
}

/** A search of the web. */
export interface WebSearchItem {
  id: string
  type: 'web_search_call'
  status: ItemStatus | 'searching' | 'failed'
  action: { type: 'search'; query: string; queries: string[]; sources?: { type: 'url'; url: string }[] }
  results?: FoundItem[]
}

/** A search of the documents. */
export interface FileSearchItem {
  id: string
  type: 'file_search_call'
  status: ItemStatus | 'searching' | 'failed'
  queries: string[]
  results: { file_id: string; filename: string; score: number; text: string; attributes: object }[] | null
}

/** What the service ran. */
export type HostedItem = CodeInterpreterItem | WebSearchItem | FileSearchItem

/** One item of an answer. */
export type OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem | HostedItem | NativeItem

/** Usage of a response. */
export interface ResponsesUsage {
  input_tokens: number
  input_tokens_details: { cached_tokens: number; cache_write_tokens: number }
  output_tokens: number
  output_tokens_details: { reasoning_tokens: number }
  total_tokens: number
}

/** Why a response failed: `type` is the code of docs/errors.md, `code` the nearest that this API has. */
export interface ResponsesError {
  code: 'server_error' | 'rate_limit_exceeded' | 'invalid_prompt'
  message: string
  type: string
  param: string | null
}

/** A response, with what it repeats of its request (docs/responses.md, Answers). */
export interface ResponseObject {
  id: string
  object: 'response'
  created_at: number
  completed_at: number | null
  status: ResponseStatus
  error: ResponsesError | null
  incomplete_details: { reason: string } | null
  model: string
  output: OutputItem[]
  usage: ResponsesUsage | null
  [shown: string]: unknown
}
