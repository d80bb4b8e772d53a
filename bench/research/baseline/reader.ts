import { textOf } from '../text.ts'

export interface Passage {
  readonly document: string
  readonly title: string
  readonly heading: string
  readonly sentences: readonly string[]
}

const PASSAGE_CHARS = 700
const HEADING = /<h[1-6]\b[^>]*>([\s\S]*?)<\/h[1-6]\s*>/gi
const BLOCK_END = /<\/(?:p|div|li|dd|dt|td|tr|table|blockquote|pre)\s*>/gi
const CODE = /<pre\b[\s\S]*?<\/pre\s*>/gi
const TITLE = /<title\b[^>]*>([\s\S]*?)<\/title\s*>/i
/** Marks for the start of a heading and the end of a block. No document contains these characters. */
const [HEADING_MARK, BLOCK_MARK] = ['\u0001', '\u0002']

const segmenter = new Intl.Segmenter('en', { granularity: 'sentence' })

export function passagesIn(document: string, content: string): Passage[] {
  const isHtml = document.endsWith('.html')
  const title = isHtml ? textOf(document, TITLE.exec(content)?.[1] ?? '') : document
  const marked = isHtml
    ? content
        .replace(TITLE, '')
        .replace(CODE, BLOCK_MARK)
        .replace(HEADING, (_, text: string) => `${BLOCK_MARK}${HEADING_MARK}${text}${BLOCK_MARK}`)
        .replace(BLOCK_END, BLOCK_MARK)
    : content.replace(/\n\s*\n/g, BLOCK_MARK)
  const passages: { heading: string; sentences: string[]; chars: number }[] = []
  let heading = ''
  for (const block of marked.split(BLOCK_MARK)) {
    const text = textOf(document, block.replace(HEADING_MARK, ''))
    if (block.startsWith(HEADING_MARK)) heading = text
    else for (const sentence of sentencesOf(text)) add(passages, heading, sentence)
  }
  return passages.map(({ heading: own, sentences }) => ({ document, title, heading: own, sentences }))
}

function sentencesOf(text: string): string[] {
  return [...segmenter.segment(text)].map(({ segment }) => segment.trim()).filter((sentence) => sentence !== '')
}

function add(
  passages: { heading: string; sentences: string[]; chars: number }[],
  heading: string,
  sentence: string,
): void {
  const last = passages.at(-1)
  if (last && last.heading === heading && last.chars + sentence.length <= PASSAGE_CHARS) {
    last.sentences.push(sentence)
    last.chars += sentence.length
  } else passages.push({ heading, sentences: [sentence], chars: sentence.length })
}
