import { deflateSync } from 'node:zlib'

/*
 * Pages whose parsing takes much time for their size, such as 20,000 nested elements, and one ordinary page.
 */

interface Page {
  readonly type: string
  readonly body: string | Buffer
}

const SENTENCE = 'Herons build their nests in tall trees near the water, in colonies of forty pairs.'
const PARAGRAPHS = `<p>${SENTENCE}</p>`.repeat(2_000)
const MIB = 1024 * 1024

export const PAGES: Readonly<Record<string, Page>> = {
  ordinary: html(`<h1>Herons</h1>${`<p>${SENTENCE} A survey counted them in spring.</p>`.repeat(40)}`),
  lists: html(`${'<ul><li>'.repeat(100)}${PARAGRAPHS}`),
  tables: html(`${'<table><tr><td>'.repeat(500)}${PARAGRAPHS}`),
  attributes: html(`<div${' b="c"'.repeat(100_000)}>${PARAGRAPHS}</div>`),
  unclosed: html('<p><b>a'.repeat(100_000)),
  nested: html(`${'<div>'.repeat(20_000)}${PARAGRAPHS}`),
  entities: html(`<p>${'&amp;'.repeat(300_000)}</p>`),
  oneline: { type: 'text/plain', body: `${SENTENCE} `.repeat((5 * MIB) / SENTENCE.length) },
  words: { type: 'text/plain', body: Array.from({ length: 500_000 }, (_, at) => `heron${at}`).join(' ') },
  brackets: { type: 'text/markdown', body: `${SENTENCE}\n\n${'['.repeat(2 * MIB)}` },
  quotes: { type: 'text/markdown', body: `${'>'.repeat(5_000)} ${SENTENCE}\n`.repeat(200) },
  pdf: { type: 'application/pdf', body: pdf(`BT /F1 12 Tf 72 720 Td (${SENTENCE}) Tj ET\n`.repeat(2_000_000)) },
}

function html(body: string): Page {
  return {
    type: 'text/html',
    body: `<!doctype html><html><head><title>Herons</title></head><body>${body}</body></html>`,
  }
}

/** Returns a PDF of one page whose operators are compressed: 200 MB become less than 1 MB. */
function pdf(operators: string): Buffer {
  const stream = deflateSync(operators)
  const objects = [
    '<< /Type /Catalog /Pages 2 0 R >>',
    '<< /Type /Pages /Kids [5 0 R] /Count 1 >>',
    Buffer.concat([
      Buffer.from(`<< /Length ${stream.length} /Filter /FlateDecode >>\nstream\n`),
      stream,
      Buffer.from('\nendstream'),
    ]),
    '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>',
    '<< /Type /Page /Parent 2 0 R /Contents 3 0 R /Resources << /Font << /F1 4 0 R >> >> /MediaBox [0 0 612 792] >>',
  ]
  const parts: Buffer[] = [Buffer.from('%PDF-1.4\n')]
  const offsets: number[] = []
  let length = parts[0]?.length ?? 0
  const add = (part: Buffer) => {
    parts.push(part)
    length += part.length
  }
  for (const [at, object] of objects.entries()) {
    offsets.push(length)
    add(Buffer.concat([Buffer.from(`${at + 1} 0 obj\n`), Buffer.from(object), Buffer.from('\nendobj\n')]))
  }
  const table = offsets.map((offset) => `${String(offset).padStart(10, '0')} 00000 n \n`).join('')
  const tail = `xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${table}trailer\n<< /Size ${objects.length + 1} /Root 1 0 R >>`
  add(Buffer.from(`${tail}\nstartxref\n${length}\n%%EOF\n`))
  return Buffer.concat(parts)
}
