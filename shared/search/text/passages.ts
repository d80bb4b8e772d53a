import type { Block, Snapshot } from '#shared/search/search.ts'
import { type BlockContext, contextsOf, isBoxTitle } from './contexts.ts'
import { type Sentence, sentencesOf } from './sentences.ts'

/** Maximum UTF-16 units of a passage. A passage consists of consecutive sentences under one heading. A longer sentence is a passage by itself. */
const PASSAGE_CHARS = 700
/** Maximum UTF-16 units of a sentence. A longer sentence is divided into equal parts, which are too long to be quoted in a report. */
const PART_CHARS_MAX = 2_000
/**
 * Maximum distance in UTF-16 units between the intended end of a part and the preceding space, where the sentence is then divided. If no space is
 * that near, then a word is divided.
 */
const SPACE_CHARS_MAX = 100
const PASSAGES_MAX = 600

export interface Passage {
  readonly heading: string
  readonly context: string
  readonly start: number
  readonly end: number
  readonly sentences: readonly Sentence[]
}

export function* passagesOf(snapshot: Pick<Snapshot, 'text' | 'blocks'>): Generator<Passage> {
  let heading = ''
  let open: Sentence[] = []
  let count = 0
  const contexts = contextsOf(snapshot)
  for (const [at, block] of snapshot.blocks.entries()) {
    const title = block.type === 'heading' ? snapshot.text.slice(block.start, block.end) : undefined
    if (title !== undefined && !isBoxTitle(title)) {
      if (open.length > 0) yield made(heading, open)
      open = []
      heading = title
    }
    for (const sentence of sentencesIn(snapshot, block, contexts[at])) {
      const [first] = open
      // A line of code stays in the passage of the sentence before it, which introduces the code. Only other sentences begin a new passage.
      if (first && !sentence.isCode && sentence.end - first.start > PASSAGE_CHARS) {
        yield made(heading, open)
        open = []
        if (++count >= PASSAGES_MAX) return
      }
      open.push(sentence)
    }
  }
  if (open.length > 0) yield made(heading, open)
}

function sentencesIn(snapshot: Pick<Snapshot, 'text'>, block: Block, context: BlockContext | undefined): Sentence[] {
  const { isLabel = false, spans = [] } = context ?? {}
  const more = { ...(isLabel && { isLabel }), ...(spans.length > 0 && { contexts: spans }) }
  return sentencesOf(snapshot, block)
    .flatMap(partsOf)
    .map((sentence) => ({ ...sentence, ...more }))
}

function partsOf(whole: Sentence): Sentence[] {
  const count = Math.ceil(whole.text.length / PART_CHARS_MAX)
  if (count <= 1) return [whole]
  const parts: Sentence[] = []
  let from = 0
  for (let at = 1; at <= count; at++) {
    const to = at === count ? whole.text.length : partEnd(whole.text, Math.round((whole.text.length * at) / count))
    const text = whole.text.slice(from, to).trimEnd()
    parts.push({ start: whole.start + from, end: whole.start + from + text.length, text })
    from = whole.text[to] === ' ' ? to + 1 : to
  }
  return parts
}

function partEnd(text: string, middle: number): number {
  const space = text.lastIndexOf(' ', middle)
  if (space > middle - SPACE_CHARS_MAX) return space
  return (text.charCodeAt(middle) & 0xfc00) === 0xdc00 ? middle - 1 : middle
}

function made(heading: string, sentences: readonly Sentence[]): Passage {
  const start = sentences[0]?.start ?? 0
  const before = sentences.flatMap(({ contexts = [] }) => contexts).filter((span) => span.start < start)
  const context = [...new Map(before.map((span) => [span.start, span.text])).values()].join('\n')
  return { heading, context, sentences, start, end: sentences.at(-1)?.end ?? 0 }
}
