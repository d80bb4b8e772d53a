import { readFile } from 'node:fs/promises'
import { Marked, type Token, type Tokens } from 'marked'
import { gfmHeadingId } from 'marked-gfm-heading-id'
import { PageFile } from '#services/ingress/pages/files.ts'
import { CHAPTERS, type Chapter, PARTS } from './chapters.ts'
import { type Section, sectionsOf } from './search-index.ts'

/** Where the guide lies. */
export const GUIDE = '/docs/guide'

const DOCS = new URL('../../../../docs/', import.meta.url)
/** What is not written as marked would. */
const RENDERER = { table: scrollable, code: codeOf, html: shown }
const NAMES: ReadonlySet<string> = new Set(CHAPTERS.map(({ name }) => name))

/**
 * The guide, by path: a page for each document, which is made of its Markdown when somebody first asks for it. The first page of the
 * guide stands at its root too.
 */
export function guideFiles(): ReadonlyMap<string, PageFile> {
  const pages = CHAPTERS.map((chapter): [string, PageFile] => {
    return [`${GUIDE}/${chapter.name}`, new PageFile('html', async () => Buffer.from(await pageOf(chapter)))]
  })
  const first = pages[0]?.[1]
  const ours = ['guide.css', 'search.js'].map((name): [string, PageFile] => {
    return [`${GUIDE}/${name}`, PageFile.at(new URL(name, import.meta.url))]
  })
  const index = new PageFile('json', async () => Buffer.from(JSON.stringify(await searchIndex())))
  return new Map([...pages, ...ours, [`${GUIDE}/search.json`, index], ...(first ? [[GUIDE, first] as const] : [])])
}

/** Every section of the guide. Reading a page lets other work in between. */
async function searchIndex(): Promise<Section[]> {
  const sections: Section[] = []
  for (const chapter of CHAPTERS) {
    sections.push(...sectionsOf(`${GUIDE}/${chapter.name}`, chapter.title, await bodyOf(chapter)))
  }
  return sections
}

/** The document of a chapter as HTML. @throws Error when it cannot be read */
async function bodyOf({ name }: Chapter): Promise<string> {
  const markdown = await readFile(new URL(`${name}.md`, DOCS), 'utf8')
  // Made anew for each page: a parser numbers headings of the same name.
  const marked = new Marked({ gfm: true, walkTokens: relink, renderer: RENDERER }, gfmHeadingId())
  return await marked.parse(markdown)
}

/** @throws Error when the document cannot be read */
async function pageOf(chapter: Chapter): Promise<string> {
  const body = await bodyOf(chapter)
  const place = CHAPTERS.indexOf(chapter)
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
<a class="skip" href="#content">Skip to the text</a>
<header>
<a class="name" href="${GUIDE}">Sluice guide</a>
<search class="search"></search>
<nav class="elsewhere" aria-label="Elsewhere"><a href="/console">Console</a> <a href="/docs">API reference</a></nav>
</header>
<div class="columns">
<details class="menu"><summary>All pages</summary>${menu(chapter)}</details>
<aside>${menu(chapter)}</aside>
<main id="content">
${body}
<nav class="turn" aria-label="Other pages">${turn('Before', CHAPTERS[place - 1])}${turn('Next', CHAPTERS[place + 1])}</nav>
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

function turn(direction: string, chapter: Chapter | undefined): string {
  if (!chapter) return '<span></span>'
  return `<a href="${GUIDE}/${chapter.name}"><small>${direction}</small> ${escaped(chapter.title)}</a>`
}

/** Links between documents lead between pages. What else the repository holds is not served: of such a link the text stays. */
function relink(token: Token): void {
  if (token.type !== 'link') return
  const { href } = token as Tokens.Link
  if (/^([a-z]+:|#|\/)/.test(href)) return
  const [, name = '', anchor = ''] = /^([\w-]+)\.md(#.*)?$/.exec(href) ?? []
  if (NAMES.has(name)) token.href = `${GUIDE}/${name}${anchor}`
  else Object.assign(token, { type: 'em' })
}

/** Wide tables scroll in a frame of their own, which the keyboard reaches as well. */
function scrollable(this: { parser: { parseInline(tokens: Token[]): string } }, { header, rows, align }: Tokens.Table) {
  const cells = (row: readonly Tokens.TableCell[], tag: 'th' | 'td') =>
    row.map(({ tokens }, i) => `<${tag} class="${align[i] ?? 'left'}">${this.parser.parseInline(tokens)}</${tag}>`)
  const line = (row: readonly Tokens.TableCell[], tag: 'th' | 'td') => `<tr>${cells(row, tag).join('')}</tr>`
  const body = rows.map((row) => line(row, 'td')).join('')
  const table = `<table><thead>${line(header, 'th')}</thead><tbody>${body}</tbody></table>`
  return `<div class="table" role="group" aria-label="Table" tabindex="0">${table}</div>\n`
}

/** Code scrolls as tables do. */
function codeOf({ text }: Tokens.Code): string {
  return `<pre role="group" aria-label="Code" tabindex="0"><code>${escaped(text)}\n</code></pre>\n`
}

/** Comments are for whoever changes the document, and for its tests. */
function shown({ text }: Tokens.HTML | Tokens.Tag): string {
  return text.startsWith('<!--') ? '' : text
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
}
