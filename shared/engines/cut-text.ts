import type { Word } from '#schemas/kinds/transcription.ts'

/** Number of characters that are searched for the next word. If they do not contain the word, then the word counts as missing from the text. */
const LOOKAHEAD = 80

/**
 * Splits a transcript into one piece per group of words, such as the words of one segment or speaker. A piece begins at the first word of its group
 * that the text contains. Together the pieces are the whole text, including spaces and words of no group. If the text contains no word of a group,
 * then the piece of that group is empty.
 */
export function cutText(text: string, groups: readonly (readonly Word[])[]): string[] {
  const starts: number[] = []
  let cursor = 0
  for (const group of groups) {
    let start: number | undefined
    for (const { word } of group) {
      // Without this bound, each missing word would cause a search of the whole remaining text.
      const found = text.slice(cursor, cursor + LOOKAHEAD + word.length).indexOf(word)
      if (found < 0) continue
      start ??= cursor + found
      cursor += found + word.length
    }
    starts.push(start ?? cursor)
  }
  return groups.map((_, index) => text.slice(index === 0 ? 0 : starts[index], starts[index + 1]))
}
