import type { ReadDocument } from '#shared/search/text/builder.ts'

/** What can be read. */
export type DocumentType = 'markdown' | 'text' | 'html' | 'pdf' | 'docx'

/** A document as it was found. */
export interface DocumentInput {
  readonly type: DocumentType
  readonly bytes: Uint8Array
  /** Of HTTP's Content-Type; where there is none, what the document says of itself counts. */
  readonly charset?: string | undefined
  /** UTF-16 units of text that are wanted. */
  readonly charsMax: number
}

/** What the thread answers; a problem is a sentence for people. */
export type DocumentReply = { readonly document: ReadDocument } | { readonly problem: string }
