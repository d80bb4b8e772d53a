import type { Part } from '#schemas/generate.ts'
import { type ReadableBlock, Unknown } from '#schemas/messages.ts'
import type { ModelConfig } from '#schemas/models.ts'
import {
  refuse,
  requireBase64,
  requireImageUrl,
  requireMedia,
  requireRemoteUrl,
} from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { extraOf } from '#services/ingress/body/validate.ts'
import { isMessagesUpstream, nativePart, unknownPart } from './native.ts'

export interface BlockContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
}

type Known = Exclude<ReadableBlock, Unknown>
type Image = Extract<Known, { type: 'image' }>
type Document = Extract<Known, { type: 'document' }>
type DocumentSource = Exclude<Document['source'], Unknown>

const CONSUMED: Readonly<Record<Known['type'], ReadonlySet<string>>> = {
  text: new Set(['type', 'text']),
  image: new Set(['type', 'source']),
  document: new Set(['type', 'source', 'title']),
  search_result: new Set(['type']),
}
/** Fields that are not copied to `extra` when a block becomes text, because the text replaces them. */
const CONSUMED_BY_TEXT: ReadonlySet<string> = new Set([
  ...['type', 'text', 'source', 'title', 'context', 'content', 'citations'],
])

/**
 * Converts a block to parts (docs/reference/compatibility.md, Turns and blocks). Text documents and search results
 * become text, except for an upstream of the Messages API, which can cite them. Other documents need a model that reads
 * files.
 */
export function decodeReadable(block: ReadableBlock, param: string, context: BlockContext): Part[] {
  if (block instanceof Unknown) return [unknownPart(block, param, context.model)]
  const parts = partsOf(block, param, context)
  const last = parts.at(-1)
  const hasBecomeText = last?.type === 'text' && block.type !== 'text'
  const extra = extraOf(block, hasBecomeText ? CONSUMED_BY_TEXT : CONSUMED[block.type])
  // `cache_control` covers the prompt up to the end of its block, so it belongs to the last part.
  if (last !== undefined && last.type !== 'native') last.extra = extra
  return parts
}

function partsOf(block: Known, param: string, context: BlockContext): Part[] {
  switch (block.type) {
    case 'text':
      return [{ type: 'text', text: block.text }]
    case 'image':
      return [decodeImage(block, param, context)]
    case 'document':
      return decodeDocument(block, param, context)
    case 'search_result':
      return [textOrNative(nativePart(block), context)]
  }
}

/** The unchanged block for an upstream of the Messages API, which can cite it; otherwise its text. */
function textOrNative(part: ReturnType<typeof nativePart>, { model }: BlockContext): Part {
  return isMessagesUpstream(model) ? part : { type: 'text', text: part.text ?? '' }
}

function decodeImage(block: Image, param: string, context: BlockContext): Part {
  const { source } = block
  if (source instanceof Unknown) return ownSource(block, source, ['base64', 'url'], param, context)
  requireMedia(context.model, 'images', param)
  if (source.type === 'url') {
    requireImageUrl(source.url, `${param}.source.url`, context.remoteImages)
    return { type: 'image', url: source.url }
  }
  requireBase64(source.data, `${param}.source.data`)
  return { type: 'image', url: `data:${source.media_type};base64,${source.data}` }
}

/**
 * Handles a source that only an upstream of the Messages API can resolve, such as a file of its Files API. Other
 * upstreams get an error.
 */
function ownSource(
  block: Image | Document,
  { value }: Unknown,
  known: readonly string[],
  param: string,
  { model }: BlockContext,
): Part {
  if (isMessagesUpstream(model)) return nativePart(block)
  const expected = known.map((type) => `'${type}'`).join(' or ')
  refuse('invalid_value', `${param}.source.type`, `Input should be ${expected}, not '${excerpt(value.type)}'`)
}

function decodeDocument(block: Document, param: string, context: BlockContext): Part[] {
  const { source } = block
  if (source instanceof Unknown) {
    return [ownSource(block, source, ['text', 'content', 'base64', 'url'], param, context)]
  }
  if (source.type === 'base64' || source.type === 'url') return [decodeFile(block, source, param, context)]
  if (isMessagesUpstream(context.model) || source.type === 'text' || typeof source.content === 'string') {
    return [textOrNative(nativePart(block), context)]
  }
  const inner = source.content.flatMap((part, index) =>
    decodeReadable(part, `${param}.source.content[${index}]`, context),
  )
  const head = heading(block)
  return head === '' ? inner : [{ type: 'text', text: head }, ...inner]
}

function heading({ title, context }: Document): string {
  return [title, context].map((line) => (line ? `${line}\n\n` : '')).join('')
}

type FileSource = Extract<DocumentSource, { type: 'base64' | 'url' }>

function decodeFile(block: Document, source: FileSource, param: string, context: BlockContext): Part {
  requireMedia(context.model, 'files', param)
  const filename = block.title ?? undefined
  if (source.type === 'url') {
    requireRemoteUrl(source.url, `${param}.source.url`, context.remoteImages)
    return { type: 'file', data: source.url, filename }
  }
  requireBase64(source.data, `${param}.source.data`)
  return { type: 'file', data: `data:${source.media_type};base64,${source.data}`, filename }
}
