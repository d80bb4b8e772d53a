import { extractText, getDocumentProxy } from 'unpdf'
import type { ReadDocument, TextBuilder } from '#shared/search/text/builder.ts'
import { readPlain } from '#shared/search/text/plain.ts'
import { Unreadable } from './charset.ts'

const PAGES_MAX = 1_000

/** Reads the text of a PDF page by page. Scanned pages have no text. @throws Unreadable */
export async function readPdf(bytes: Uint8Array, builder: TextBuilder): Promise<ReadDocument> {
  // Messages between threads carry a subclass of Uint8Array that the library rejects.
  const pdf = await getDocumentProxy(new Uint8Array(bytes))
  if (pdf.numPages > PAGES_MAX) throw new Unreadable(`The document has more than ${PAGES_MAX} pages.`)
  const { text } = await extractText(pdf, { mergePages: false })
  // Joins words that were hyphenated at the end of a line.
  for (const page of text) readPlain(page.replace(/(\p{Ll})-\n(\p{Ll})/gu, '$1$2'), builder)
  const { info } = (await pdf.getMetadata()) as { info?: { Title?: unknown } }
  return { ...builder.build(), title: typeof info?.Title === 'string' ? info.Title.trim() : '' }
}
