/** A part of a page that a search can find: what stands below one heading, up to the next. */
export interface Section {
  /** `/docs/guide/jobs#follow-it` */
  readonly path: string
  /** Of the page. */
  readonly page: string
  readonly heading: string
  /** Plain text, with single blanks. */
  readonly text: string
}

const HEADING = /<h[1-4] id="([^"]*)">([\s\S]*?)<\/h[1-4]>/

/**
 * The sections of a page, in their order.
 *
 * @param path Of the page, without an anchor.
 * @param body The page as HTML, as {@link https://marked.js.org marked} writes it.
 */
export function sectionsOf(path: string, page: string, body: string): Section[] {
  const [, ...parts] = body.split(HEADING)
  return Array.from({ length: Math.floor(parts.length / 3) }, (_, nth) => {
    const [id = '', heading = '', text = ''] = parts.slice(nth * 3, nth * 3 + 3)
    return { path: nth === 0 ? path : `${path}#${id}`, page, heading: plain(heading), text: plain(text) }
  })
}

const ENTITIES: Readonly<Record<string, string>> = { lt: '<', gt: '>', quot: '"', '#39': "'", amp: '&' }

function plain(html: string): string {
  return html
    .replaceAll(/<\/?(?:p|li|ul|ol|h\d|t[dhr]|pre|div|br)\b[^>]*>/g, ' ')
    .replaceAll(/<[^>]*>/g, '')
    .replaceAll(/&(lt|gt|quot|#39|amp);/g, (_, name: string) => ENTITIES[name] ?? '')
    .replaceAll(/\s+/g, ' ')
    .trim()
}
