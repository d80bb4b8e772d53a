/*
 * Splits the Jargon File, one text of 1.7 MB, at its headings. The result has one document per chapter and appendix, and one per 25 entries
 * of the lexicon. The result depends only on the text.
 */

const ENTRIES = 25
const CHAPTER = /^(?:Chapter|Appendix)\s\w+\.\s(.+)$/
const PART = /^ {10,}Part\sI+\.\s/
const LEXICON_TITLE = /^ {10,}Part\sII\.\s/
/** Matches the first line of an entry, which starts with the term, such as `:foo: /foo/`. */
const ENTRY = /^ {3}:([^:\s][^:]*):/
/** Matches the line with a letter of the alphabet, which begins a list of the terms with that letter. */
const LETTER = /^ {2}\S$/

export function splitJargon(text: string): Map<string, string> {
  const lines = text.split('\n')
  const lexicon = lines.findIndex((line) => LEXICON_TITLE.test(line))
  const appendices = lines.findIndex((line, at) => at > lexicon && PART.test(line))
  if (lexicon < 0 || appendices < 0)
    throw new Error('the Jargon File has no lexicon and appendices; expected another version')
  return new Map([
    ...chaptersOf(lines.slice(0, lexicon)),
    ...lexiconOf(lines.slice(lexicon, appendices)),
    ...chaptersOf(lines.slice(appendices)),
  ])
}

function chaptersOf(lines: readonly string[]): [string, string][] {
  return cutAt(lines, (line) => CHAPTER.test(line)).map((chapter): [string, string] => {
    const title = CHAPTER.exec(chapter[0] ?? '')?.[1] ?? ''
    const slug = title.toLowerCase().replace(/[^a-z]+/g, '-')
    return [`jargon-${slug}.txt`, chapter.join('\n')]
  })
}

function lexiconOf(lines: readonly string[]): [string, string][] {
  const cuts = cutAt(lines, (line) => ENTRY.test(line) || LETTER.test(line))
  const entries = cuts.filter(([first]) => ENTRY.test(first ?? ''))
  return Array.from({ length: Math.ceil(entries.length / ENTRIES) }, (_, nth): [string, string] => {
    const some = entries.slice(nth * ENTRIES, (nth + 1) * ENTRIES)
    const number = String(nth + 1).padStart(2, '0')
    return [`jargon-lexicon-${number}.txt`, some.flat().join('\n')]
  })
}

function cutAt(lines: readonly string[], begins: (line: string) => boolean): string[][] {
  const cuts = lines.flatMap((line, at) => (begins(line) ? [at] : []))
  return cuts.map((from, nth) => lines.slice(from, cuts[nth + 1]))
}
