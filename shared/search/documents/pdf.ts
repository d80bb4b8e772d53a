import { getDocumentProxy } from 'unpdf'
import type { ReadDocument, TextBuilder } from '#shared/search/text/builder.ts'
import { readPlain } from '#shared/search/text/plain.ts'
import { Unreadable } from './charset.ts'

const PAGES_MAX = 1_000
/** Maximum characters that are read from the pages, per character of the result. The pages contain white space that is collapsed in the result. */
const RAW_CHARS_PER_CHAR = 2
/**
 * CPU time of the thread, in ms, after which no further page is read. A limit of the text length does not suffice, because pages may have no text.
 */
const CPU_MS_MAX = 1_000
/** Additional CPU time in ms per character of the pages read so far. */
const CPU_MS_PER_CHAR = 0.01

type Pdf = Awaited<ReturnType<typeof getDocumentProxy>>

/** Reads the text of a PDF page by page, up to the maximum length. Scanned pages have no text. @throws Unreadable */
export async function readPdf(bytes: Uint8Array, charsMax: number, builder: TextBuilder): Promise<ReadDocument> {
  // The library rejects Buffer, a subclass of Uint8Array, so the bytes are copied.
  const pdf = await getDocumentProxy(new Uint8Array(bytes))
  try {
    if (pdf.numPages > PAGES_MAX) throw new Unreadable(`The document has more than ${PAGES_MAX} pages.`)
    const { info } = (await pdf.getMetadata()) as { info?: { Title?: unknown } }
    await readPages(pdf, charsMax * RAW_CHARS_PER_CHAR, builder)
    return { ...builder.build(), title: typeof info?.Title === 'string' ? info.Title.trim() : '' }
  } finally {
    // The document is destroyed, because a page that was read only in part is still being evaluated.
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
