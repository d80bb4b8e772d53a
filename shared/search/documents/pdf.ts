import { getDocumentProxy } from 'unpdf'
import type { ReadDocument, TextBuilder } from '#shared/search/text/builder.ts'
import { readPlain } from '#shared/search/text/plain.ts'
import { Unreadable } from './charset.ts'

const PAGES_MAX = 1_000
/** Maximum raw characters that are read from a PDF per character of the result, because white space is collapsed afterwards. */
const RAW_CHARS_PER_CHAR = 2
/**
 * CPU time of the thread, in ms, after which no further page is read. The maximum text length alone is not sufficient, because pages may have no
 * text.
 */
const CPU_MS_MAX = 1_000
/** CPU time in ms that is added to {@link CPU_MS_MAX} for each character read so far, so that long texts are read to their end. */
const CPU_MS_PER_CHAR = 0.01

type Pdf = Awaited<ReturnType<typeof getDocumentProxy>>

/**
 * Reads the text of a PDF page by page, up to the maximum length. Scanned pages have no text.
 *
 * @throws Unreadable if the PDF is broken
 */
export async function readPdf(bytes: Uint8Array, charsMax: number, builder: TextBuilder): Promise<ReadDocument> {
  // The library rejects Buffer, a subclass of Uint8Array, so the bytes are copied.
  const pdf = await getDocumentProxy(new Uint8Array(bytes))
  try {
    if (pdf.numPages > PAGES_MAX) throw new Unreadable(`The document has more than ${PAGES_MAX} pages.`)
    const { info } = (await pdf.getMetadata()) as { info?: { Title?: unknown } }
    await readPages(pdf, charsMax * RAW_CHARS_PER_CHAR, builder)
    return { ...builder.build(), title: typeof info?.Title === 'string' ? info.Title.trim() : '' }
  } finally {
    // If a page was read only in part, then the library still evaluates it. Destroying the document stops this work.
    await pdf.loadingTask.destroy()
  }
}

async function readPages(pdf: Pdf, charsMax: number, builder: TextBuilder): Promise<void> {
  const startedMs = cpuMs()
  let chars = 0
  for (let number = 1; number <= pdf.numPages && chars < charsMax; number++) {
    if (builder.isFull || cpuMs() - startedMs > CPU_MS_MAX + chars * CPU_MS_PER_CHAR) return
    const text = await textOf(pdf, number, charsMax - chars)
    chars += text.length
    // Words that were hyphenated at the end of a line are joined again.
    readPlain(text.replace(/(\p{Ll})-\n(\p{Ll})/gu, '$1$2'), builder)
  }
}

/** Returns the text of a page. The evaluation of the page stops when the text exceeds the maximum. */
async function textOf(pdf: Pdf, number: number, charsMax: number): Promise<string> {
  const page = await pdf.getPage(number)
  const reader = page.streamTextContent().getReader()
  let text = ''
  for (;;) {
    const { done, value } = await reader.read()
    if (done) break
    if (text.length > charsMax) {
      void reader.cancel(new Error('The text reached its maximum length.')).catch(() => {})
      return text
    }
    for (const { str, hasEOL } of value.items) if (str !== undefined) text += str + (hasEOL ? '\n' : '')
  }
  page.cleanup()
  return text
}

function cpuMs(): number {
  const { user, system } = process.threadCpuUsage()
  return (user + system) / 1_000
}
