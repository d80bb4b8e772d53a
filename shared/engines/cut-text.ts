import type { Word } from '#schemas/transcription/transcription.ts'

/** Maximum characters between a word and the next one. A later match is another occurrence. */
const LOOKAHEAD = 80

/**
 * Splits a text at the first word of each group. The whole text is preserved, including spaces and characters of no word. If the text
 * contains no word of a group, then its piece is empty.
 */
export function cutText(text: string, groups: readonly (readonly Word[])[]): string[] {
  const starts: number[] = []
  let cursor = 0
  for (const group of groups) {
    let start: number | undefined
    for (const { word } of group) {
      // Bounded, because otherwise each missing word would cause a search of the whole remaining text.
      const found = text.slice(cursor, cursor + LOOKAHEAD + word.length).indexOf(word)
      if (found < 0) continue
      start ??= cursor + found
      cursor += found + word.length
    }
    starts.push(start ?? cursor)
  }
  return groups.map((_, index) => text.slice(index === 0 ? 0 : starts[index], starts[index + 1]))
}
