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

/** Whether a site lets a page be read. */
export interface RobotsQuestion {
  readonly type: 'robots'
  /** Of the file, and what is in it. */
  readonly robotsUrl: string
  readonly bytes: Uint8Array
  readonly url: string
  /** The name by which the site knows us. */
  readonly agent: string
}

/** Loads the libraries of web pages; without a reply. */
export interface ThreadStart {
  readonly type: 'start'
}

/** What the thread is asked. */
export type ThreadTask = DocumentInput | RobotsQuestion | ThreadStart

/** What the thread answers; a problem is a sentence for people. */
export type ThreadReply =
  | { readonly document: ReadDocument }
  | { readonly isAllowed: boolean }
  | { readonly problem: string }
