import type { GenerateEvent } from '#schemas/generate.ts'
import type { OutputBlock } from '#schemas/messages.ts'
import { type NativeEvent, NativeReader } from '#shared/kinds/native-output.ts'

type Fields = Record<string, unknown>

/** Content of an event without an internal form: a whole block, the start of a text, or citations of the preceding text. */
export type NativeContent =
  | { readonly type: 'block'; readonly block: OutputBlock }
  | { readonly type: 'text'; readonly fields: Fields }
  | { readonly type: 'citations'; readonly citations: readonly unknown[] }

/**
 * Reads the native events of one answer. Message fields are collected until the end of the stream. The field `delta` collects those for
 * the `delta` object of `message_delta`, the other field those next to that object.
 */
export class NativeAnswer {
  readonly #reader = new NativeReader('anthropic')
  delta: Fields = {}
  beside: Fields = {}

  read(event: NativeEvent): NativeContent | undefined {
    const value = this.#reader.read(event)
    if (!value) return undefined
    const { type, citations } = value
    switch (event.scope) {
      case 'answer':
        this.delta = { ...this.delta, ...value }
        return undefined
      case 'message':
        this.beside = { ...this.beside, ...value }
        return undefined
      case 'item':
        return typeof type === 'string' ? { type: 'block', block: value as OutputBlock } : undefined
      case 'text':
        if (type === 'text') return { type, fields: value }
        return Array.isArray(citations) ? { type: 'citations', citations } : undefined
    }
  }
}

type HostedCall = Extract<GenerateEvent, { type: 'hosted_call' }>
type HostedResult = Extract<GenerateEvent, { type: 'hosted_result' }>

/** Prefix of the text inside `encrypted_content`, which distinguishes it from the content of other services. */
const CONTENT_PREFIX = 'sluice:'

/** A web search of the service, in the form in which Anthropic reports its own web searches. */
export function searchBlock(callId: string, { run, input }: Pick<HostedCall, 'run' | 'input'>): OutputBlock {
  return {
    type: 'server_tool_use',
    id: searchId(callId, run),
    name: 'web_search',
    input: { query: input.toWellFormed() },
  }
}

/** Results of a search. Their texts are opaque to callers, which send them back with the next request. */
export function searchResultBlock(callId: string, { run, status, output }: HostedResult): OutputBlock {
  const tool_use_id = searchId(callId, run)
  const error = { type: 'web_search_tool_result_error', error_code: 'unavailable' }
  const content = status === 'completed' ? output.map(shownResult) : error
  return { type: 'web_search_tool_result', tool_use_id, content }
}

function searchId(callId: string, run: number): string {
  return `srvtoolu_${callId}_${run}`
}

function shownResult({ url, title, excerpt, date }: Fields): Fields {
  const text = typeof excerpt === 'string' ? excerpt : ''
  return {
    type: 'web_search_result',
    url,
    title,
    encrypted_content: CONTENT_PREFIX + Buffer.from(text).toString('base64'),
    page_age: typeof date === 'string' ? date : null,
  }
}

/** Decodes the text of a search result; undefined if another service encoded it. */
export function resultText(encrypted: unknown): string | undefined {
  if (typeof encrypted !== 'string' || !encrypted.startsWith(CONTENT_PREFIX)) return undefined
  return Buffer.from(encrypted.slice(CONTENT_PREFIX.length), 'base64').toString('utf8')
}
