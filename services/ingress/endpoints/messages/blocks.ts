import type { Part } from '#schemas/generate.ts'
import type { ReadableBlock } from '#schemas/messages.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { requireBase64, requireImageUrl, requireRemoteUrl } from '#services/ingress/body/media.ts'
import { extraOf } from '#services/ingress/body/validate.ts'
import { requireMedia } from '#services/ingress/endpoints/decode.ts'

/** What a block is checked against. */
export interface BlockContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
}

type Image = Extract<ReadableBlock, { type: 'image' }>
type Document = Extract<ReadableBlock, { type: 'document' }>
type SearchResult = Extract<ReadableBlock, { type: 'search_result' }>

const CONSUMED: ReadonlySet<string> = new Set([
  ...['type', 'text', 'source', 'title', 'context', 'content', 'citations'],
])

/**
 * The parts a block means (docs/protocol.md, Turns and blocks). Documents of text and search results become text; other
 * documents need a model that reads files.
 */
export function decodeReadable(block: ReadableBlock, param: string, context: BlockContext): Part[] {
  const parts = partsOf(block, param, context)
  const extra = extraOf(block, CONSUMED)
  const last = parts.at(-1)
  // A cache mark closes a stretch of the prompt, so it belongs to the last part that the block became.
  if (last !== undefined && last.type !== 'native') last.extra = extra
  return parts
}

function partsOf(block: ReadableBlock, param: string, context: BlockContext): Part[] {
  switch (block.type) {
    case 'text':
      return [{ type: 'text', text: block.text }]
    case 'image':
      return [decodeImage(block, param, context)]
    case 'document':
      return decodeDocument(block, param, context)
    case 'search_result':
      return [{ type: 'text', text: searchText(block) }]
  }
}

function decodeImage({ source }: Image, param: string, context: BlockContext): Part {
  requireMedia(context.model, 'images', param)
  if (source.type === 'url') {
    requireImageUrl(source.url, `${param}.source.url`, context.remoteImages)
    return { type: 'image', url: source.url }
  }
  requireBase64(source.data, `${param}.source.data`)
  return { type: 'image', url: `data:${source.media_type};base64,${source.data}` }
}

function decodeDocument(block: Document, param: string, context: BlockContext): Part[] {
  const { source } = block
  if (source.type === 'text') return [{ type: 'text', text: `${heading(block)}${source.data}` }]
  if (source.type !== 'content') return [decodeFile(block, source, param, context)]
  if (typeof source.content === 'string') return [{ type: 'text', text: `${heading(block)}${source.content}` }]
  const inner = source.content.flatMap((part, index) =>
    decodeReadable(part, `${param}.source.content[${index}]`, context),
  )
  const head = heading(block)
  return head === '' ? inner : [{ type: 'text', text: head }, ...inner]
}

function heading({ title, context }: Document): string {
  return [title, context].map((line) => (line ? `${line}\n\n` : '')).join('')
}

type FileSource = Extract<Document['source'], { type: 'base64' | 'url' }>

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

function searchText({ title, source, content }: SearchResult): string {
  return `${title}\n${source}\n\n${content.map((block) => block.text).join('\n\n')}`
}
