import type { Snapshot } from '#shared/search/search.ts'
import { type Sentence, sentencesOf } from './sentences.ts'

/** UTF-16 units of a passage: some paragraphs under one heading. A sentence that is longer is one by itself. */
const PASSAGE_CHARS = 700
/** Passages of one snapshot. */
const PASSAGES_MAX = 600

/** What is looked at together: sentences that follow each other under one heading. */
export interface Passage {
  /** The heading above it; empty before the first. */
  readonly heading: string
  readonly start: number
  readonly end: number
  readonly sentences: readonly Sentence[]
}

/** Passages of a snapshot in order. Yields them one by one, so that a long text can be taken in turns. */
export function* passagesOf(snapshot: Pick<Snapshot, 'text' | 'blocks'>): Generator<Passage> {
  let heading = ''
  let open: Sentence[] = []
  let count = 0
  for (const block of snapshot.blocks) {
    if (block.type === 'heading') {
      if (open.length > 0) yield made(heading, open)
      open = []
      heading = snapshot.text.slice(block.start, block.end)
    }
    for (const sentence of sentencesOf(snapshot, block)) {
      const [first] = open
      if (first && sentence.end - first.start > PASSAGE_CHARS) {
        yield made(heading, open)
        open = []
        if (++count >= PASSAGES_MAX) return
      }
      open.push(sentence)
    }
  }
  if (open.length > 0) yield made(heading, open)
}

function made(heading: string, sentences: readonly Sentence[]): Passage {
  return { heading, sentences, start: sentences[0]?.start ?? 0, end: sentences.at(-1)?.end ?? 0 }
}
