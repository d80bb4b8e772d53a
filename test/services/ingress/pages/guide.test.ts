import { readdirSync } from 'node:fs'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { ERRORS } from '#schemas/error.ts'
import { CHAPTERS, GUIDE } from '#services/ingress/pages/guide.ts'
import { type Admin, openAdmin } from '../../../support/admin.ts'

let admin: Admin
/** HTML of every page of the guide, by the path of its URL. */
const pages = new Map<string, string>()
beforeAll(async () => {
  admin = await openAdmin()
  for (const { name } of CHAPTERS) pages.set(`${GUIDE}/${name}`, await read(`${GUIDE}/${name}`))
})
afterAll(() => admin[Symbol.asyncDispose]())

async function read(path: string): Promise<string> {
  const response = await fetch(admin.stack.url + path)
  expect(response.status, `status of the page ${path}`).toBe(200)
  expect(response.headers.get('content-security-policy')).toContain("default-src 'none'")
  return await response.text()
}

const attributes = (html: string, name: string) =>
  [...html.matchAll(new RegExp(` ${name}="([^"]+)"`, 'g'))].map(([, value]) => value ?? '')

it('the guide has a page for every Markdown file below docs/, except decision records', () => {
  const files = readdirSync('docs', { recursive: true, encoding: 'utf8' })
  const documents = files.filter((file) => file.endsWith('.md') && !file.startsWith('adr/'))
  expect(CHAPTERS.map(({ folder, name }) => `${folder}/${name}.md`).sort()).toEqual(documents.sort())
})

it('the guide serves its first page at the root, and links each page to all others', async () => {
  expect(await read(GUIDE)).toBe(pages.get(`${GUIDE}/${CHAPTERS[0]?.name}`))
  for (const [path, html] of pages) {
    expect(html, `HTML of the page ${path}`).toMatch(
      /<main id="content">\s*(<details class="menu here">.*?<\/details>\s*)?<h1 id=/s,
    )
    expect(attributes(html, 'href')).toEqual(expect.arrayContaining([...pages.keys()]))
  }
})

it('the guide has a page for every link and a heading for every anchor', async () => {
  const otherPaths = new Set<string>()
  for (const [path, html] of pages) {
    for (const href of attributes(html, 'href')) {
      if (/^(https?|data):/.test(href)) continue
      const { pathname, hash } = new URL(href, admin.stack.url + path)
      const page = pages.get(pathname)
      if (!page) otherPaths.add(pathname)
      else if (hash)
        expect(attributes(page, 'id'), `headings with the anchor of the link ${href} on ${path}`).toContain(
          decodeURIComponent(hash.slice(1)),
        )
    }
  }
  otherPaths.delete('/console')
  for (const path of otherPaths) await read(path)
})

it('the page of errors has an anchor for the row of each error code', () => {
  const html = pages.get(`${GUIDE}/errors`) ?? ''
  const ids = [...html.matchAll(/<tr id="([^"]*)"><td[^>]*><code>([^<]*)<\/code>/g)].map(([, id, code]) => [id, code])
  expect(ids.toSorted()).toEqual(
    Object.keys(ERRORS)
      .map((code) => [code, code])
      .toSorted(),
  )
})

it('the guide loads nothing from other hosts, and has no inline scripts or styles', () => {
  for (const [path, html] of pages) {
    expect(attributes(html, 'src'), `scripts of the page ${path}`).toEqual([
      '/docs/theme.js',
      `${GUIDE}/search.js`,
      '/docs/copy.js',
    ])
    expect(
      html.replaceAll(/<script (type="module" )?src="[^"]*"><\/script>/g, ''),
      `inline scripts or styles of the page ${path}`,
    ).not.toMatch(/<(script|style|iframe|img)\b| style=|<!--/)
  }
})

it('the guide has a search index of all sections, with plain text and existing paths', async () => {
  const sections = JSON.parse(await read(`${GUIDE}/search.json`)) as { path: string; page: string; text: string }[]
  expect(new Set(sections.map(({ page }) => page))).toEqual(new Set(CHAPTERS.map(({ title }) => title)))
  for (const { path, text } of sections) {
    const [page = '', id] = path.split('#')
    if (id) expect(attributes(pages.get(page) ?? '', 'id'), `anchors of the page ${path}`).toContain(id)
    expect(text, `text in the search index of the page ${path}`).not.toMatch(
      /&(lt|gt|quot|amp);|<\/(p|a|code|td)>|\s\s/,
    )
  }
  expect(sections.find(({ path }) => path === `${GUIDE}/jobs#follow-it`)?.text).toContain('Last-Event-ID')
})
