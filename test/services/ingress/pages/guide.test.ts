import { readdirSync } from 'node:fs'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { CHAPTERS } from '#services/ingress/pages/guide/chapters.ts'
import { GUIDE } from '#services/ingress/pages/guide/guide.ts'
import { type Admin, openAdmin } from '../../../support/admin.ts'

let admin: Admin
/** The text of every page, by its path. */
const pages = new Map<string, string>()
beforeAll(async () => {
  admin = await openAdmin()
  for (const { name } of CHAPTERS) pages.set(`${GUIDE}/${name}`, await read(`${GUIDE}/${name}`))
})
afterAll(() => admin[Symbol.asyncDispose]())

async function read(path: string): Promise<string> {
  const response = await fetch(admin.stack.url + path)
  expect(response.status, path).toBe(200)
  expect(response.headers.get('content-security-policy')).toContain("default-src 'none'")
  return await response.text()
}

const attributes = (html: string, name: string) =>
  [...html.matchAll(new RegExp(` ${name}="([^"]+)"`, 'g'))].map(([, value]) => value ?? '')

it('has every document as a page', () => {
  const documents = readdirSync('docs').filter((file) => file.endsWith('.md'))
  expect(CHAPTERS.map(({ name }) => `${name}.md`).sort()).toEqual(documents.sort())
})

it('begins with the first page, and leads each page to all others', async () => {
  expect(await read(GUIDE)).toBe(pages.get(`${GUIDE}/${CHAPTERS[0]?.name}`))
  for (const [path, html] of pages) {
    expect(html, path).toMatch(/<main id="content">\s*<h1 id=/)
    expect(attributes(html, 'href')).toEqual(expect.arrayContaining([...pages.keys()]))
  }
})

it('has behind every link a page, and behind every anchor a heading', async () => {
  const elsewhere = new Set<string>()
  for (const [path, html] of pages) {
    for (const href of attributes(html, 'href')) {
      if (/^(https?|data):/.test(href)) continue
      const { pathname, hash } = new URL(href, admin.stack.url + path)
      const page = pages.get(pathname)
      if (!page) elsewhere.add(pathname)
      else if (hash) expect(attributes(page, 'id'), `${path}: ${href}`).toContain(decodeURIComponent(hash.slice(1)))
    }
  }
  elsewhere.delete('/console')
  for (const path of elsewhere) await read(path)
})

it('asks nothing of other hosts, and has neither scripts nor styles inside', () => {
  for (const [path, html] of pages) {
    expect(attributes(html, 'src'), path).toEqual([`${GUIDE}/search.js`])
    expect(html.replace(/<script type="module" src="[^"]*"><\/script>/, ''), path).not.toMatch(
      /<(script|style|iframe|img)\b| style=|<!--/,
    )
  }
})

it('has an index of every section: of plain text, at addresses that are there', async () => {
  const sections = JSON.parse(await read(`${GUIDE}/search.json`)) as { path: string; page: string; text: string }[]
  expect(new Set(sections.map(({ page }) => page))).toEqual(new Set(CHAPTERS.map(({ title }) => title)))
  for (const { path, text } of sections) {
    const [page = '', id] = path.split('#')
    if (id) expect(attributes(pages.get(page) ?? '', 'id'), path).toContain(id)
    expect(text, path).not.toMatch(/&(lt|gt|quot|amp);|<\/(p|a|code|td)>|\s\s/)
  }
  expect(sections.find(({ path }) => path === `${GUIDE}/jobs#follow-it`)?.text).toContain('Last-Event-ID')
})
