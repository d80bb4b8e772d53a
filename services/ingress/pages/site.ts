/*
 * The header that the console, the guide and the API reference share: a skip link, the name, and links between the three. The console and
 * the reference are HTML files, into which the header is inserted when they are loaded.
 */

const LINKS = { '/console': 'Console', '/docs/guide': 'Guide', '/docs': 'API reference' } as const

interface Site {
  /** Path of the page whose link is marked as the current page. */
  readonly current: keyof typeof LINKS
  /** HTML id of the content, the target of the skip link. */
  readonly content: string
  /** HTML at the end of the header. */
  readonly end?: string
}

/** Inserts the header into a page, with its stylesheet and script. */
export function withSiteHeader(html: string, { current, content, end = '' }: Site): string {
  const links = Object.entries(LINKS).map(
    ([path, name]) => `<a href="${path}"${path === current ? ' aria-current="true"' : ''}>${name}</a>`,
  )
  const icon =
    '<svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" fill="#0f766e"/><path d="M7 11h18M7 16h12M7 21h6" stroke="#fff" stroke-width="3" stroke-linecap="round"/></svg>'
  const header = `<a class="skip" href="#${content}">Skip to content</a>
<header class="site">
<a class="brand" href="/console" aria-label="Sluice">${icon}<span>Sluice</span></a>
<nav aria-label="Site">${links.join('')}</nav>
${end}</header>`
  const files = '<link rel="stylesheet" href="/docs/site.css">\n<script src="/docs/theme.js"></script>'
  return html.replace('</title>', () => `</title>\n${files}`).replace('<body>', () => `<body>\n${header}`)
}
