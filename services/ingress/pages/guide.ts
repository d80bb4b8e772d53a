import { readFile } from 'node:fs/promises'
import { Marked, type Token, type Tokens } from 'marked'
import { gfmHeadingId } from 'marked-gfm-heading-id'
import { PageFile } from './files.ts'
import { withSiteHeader } from './site.ts'

/**
 * A page of the guide. The file is `docs/{folder}/{name}.md`, the URL contains only the name (`/docs/guide/jobs`), and the
 * navigation shows the title.
 */
interface Chapter {
  readonly folder: string
  readonly name: string
  readonly title: string
}

interface Part {
  readonly title: string
  readonly chapters: readonly Chapter[]
}

/**
 * Navigation of the guide, with one part per folder. A test checks that every page below docs/, except docs/adr/,
 * appears here once.
 */
const PARTS: readonly Part[] = [
  part('Get started', 'get-started', {
    'first-steps': 'First steps',
    clients: 'Clients and SDKs',
    comparison: 'Comparison',
  }),
  part('Guides', 'guides', {
    text: 'Text generation',
    responses: 'Responses API',
    embeddings: 'Embeddings and reranking',
    transcription: 'Transcription',
    speech: 'Speech',
    moderations: 'Moderation',
    code: 'Code execution',
    'deep-research': 'Deep research',
    jobs: 'Durable jobs',
    batches: 'Files and batches',
    webhooks: 'Webhooks',
    websocket: 'WebSocket',
    'several-servers': 'Several servers',
    extensions: 'Extensions',
    echo: 'Echo test model',
  }),
  part('Operate', 'operate', {
    operations: 'Run a fleet',
    kubernetes: 'Kubernetes',
    'three-machines': 'Three machines',
    monitoring: 'Monitoring',
    runbook: 'Runbook',
    incidents: 'Incidents',
    backup: 'Backup and restore',
    models: 'Models',
    keys: 'API keys and projects',
    requests: 'Request log',
    traces: 'Traces',
    usage: 'Usage and cost',
    reliability: 'Reliability',
    scale: 'Scaling',
  }),
  part('Reference', 'reference', {
    endpoints: 'Endpoints',
    compatibility: 'API compatibility',
    settings: 'Settings',
    limits: 'Limits',
    errors: 'Errors',
    events: 'Events and streams',
    metrics: 'Metrics',
    cli: 'Command line',
    glossary: 'Glossary',
  }),
  part('Internals', 'internals', {
    'life-of-a-job': 'Life of a job',
    design: 'Design',
    protocol: 'Protocol',
    benchmarks: 'Benchmarks',
    'benchmark-history': 'Benchmark history',
    release: 'Release procedure',
  }),
]
export const CHAPTERS: readonly Chapter[] = PARTS.flatMap(({ chapters }) => chapters)

function part(title: string, folder: string, titles: Readonly<Record<string, string>>): Part {
  return { title, chapters: Object.entries(titles).map(([name, title]) => ({ folder, name, title })) }
}

const HEADING = /<h[1-4] id="([^"]*)">([\s\S]*?)<\/h[1-4]>/
const ENTITIES: Readonly<Record<string, string>> = { lt: '<', gt: '>', quot: '"', '#39': "'", amp: '&' }

export const GUIDE = '/docs/guide'

const DOCS = new URL('../../../docs/', import.meta.url)
const RENDERER = { table: tableHtml, code: codeHtml, html: withoutComments }
const NAMES: ReadonlyMap<string, string> = new Map(CHAPTERS.map(({ folder, name }) => [`/${folder}/${name}.md`, name]))

/**
 * Returns the files of the guide by path. A page is rendered from Markdown at its first request. The root path of the
 * guide returns the first page.
 */
export function guideFiles(): ReadonlyMap<string, PageFile> {
  const pages = CHAPTERS.map((chapter): [string, PageFile] => {
    return [`${GUIDE}/${chapter.name}`, new PageFile('html', async () => Buffer.from(await pageOf(chapter)))]
  })
  const first = pages[0]?.[1]
  const assets = ['guide.css', 'search.js'].map((name): [string, PageFile] => {
    return [`${GUIDE}/${name}`, PageFile.at(new URL(`guide/${name}`, import.meta.url))]
  })
  const index = new PageFile('json', async () => Buffer.from(JSON.stringify(await searchIndex())))
  return new Map([...pages, ...assets, [`${GUIDE}/search.json`, index], ...(first ? [[GUIDE, first] as const] : [])])
}

async function searchIndex(): Promise<Section[]> {
  const sections: Section[] = []
  for (const chapter of CHAPTERS) {
    sections.push(...sectionsOf(`${GUIDE}/${chapter.name}`, chapter.title, await bodyOf(chapter)))
  }
  return sections
}

async function bodyOf({ folder, name }: Chapter): Promise<string> {
  const markdown = await readFile(new URL(`${folder}/${name}.md`, DOCS), 'utf8')
  // Each page needs a new parser, because a parser numbers repeated headings across all its calls.
  const marked = new Marked(
    { gfm: true, walkTokens: (token) => relink(token, folder), renderer: RENDERER },
    gfmHeadingId(),
  )
  return await marked.parse(markdown)
}

async function pageOf(chapter: Chapter): Promise<string> {
  const body = await bodyOf(chapter)
  const index = CHAPTERS.indexOf(chapter)
  const contents = contentsOf(body)
  const html = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(chapter.title)} · Sluice</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="${GUIDE}/guide.css">
<script type="module" src="${GUIDE}/search.js"></script>
<script type="module" src="/docs/copy.js"></script>
</head>
<body>
<div class="columns">
<details class="menu"><summary>All pages</summary>${menu(chapter)}</details>
<aside>${menu(chapter)}</aside>
<main id="content">
${contents && `<details class="menu here"><summary>On this page</summary>${contents}</details>\n`}${body}
<nav class="pager" aria-label="Previous and next page">${pageLink('Previous', CHAPTERS[index - 1])}${pageLink('Next', CHAPTERS[index + 1])}</nav>
</main>
${contents && `<aside class="contents">${contents}</aside>\n`}</div>
</body>
</html>
`
  return withSiteHeader(html, { current: GUIDE, content: 'content', end: '<search class="search"></search>\n' })
}

/** List of the sections of a page. Empty for a page with fewer than two sections. */
function contentsOf(body: string): string {
  const items = [...body.matchAll(/<h2 id="([^"]*)">([\s\S]*?)<\/h2>/g)].map(
    ([, id = '', heading = '']) => `<li><a href="#${id}">${escaped(plain(heading))}</a></li>`,
  )
  if (items.length < 2) return ''
  return `<nav class="pages" aria-label="On this page"><h2>On this page</h2><ul>${items.join('')}</ul></nav>`
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

/**
 * Rewrites links to files in `docs/FOLDER/` to links between pages. A link to a file that is not served becomes
 * emphasized text.
 */
function relink(token: Token, folder: string): void {
  if (token.type !== 'link') return
  const { href } = token as Tokens.Link
  if (/^([a-z]+:|#|\/)/.test(href)) return
  const { pathname, hash } = new URL(href, `file:///${folder}/`)
  const name = NAMES.get(pathname)
  if (name) token.href = `${GUIDE}/${name}${hash}`
  else Object.assign(token, { type: 'em' })
}

function tableHtml(this: { parser: { parseInline(tokens: Token[]): string } }, { header, rows, align }: Tokens.Table) {
  const cells = (row: readonly Tokens.TableCell[], tag: 'th' | 'td') =>
    row.map(({ tokens }, i) => `<${tag} class="${align[i] ?? 'left'}">${this.parser.parseInline(tokens)}</${tag}>`)
  // The id of a row with an error code is this code, so that pages can link to the row.
  const idOf = ([first]: readonly Tokens.TableCell[]) =>
    header[0]?.text === 'Code' ? ` id="${first?.text.replaceAll('`', '')}"` : ''
  const line = (row: readonly Tokens.TableCell[], tag: 'th' | 'td') =>
    `<tr${tag === 'td' ? idOf(row) : ''}>${cells(row, tag).join('')}</tr>`
  const body = rows.map((row) => line(row, 'td')).join('')
  const table = `<table><thead>${line(header, 'th')}</thead><tbody>${body}</tbody></table>`
  return `<div class="table" role="group" aria-label="Table" tabindex="0">${table}</div>\n`
}

function codeHtml({ text }: Tokens.Code): string {
  return `<pre role="group" aria-label="Code" tabindex="0"><code>${escaped(text)}\n</code></pre>\n`
}

function withoutComments({ text }: Tokens.HTML | Tokens.Tag): string {
  return text.startsWith('<!--') ? '' : text
}

export function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
}

interface Section {
  readonly path: string
  readonly page: string
  readonly heading: string
  readonly text: string
}

function sectionsOf(path: string, page: string, body: string): Section[] {
  const [, ...parts] = body.split(HEADING)
  return Array.from({ length: Math.floor(parts.length / 3) }, (_, nth) => {
    const [id = '', heading = '', text = ''] = parts.slice(nth * 3, nth * 3 + 3)
    return { path: nth === 0 ? path : `${path}#${id}`, page, heading: plain(heading), text: plain(text) }
  })
}

function plain(html: string): string {
  return html
    .replaceAll(/<\/?(?:p|li|ul|ol|h\d|t[dhr]|pre|div|br)\b[^>]*>/g, ' ')
    .replaceAll(/<[^>]*>/g, '')
    .replaceAll(/&(lt|gt|quot|#39|amp);/g, (_, name: string) => ENTITIES[name] ?? '')
    .replaceAll(/\s+/g, ' ')
    .trim()
}
