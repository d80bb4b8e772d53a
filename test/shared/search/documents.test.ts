import { readdirSync, readFileSync } from 'node:fs'
import { getPriority } from 'node:os'
import type { Worker } from 'node:worker_threads'
import { crc32, deflateSync } from 'node:zlib'
import { afterAll, describe, expect, test, vi } from 'vitest'
import { DocumentReader } from '#shared/search/documents/documents.ts'
import type { DocumentType } from '#shared/search/documents/message.ts'
import { DEPTH_MAX, ELEMENTS_MAX, reducePage } from '#shared/search/documents/reduce.ts'

const reader = new DocumentReader()
afterAll(() => reader.close())
const { signal } = new AbortController()
const read = (type: DocumentType, bytes: Uint8Array | string, by = reader, project = 'prj_1') =>
  by.read({ type, bytes: Buffer.from(bytes), charsMax: 10_000 }, project, signal)

describe('the document reader', () => {
  test.runIf(process.platform === 'linux')('runs its threads with a lower priority than the event loop', async () => {
    await read('text', 'The tide turns.')
    const nicenessOf = (thread: string) => {
      const stat = readFileSync(`/proc/self/task/${thread}/stat`, 'utf8')
      return Number(stat.slice(stat.lastIndexOf(')')).split(' ')[17])
    }
    expect(Math.max(...readdirSync('/proc/self/task').map(nicenessOf))).toBeGreaterThan(getPriority())
  })

  test('returns the article of a page, or the whole page if it has no article', async () => {
    const article = `<p>${'The harbour was built by hand, stone upon stone. '.repeat(20)}</p>`
    const page = `<html><head><title>Harbour</title></head><body><nav>Home About</nav><main>${article}<table><tr><td>Depth</td>
      <td>9 m</td></tr></table></main><footer>Imprint</footer></body></html>`
    const { title, text } = await read('html', page)
    expect(title).toBe('Harbour')
    expect(text).toContain('Depth\t9 m')
    expect(text).not.toContain('Home About')
    expect((await read('html', '<p>Short.</p>')).text).toBe('Short.')
    const marked =
      '<p>It turns.<sup><a href="#n2">[2]</a></sup> It weighs 10<sup>3</sup> tonnes<sup>see <a href="#x">x</a></sup>.</p>'
    expect((await read('html', marked)).text).toBe('It turns. It weighs 103 tonnessee x.')
  })

  test('returns the whole page without navigation if the article would omit parts', async () => {
    const section = (name: string) =>
      `<div class="${name}"><h2>${name}</h2><p>${`The ${name} is short. `.repeat(9)}</p><pre>run ${name}</pre></div>`
    const long = `<div class="long"><p>${'The harbour was built by hand, stone upon stone. '.repeat(20)}</p></div>`
    const links = '<ul><li><a href="/a">Elsewhere</a></li></ul>'
    const page = `<html><body><header>Banner</header><div role="navigation">Menu</div>${links}${section('sidebar')}${long}
      ${section('footnote')}${section('comment')}<p>See <a href="/b">the tides</a> for more about them.</p><footer>Imprint</footer></body></html>`
    const { text } = await read('html', page)
    for (const said of ['The sidebar is short.', 'run footnote', 'The comment is short.', 'See the tides for'])
      expect(text).toContain(said)
    for (const around of ['Banner', 'Menu', 'Elsewhere', 'Imprint']) expect(text).not.toContain(around)
  })

  test('returns the text of a PDF', async () => {
    const { text } = await read('pdf', pdfOf('The tide turns at noon.'))
    expect(text).toBe('The tide turns at noon.')
  })

  test.each([
    ['with text', '(A)', 'A'],
    ['without text', '()', ''],
  ])('stops reading a PDF %s at the maximum length or CPU time', async (_, shown, first) => {
    const page = `BT /F1 12 Tf 72 720 Td ${shown} Tj ET\n`.repeat(30_000)
    const { text } = await read('pdf', pdfWith(page, true, 1_000))
    expect(text.slice(0, 1)).toBe(first)
  })

  test('reads at most 16 bytes of a text file per character of the result', async () => {
    expect((await read('markdown', `${'<!-- -->\n'.repeat(20_000)}Late text.`)).text).toBe('')
    expect((await read('text', `a${'é'.repeat(100_000)}`)).text.slice(0, 2)).toBe('aé')
  })

  test('returns the headings, lists and text of a Word file', async () => {
    const { blocks, text, title } = await read('docx', docxOf(['Heading1', 'Tides'], [undefined, 'They turn at noon.']))
    expect(title).toBe('Tides')
    expect(blocks.map(({ type, start, end }) => [type, text.slice(start, end)])).toEqual([
      ['heading', 'Tides'],
      ['text', 'They turn at noon.'],
    ])
  })

  test.each<[DocumentType, string]>([
    ['pdf', 'no PDF'],
    ['docx', 'no archive'],
    ['text', 'a\0b'],
  ])('refuses a file that is not %s with unsupported_media_type', async (type, content) => {
    await expect(read(type, content)).rejects.toMatchObject({ code: 'unsupported_media_type' })
  })

  test('fails a page that exceeds the time limit, and reads the next page', async () => {
    const hasty = new DocumentReader({ documentMs: 1 })
    const message = 'Reading the document took longer than 0.001 s.'
    await expect(read('html', '<p>a</p>', hasty)).rejects.toMatchObject({ code: 'unsupported_media_type', message })
    await hasty.close()
    expect((await read('html', '<p>Still here.</p>')).text).toBe('Still here.')
  })

  test('fails a document whose decompressed size exceeds the memory limit of a thread', async () => {
    const small = new DocumentReader({ documentMs: 60_000, bufferBytesMax: 32 * 1024 * 1024 })
    const bomb = pdfWith(' '.repeat(128 * 1024 * 1024), true)
    expect(bomb.length).toBeLessThan(1024 * 1024)
    const failure = await read('pdf', bomb, small).catch((error: unknown) => error)
    expect(failure).toMatchObject({ code: 'unsupported_media_type' })
    expect((failure as Error).cause).toMatchObject({
      message: 'The document needs more than 33554432 bytes of memory.',
    })
    expect((await read('html', '<p>Still here.</p>', small)).text).toBe('Still here.')
    await small.close()
  })

  test('reads the page of another project while slow pages are read', async () => {
    const busy = new DocumentReader({ threads: 2 })
    const ended: string[] = []
    const input = { type: 'text', bytes: Buffer.from('A sentence. '.repeat(1_500_000)), charsMax: 20_000_000 } as const
    const slow = busy.read(input, 'prj_1', signal).then(() => ended.push('slow'))
    await read('text', 'quick', busy, 'prj_2').then(() => ended.push('quick'))
    await slow
    await busy.close()
    expect(ended).toEqual(['quick', 'slow'])
  })

  test('stops reading when the signal of the caller is aborted', async () => {
    const leaving = AbortSignal.abort(new Error('disconnected'))
    const input = { type: 'text', bytes: Buffer.from('a'), charsMax: 10 } as const
    await expect(reader.read(input, 'prj_1', leaving)).rejects.toThrow('disconnected')
    expect((await read('text', 'b')).text).toBe('b')
  })
})

describe('the document queues of projects', () => {
  const SLOW = Buffer.from('A sentence. '.repeat(300_000))
  const readIn = (by: DocumentReader, project: string, bytes: Buffer) => read('text', bytes, by, project)

  test('are served round robin, however many documents each project has', async () => {
    const single = new DocumentReader({ threads: 1 })
    const ended: string[] = []
    const readAll = (project: string, count: number) =>
      Array.from({ length: count }, () => readIn(single, project, SLOW).then(() => ended.push(project)))
    await Promise.all([...readAll('many', 5), ...readAll('few', 2)])
    await single.close()
    expect(ended).toEqual(['many', 'many', 'few', 'many', 'few', 'many', 'many'])
  })

  test('leave a thread free for other projects, even with 60 endless documents of one project', async () => {
    const busy = new DocumentReader({ threads: 2, documentMs: 60_000 })
    const leaving = new AbortController()
    const endless = { type: 'pdf', bytes: endlessPdf(), charsMax: 10_000 } as const
    const hostile = Array.from({ length: 60 }, () => busy.read(endless, 'hostile', leaving.signal))
    const { text } = await readIn(busy, 'other', Buffer.from('quick'))
    expect(text).toBe('quick')
    leaving.abort(new Error('disconnected'))
    const ends = await Promise.allSettled(hostile)
    await busy.close()
    expect(ends.every((end) => end.status === 'rejected' && end.reason.message === 'disconnected')).toBe(true)
  })

  test('pause between two documents only while another project is active', async () => {
    const busy = new DocumentReader({ threads: 2 })
    const timers = vi.spyOn(globalThis, 'setTimeout')
    const pauses = () => timers.mock.calls.filter(([, ms]) => ms === 10).length
    await readIn(busy, 'many', SLOW)
    await readIn(busy, 'many', Buffer.from('a'))
    expect(pauses(), 'pauses of a project alone').toBe(0)
    for (let nth = 0; nth < 50 && pauses() === 0; nth++) {
      await readIn(busy, 'few', Buffer.from('a'))
      await readIn(busy, 'many', SLOW)
    }
    expect(pauses(), 'pauses of two projects').toBe(1)
    expect((await readIn(busy, 'many', Buffer.from('a'))).text).toBe('a')
    timers.mockRestore()
    await busy.close()
  })

  test('keep using one thread after a document of another project has crashed another thread', async () => {
    const small = new DocumentReader({ threads: 2, bufferBytesMax: 32 * 1024 * 1024 })
    const threads: Worker[] = []
    const replies: Worker[] = []
    const onWorker = (worker: Worker) => {
      threads.push(worker)
      worker.on('message', () => replies.push(worker))
    }
    process.on('worker', onWorker)
    await readIn(small, 'few', Buffer.from('a'))
    const bomb = pdfWith(' '.repeat(128 * 1024 * 1024), true)
    await expect(read('pdf', bomb, small, 'hostile')).rejects.toMatchObject({ code: 'unsupported_media_type' })
    await readIn(small, 'few', Buffer.from('a'))
    process.off('worker', onWorker)
    await small.close()
    const [first, last] = replies.map((worker) => threads.indexOf(worker))
    expect(last, 'thread of the last document').toBe(first)
    expect(replies, 'replies').toHaveLength(2)
  })

  test('have at most 64 waiting documents per project, and refuse further ones with overloaded', async () => {
    const single = new DocumentReader({ threads: 1 })
    const waiting = Array.from({ length: 65 }, () => readIn(single, 'many', Buffer.from('a')))
    await expect(readIn(single, 'many', Buffer.from('a'))).rejects.toMatchObject({
      code: 'overloaded',
      message: expect.stringContaining('64 documents of this project'),
    })
    expect((await readIn(single, 'other', Buffer.from('b'))).text).toBe('b')
    expect(await Promise.all(waiting)).toHaveLength(65)
    await single.close()
  })
})

describe('a hostile HTML page', () => {
  const paragraphs = '<p>A sentence of the page.</p>'.repeat(2_000)
  test.each([
    ['nested lists', `${'<ul><li>'.repeat(100)}${paragraphs}`],
    ['nested tables', `${'<table><tr><td>'.repeat(500)}${paragraphs}`],
    ['an element with 100,000 attributes', `<div ${'a'.repeat(9)}${' b="c"'.repeat(100_000)}>${paragraphs}</div>`],
    ['an image of 100,000 paths', `${paragraphs}<svg>${'<path d="M0 0"/>'.repeat(100_000)}</svg>`],
    ['200,000 unclosed tags', `${'<p><b>a'.repeat(100_000)}`],
    ['20,000 nested elements', `${'<div>'.repeat(20_000)}${paragraphs}`],
    ['100,000 comments', `${paragraphs}${'<!-- c -->'.repeat(100_000)}`],
    ['20,000 footnote marks', `${paragraphs}${'<sup>1<a href="#x">1</a></sup>'.repeat(20_000)}`],
    ['300,000 entities', `<p>${'&amp;'.repeat(300_000)}</p>`],
    ['300,000 angle brackets', '<'.repeat(300_000)],
  ])('is reduced to a bounded number and depth of elements if it has %s', (_, page) => {
    const { html, elements, depth } = reducePage(page)
    expect(elements).toBeLessThanOrEqual(ELEMENTS_MAX)
    expect(depth).toBeLessThanOrEqual(DEPTH_MAX)
    expect(html.match(/<[a-z]/g)?.length ?? 0).toBe(elements)
    expect(html.match(/&/g)?.length ?? 0).toBeLessThan(100_000)
    expect(html.length).toBeLessThanOrEqual(8 * page.length)
    if (page.includes('sentence') && elements > 1_000) expect(html).toContain('A sentence of the page.')
  })

  test('is converted to its text if it has nested lists and 2,000 paragraphs', async () => {
    const { text } = await read('html', `${'<ul><li>'.repeat(100)}${'<p>A sentence of the page.</p>'.repeat(2_000)}`)
    expect(text).toContain('A sentence of the page.')
  })
})

function pdfOf(line: string): Buffer {
  return pdfWith(`BT /F1 12 Tf 72 720 Td (${line}) Tj ET`)
}

/** Returns a PDF with one page that has too many operators to be read within a minute. */
function endlessPdf(): Buffer {
  return pdfWith('BT /F1 12 Tf 72 720 Td () Tj ET\n'.repeat(2_000_000), true)
}

function pdfWith(text: string, isPacked = false, pages = 1): Buffer {
  const content = isPacked ? deflateSync(text).toString('latin1') : text
  const filter = isPacked ? ' /Filter /FlateDecode' : ''
  const page =
    '<< /Type /Page /Parent 2 0 R /Contents 3 0 R /Resources << /Font << /F1 4 0 R >> >> /MediaBox [0 0 612 792] >>'
  const kids = Array.from({ length: pages }, (_, at) => `${at + 5} 0 R`)
  const objects = [
    '<< /Type /Catalog /Pages 2 0 R >>',
    `<< /Type /Pages /Kids [${kids.join(' ')}] /Count ${pages} >>`,
    `<< /Length ${content.length}${filter} >>\nstream\n${content}\nendstream`,
    '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>',
    ...kids.map(() => page),
  ]
  let pdf = '%PDF-1.4\n'
  const offsets = objects.map((object, at) => {
    const offset = pdf.length
    pdf += `${at + 1} 0 obj\n${object}\nendobj\n`
    return offset
  })
  const table = offsets.map((offset) => `${String(offset).padStart(10, '0')} 00000 n \n`).join('')
  const xref = `xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${table}`
  return Buffer.from(
    `${pdf}${xref}trailer\n<< /Size ${objects.length + 1} /Root 1 0 R >>\nstartxref\n${pdf.length}\n%%EOF`,
    'latin1',
  )
}

/** Returns a minimal Word document: an uncompressed archive of three files. */
function docxOf(...paragraphs: [style: string | undefined, text: string][]): Buffer {
  const body = paragraphs.map(([style, text]) => {
    const named = style ? `<w:pPr><w:pStyle w:val="${style}"/></w:pPr>` : ''
    return `<w:p>${named}<w:r><w:t>${text}</w:t></w:r></w:p>`
  })
  const main = 'http://schemas.openxmlformats.org/wordprocessingml/2006/main'
  const office = 'http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument'
  const types = 'application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml'
  return zipOf({
    '[Content_Types].xml': `<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/word/document.xml" ContentType="${types}"/></Types>`,
    '_rels/.rels': `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r" Type="${office}" Target="word/document.xml"/></Relationships>`,
    'word/document.xml': `<w:document xmlns:w="${main}"><w:body>${body.join('')}</w:body></w:document>`,
  })
}

function zipOf(files: Record<string, string>): Buffer {
  const parts: Buffer[] = []
  const directory: Buffer[] = []
  let offset = 0
  for (const [path, content] of Object.entries(files)) {
    const name = Buffer.from(path)
    const data = Buffer.from(content)
    const sizes = Buffer.alloc(26)
    sizes.writeUInt16LE(20, 0)
    sizes.writeUInt32LE(crc32(data), 10)
    sizes.writeUInt32LE(data.length, 14)
    sizes.writeUInt32LE(data.length, 18)
    sizes.writeUInt16LE(name.length, 22)
    const place = Buffer.alloc(16)
    place.writeUInt32LE(offset, 12)
    directory.push(Buffer.from('PK\x01\x02\x14\0', 'latin1'), sizes, place.subarray(2), name)
    parts.push(Buffer.from('PK\x03\x04', 'latin1'), sizes, name, data)
    offset += 4 + sizes.length + name.length + data.length
  }
  const central = Buffer.concat(directory)
  const end = Buffer.alloc(18)
  const count = Object.keys(files).length
  end.writeUInt16LE(count, 4)
  end.writeUInt16LE(count, 6)
  end.writeUInt32LE(central.length, 8)
  end.writeUInt32LE(offset, 12)
  return Buffer.concat([...parts, central, Buffer.from('PK\x05\x06', 'latin1'), end])
}
