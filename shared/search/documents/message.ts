import type { ReadDocument } from '#shared/search/text/builder.ts'

export type DocumentType = 'markdown' | 'text' | 'html' | 'pdf' | 'docx'

/** Maximum bytes of a document that are decoded per character of the result. HTML needs more, because a page also has scripts and styles. */
const BYTES_PER_CHAR = { text: 16, markdown: 16, html: 40, pdf: Infinity, docx: Infinity }

export function usedBytesOf(type: DocumentType, charsMax: number): number {
  return charsMax * BYTES_PER_CHAR[type]
}

export interface DocumentInput {
  readonly type: DocumentType
  readonly bytes: Uint8Array
  /** Charset of the Content-Type header. If undefined, then the encoding that the document declares is used. */
  readonly charset?: string | undefined
  readonly charsMax: number
}

export interface RobotsQuestion {
  readonly type: 'robots'
  readonly robotsUrl: string
  readonly bytes: Uint8Array
  readonly url: string
  /** User agent under which robots.txt rules address this service. */
  readonly agent: string
}

export interface ThreadStart {
  readonly type: 'start'
}

export type ThreadTask = DocumentInput | RobotsQuestion | ThreadStart

export type ThreadReply =
  | { readonly document: ReadDocument }
  | { readonly isAllowed: boolean }
  | { readonly problem: string }
