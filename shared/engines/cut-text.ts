import type { Word } from '#schemas/kinds/transcription.ts'

/** Maximum characters between a word and the next word. A match farther away is another occurrence of the word. */
const LOOKAHEAD = 80

/**
 * Splits a text at the first word of each group. The pieces contain the whole text, including spaces and characters that belong to no word. If the
 * text contains no word of a group, then the piece of that group is empty.
 */
export function cutText(text: string, groups: readonly (readonly Word[])[]): string[] {
  const starts: number[] = []
  let cursor = 0
  for (const group of groups) {
    let start: number | undefined
    for (const { word } of group) {
      // The search ends after {@link LOOKAHEAD} characters. Without this bound, each missing word would cause a search
      // of the whole remaining text.
      const found = text.slice(cursor, cursor + LOOKAHEAD + word.length).indexOf(word)
      if (found < 0) continue
      start ??= cursor + found
      cursor += found + word.length
    }
    starts.push(start ?? cursor)
  }
  return groups.map((_, index) => text.slice(index === 0 ? 0 : starts[index], starts[index + 1]))
}
