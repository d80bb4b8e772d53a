import type { ReadDocument } from '#shared/search/text/builder.ts'

export type DocumentType = 'markdown' | 'text' | 'html' | 'pdf' | 'docx'

/** A document as it was found. */
export interface DocumentInput {
  readonly type: DocumentType
  readonly bytes: Uint8Array
  /** The charset of HTTP's Content-Type. If absent, the document's own declaration counts. */
  readonly charset?: string | undefined
  /** UTF-16 units of text that are wanted. */
  readonly charsMax: number
}

/** Asks whether a site's robots.txt allows a page to be read. */
export interface RobotsQuestion {
  readonly type: 'robots'
  /** The URL of robots.txt; `bytes` is its content. */
  readonly robotsUrl: string
  readonly bytes: Uint8Array
  readonly url: string
  /** Our user agent, as robots.txt may name it. */
  readonly agent: string
}

/** Loads the libraries of web pages; without a reply. */
export interface ThreadStart {
  readonly type: 'start'
}

/** A message to the thread. */
export type ThreadTask = DocumentInput | RobotsQuestion | ThreadStart

/** A reply of the thread. `problem` is a message for the caller. */
export type ThreadReply =
  | { readonly document: ReadDocument }
  | { readonly isAllowed: boolean }
  | { readonly problem: string }
