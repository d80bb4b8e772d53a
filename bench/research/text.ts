/*
 * Reads the text of a document, in which quotes and facts are searched. The code deliberately differs from the reader of the product,
 * because a defect in a shared reader would stay unnoticed.
 */

const HIDDEN = /<!--[\s\S]*?-->|<(script|style|template)\b[\s\S]*?<\/\1\s*>/gi
/** HTML elements inside a line of text. Their tags do not separate words, unlike those of blocks such as `<p>`. */
const INLINE =
  /^(?:a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|mark|q|s|samp|small|span|strong|sub|sup|time|tt|u|var)$/i
const TAG = /<\/?([a-z][a-z0-9]*)\b[^>]*>|<[!?][^>]*>/gi
const ENTITY = /&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,8}));/gi
/** The named entities that occur in the corpus. */
const NAMED: Readonly<Record<string, string>> = {
  amp: '&',
  apos: "'",
  copy: '©',
  gt: '>',
  hellip: '…',
  laquo: '«',
  ldquo: '“',
  lsquo: '‘',
  lt: '<',
  mdash: '—',
  middot: '·',
  nbsp: ' ',
  ndash: '–',
  quot: '"',
  raquo: '»',
  rdquo: '”',
  rsquo: '’',
}
const CODE_POINT_MAX = 0x10ffff

export function textOf(name: string, content: string): string {
  if (!name.endsWith('.html')) return spaced(content)
  const shown = content.replace(HIDDEN, ' ').replace(TAG, (_, tag: string | undefined) => {
    return tag && INLINE.test(tag) ? '' : '\n'
  })
  return spaced(shown.replace(ENTITY, decode))
}

export function spaced(text: string): string {
  return text.replace(/\s+/g, ' ').trim()
}

function decode(entity: string, decimal?: string, hex?: string, name?: string): string {
  if (name !== undefined) return NAMED[name] ?? entity
  const point = decimal === undefined ? Number.parseInt(hex ?? '', 16) : Number(decimal)
  return point <= CODE_POINT_MAX ? String.fromCodePoint(point) : entity
}
