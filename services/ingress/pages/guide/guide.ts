import { readFile } from 'node:fs/promises'
import { Marked, type Token, type Tokens } from 'marked'
import { gfmHeadingId } from 'marked-gfm-heading-id'
import { PageFile } from '#services/ingress/pages/files.ts'
import { CHAPTERS, type Chapter, PARTS } from './chapters.ts'
import { type Section, sectionsOf } from './search-index.ts'

export const GUIDE = '/docs/guide'

const DOCS = new URL('../../../../docs/', import.meta.url)
/** Replacements for renderers of marked. */
const RENDERER = { table: tableHtml, code: codeHtml, html: withoutComments }
const NAMES: ReadonlyMap<string, string> = new Map(CHAPTERS.map(({ folder, name }) => [`/${folder}/${name}.md`, name]))

/** Files of the guide by path. Each page is rendered from Markdown at its first request. The first page is also served at the root. */
export function guideFiles(): ReadonlyMap<string, PageFile> {
  const pages = CHAPTERS.map((chapter): [string, PageFile] => {
    return [`${GUIDE}/${chapter.name}`, new PageFile('html', async () => Buffer.from(await pageOf(chapter)))]
  })
  const first = pages[0]?.[1]
  const assets = ['guide.css', 'search.js'].map((name): [string, PageFile] => {
    return [`${GUIDE}/${name}`, PageFile.at(new URL(name, import.meta.url))]
  })
  const index = new PageFile('json', async () => Buffer.from(JSON.stringify(await searchIndex())))
  return new Map([...pages, ...assets, [`${GUIDE}/search.json`, index], ...(first ? [[GUIDE, first] as const] : [])])
}

/** All sections of the guide. Each page read yields to the event loop. */
async function searchIndex(): Promise<Section[]> {
  const sections: Section[] = []
  for (const chapter of CHAPTERS) {
    sections.push(...sectionsOf(`${GUIDE}/${chapter.name}`, chapter.title, await bodyOf(chapter)))
  }
  return sections
}

/** The HTML of a page without its frame. @throws Error if the file cannot be read */
async function bodyOf({ folder, name }: Chapter): Promise<string> {
  const markdown = await readFile(new URL(`${folder}/${name}.md`, DOCS), 'utf8')
  // A new parser per page, because a parser numbers repeated headings across calls.
  const marked = new Marked(
    { gfm: true, walkTokens: (token) => relink(token, folder), renderer: RENDERER },
    gfmHeadingId(),
  )
  return await marked.parse(markdown)
}

/** @throws Error if the file cannot be read */
async function pageOf(chapter: Chapter): Promise<string> {
  const body = await bodyOf(chapter)
  const index = CHAPTERS.indexOf(chapter)
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(chapter.title)} · Sluice</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="${GUIDE}/guide.css">
<script type="module" src="${GUIDE}/search.js"></script>
</head>
<body>
<a class="skip" href="#content">Skip to content</a>
<header>
<a class="name" href="${GUIDE}">Sluice guide</a>
<search class="search"></search>
<nav class="elsewhere" aria-label="Site"><a href="/console">Console</a> <a href="/docs">API reference</a></nav>
</header>
<div class="columns">
<details class="menu"><summary>All pages</summary>${menu(chapter)}</details>
<aside>${menu(chapter)}</aside>
<main id="content">
${body}
<nav class="pager" aria-label="Previous and next page">${pageLink('Previous', CHAPTERS[index - 1])}${pageLink('Next', CHAPTERS[index + 1])}</nav>
</main>
</div>
</body>
</html>
`
}

function menu(current: Chapter): string {
  const parts = PARTS.map(({ title, chapters }) => {
    const items = chapters.map((chapter) => {
      const mark = chapter === current ? ' aria-current="page"' : ''
      return `<li><a href="${GUIDE}/${chapter.name}"${mark}>${escaped(chapter.title)}</a></li>`
    })
    return `<h2>${escaped(title)}</h2><ul>${items.join('')}</ul>`
  })
  return `<nav class="pages" aria-label="Pages">${parts.join('')}</nav>`
}

function pageLink(direction: string, chapter: Chapter | undefined): string {
  if (!chapter) return '<span></span>'
  return `<a href="${GUIDE}/${chapter.name}"><small>${direction}</small> ${escaped(chapter.title)}</a>`
}

/** Rewrites the links of a page in `docs/FOLDER/` to links between pages. A link to an unserved file becomes plain text. */
function relink(token: Token, folder: string): void {
  if (token.type !== 'link') return
  const { href } = token as Tokens.Link
  if (/^([a-z]+:|#|\/)/.test(href)) return
  const { pathname, hash } = new URL(href, `file:///${folder}/`)
  const name = NAMES.get(pathname)
  if (name) token.href = `${GUIDE}/${name}${hash}`
  else Object.assign(token, { type: 'em' })
}

/** Wraps a table in a scrollable region that is focusable for keyboard users. */
function tableHtml(this: { parser: { parseInline(tokens: Token[]): string } }, { header, rows, align }: Tokens.Table) {
  const cells = (row: readonly Tokens.TableCell[], tag: 'th' | 'td') =>
    row.map(({ tokens }, i) => `<${tag} class="${align[i] ?? 'left'}">${this.parser.parseInline(tokens)}</${tag}>`)
  const line = (row: readonly Tokens.TableCell[], tag: 'th' | 'td') => `<tr>${cells(row, tag).join('')}</tr>`
  const body = rows.map((row) => line(row, 'td')).join('')
  const table = `<table><thead>${line(header, 'th')}</thead><tbody>${body}</tbody></table>`
  return `<div class="table" role="group" aria-label="Table" tabindex="0">${table}</div>\n`
}

/** Code blocks are scrollable regions, like tables. */
function codeHtml({ text }: Tokens.Code): string {
  return `<pre role="group" aria-label="Code" tabindex="0"><code>${escaped(text)}\n</code></pre>\n`
}

/** Removes comments, which are for editors and tests. */
function withoutComments({ text }: Tokens.HTML | Tokens.Tag): string {
  return text.startsWith('<!--') ? '' : text
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
}
