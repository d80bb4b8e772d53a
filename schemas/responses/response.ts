import { z } from 'zod'
import type { Logprob } from '#schemas/kinds/generate.ts'
import { recordOf } from '#schemas/lib/record.ts'

/** Data of the request that is needed to encode its answer in the Responses API (docs/guides/responses.md, Answers). */
export const ResponsesForm = z.strictObject({
  shown: recordOf(z.string(), z.unknown()).describe('Response fields copied from the request'),
  summarizes: z.boolean().describe('The client requested a reasoning summary: reasoning is returned in `summary`'),
  is_hosting: z.boolean().optional().describe('The service runs hosted tools: the stream continues across attempts'),
  includes: z.array(z.string()).optional().describe('Values of include, such as code_interpreter_call.outputs'),
  is_kept: z
    .boolean()
    .describe('The response is stored: the reader of the event log adds the first and last event of the stream'),
  has_instructions: z
    .boolean()
    .describe('The first message contains the instructions, which a following response does not inherit'),
})
export type ResponsesForm = z.infer<typeof ResponsesForm>

/** Status `incomplete` means that a limit or a content filter ended the response early. */
export type ResponseStatus = 'queued' | 'in_progress' | 'completed' | 'failed' | 'cancelled' | 'incomplete'

type ItemStatus = 'in_progress' | 'completed' | 'incomplete'

export type OutputContent =
  | { type: 'output_text'; text: string; annotations: unknown[]; logprobs: Logprob[] }
  | { type: 'refusal'; refusal: string }

export interface MessageItem {
  id: string
  type: 'message'
  status: ItemStatus
  role: 'assistant'
  content: OutputContent[]
}

/** Reasoning of the model. `content` is the full text. `summary` is the summary that the client requested. */
export interface ReasoningItem {
  id: string
  type: 'reasoning'
  status: ItemStatus
  summary: { type: 'summary_text'; text: string }[]
  content?: { type: 'reasoning_text'; text: string }[]
  encrypted_content?: string
}

export interface FunctionCallItem {
  id: string
  type: 'function_call'
  status: ItemStatus
  call_id: string
  name: string
  arguments: string
}

/** Call of a custom tool. `input` is free text. */
export interface CustomCallItem {
  id: string
  type: 'custom_tool_call'
  status: ItemStatus
  call_id: string
  name: string
  input: string
}

/** An item of an upstream whose type has no internal form. The client receives the item unchanged. */
export interface NativeItem {
  id: string
  type: 'native'
  [field: string]: unknown
}

/** A code run of the hosted code interpreter (docs/guides/responses.md, Hosted tools). */
export interface CodeInterpreterItem {
  id: string
  type: 'code_interpreter_call'
  status: ItemStatus | 'interpreting' | 'failed'
  code: string
  container_id: string
  outputs: Record<string, unknown>[] | null
}

export interface FoundItem {
  url: string
  title: string
  excerpt: string
}

export interface WebSearchItem {
  id: string
  type: 'web_search_call'
  status: ItemStatus | 'searching' | 'failed'
  action: { type: 'search'; query: string; queries: string[]; sources?: { type: 'url'; url: string }[] }
  results?: FoundItem[]
}

export interface FileSearchItem {
  id: string
  type: 'file_search_call'
  status: ItemStatus | 'searching' | 'failed'
  queries: string[]
  results: { file_id: string; filename: string; score: number; text: string; attributes: object }[] | null
}

export type HostedItem = CodeInterpreterItem | WebSearchItem | FileSearchItem

export type OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem | HostedItem | NativeItem

export interface ResponsesUsage {
  input_tokens: number
  input_tokens_details: { cached_tokens: number; cache_write_tokens: number }
  output_tokens: number
  output_tokens_details: { reasoning_tokens: number }
  total_tokens: number
}

/** Error of a failed response. `type` is the error code of Sluice (docs/reference/errors.md). `code` is the closest code of the Responses API. */
export interface ResponsesError {
  code: 'server_error' | 'rate_limit_exceeded' | 'invalid_prompt'
  message: string
  type: string
  param: string | null
}

/** A response with the fields copied from its request (docs/guides/responses.md, Answers). */
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
