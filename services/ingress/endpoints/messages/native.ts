import type { NativePart } from '#schemas/generate.ts'
import { Unknown } from '#schemas/messages.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { refuse } from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { resultText } from '#shared/protocols/messages/native.ts'

/*
 * Blocks without an internal form. An upstream of the Messages API receives them unchanged. For other upstreams, a text
 * with the same content replaces the block, or the block is left out.
 */

type Fields = Readonly<Record<string, unknown>>

/** Whether the upstream of a model has the Messages API. Such an upstream receives native blocks unchanged. */
export function isMessagesUpstream({ engine }: Pick<ModelConfig, 'engine'>): boolean {
  return engine.type === 'anthropic'
}

/** Types of blocks that are left out for upstreams of other APIs. Any other unknown type is refused. */
const DISPENSABLE =
  /^(tool_reference|server_tool_use|mcp_\w+|\w+_tool_result|container_upload|compaction|fallback|browser_state|tool_addition|tool_removal|image|document|search_result)$/

/**
 * Converts a block of an unknown type.
 *
 * @throws ServiceError if an upstream of another API would lose the meaning of the block
 */
export function unknownPart({ value }: Unknown, param: string, model: ModelConfig): NativePart {
  if (isMessagesUpstream(model) || DISPENSABLE.test(value.type)) return nativePart(value)
  const message = `Blocks of type '${excerpt(value.type)}' are unknown, and the model '${model.id}' does not support the Messages API`
  refuse('invalid_value', `${param}.type`, message)
}

/**
 * Converts a block to a native part.
 *
 * @param text Text that replaces the block for upstreams of other APIs
 */
export function nativePart(block: object, text = substituteOf(block as Fields)): NativePart {
  const value = asSent(block) as Record<string, unknown>
  return { type: 'native', dialect: 'anthropic', value, ...(text === undefined || text === '' ? {} : { text }) }
}

/** Separator between two blocks, for upstreams of other APIs only. */
export function textBetween(text: string): NativePart {
  return { type: 'native', dialect: 'anthropic', value: {}, text }
}

/** Restores the block that the caller sent: wrapped objects of unknown types are unwrapped. */
function asSent(value: unknown): unknown {
  if (value instanceof Unknown) return value.value
  if (Array.isArray(value)) return value.map(asSent)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, asSent(inner)]))
}

function substituteOf(block: Fields): string | undefined {
  const { type, content } = block
  switch (type) {
    case 'tool_reference':
      return `[The tool ${String(block.tool_name)} is available.]`
    case 'server_tool_use':
    case 'mcp_tool_use':
      return `[Called ${String(block.name)}: ${JSON.stringify(block.input ?? {})}]`
    case 'browser_state':
      return JSON.stringify(asSent(block))
    case 'web_search_tool_result':
      return Array.isArray(content) ? content.map(searchResult).join('\n\n') : failure(content)
    case 'document':
      return documentText(block)
    case 'search_result':
      return [block.title, block.source, '', textsOf(content, '\n\n')].join('\n')
    default:
      return typeof block.text === 'string' ? block.text : (outputOf(content) ?? textsOf(content, '\n'))
  }
}

/** Title and URL of a search result. The text follows if Sluice ran the search. */
function searchResult(result: unknown): string {
  const { title, url, encrypted_content } = fieldsOf(result)
  return [title, url, resultText(encrypted_content)].filter((line) => typeof line === 'string').join('\n')
}

function failure(content: unknown): string | undefined {
  const { error_code } = fieldsOf(content)
  return typeof error_code === 'string' ? `[The tool failed: ${error_code}]` : undefined
}

/** Output of a tool that the upstream ran: code, a fetched page, or a search for tools. */
function outputOf(content: unknown): string | undefined {
  const { stdout, stderr, url, content: inner, tool_references } = fieldsOf(content)
  if (typeof stdout === 'string') return [stdout, stderr].filter((text) => text !== '').join('\n')
  if (typeof url === 'string') return [url, documentText(fieldsOf(inner))].join('\n')
  if (Array.isArray(tool_references)) return tool_references.map((each) => substituteOf(fieldsOf(each))).join('\n')
  return failure(content)
}

/** Text of a document, after its title and context; undefined if the document is not text. */
function documentText({ title, context, source }: Fields): string | undefined {
  const { data, content, type } = fieldsOf(source)
  const text = type === 'text' ? data : type === 'content' ? textsOf(content, '') : undefined
  if (typeof text !== 'string') return undefined
  return [title, context].map((line) => (line ? `${String(line)}\n\n` : '')).join('') + text
}

function textsOf(content: unknown, separator: string): string | undefined {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return undefined
  const texts = content.map((block) => fieldsOf(block).text).filter((text) => typeof text === 'string')
  return texts.length > 0 ? texts.join(separator) : undefined
}

function fieldsOf(value: unknown): Fields {
  return typeof value === 'object' && value !== null ? (value as Fields) : {}
}
