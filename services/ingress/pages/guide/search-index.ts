export interface Section {
  /** Path with anchor, such as `/docs/guide/jobs#limits`. */
  readonly path: string
  /** Title of the page. */
  readonly page: string
  readonly heading: string
  /** Plain text with normalised white space. */
  readonly text: string
}

const HEADING = /<h[1-4] id="([^"]*)">([\s\S]*?)<\/h[1-4]>/

/**
 * The sections of a page, in page order.
 *
 * @param path Path of the page without an anchor.
 * @param body HTML of the page, as rendered by {@link https://marked.js.org marked} writes it.
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
