import type { Word } from '#schemas/transcription/transcription.ts'

/** Characters between a word and the next one: further on it is another occurrence. */
const LOOKAHEAD = 80

/**
 * Cuts a text where groups of its words begin. All of the text is kept, blanks and signs that no word brings included;
 * a group whose words the text does not hold gets nothing.
 */
export function cutText(text: string, groups: readonly (readonly Word[])[]): string[] {
  const starts: number[] = []
  let cursor = 0
  for (const group of groups) {
    let start: number | undefined
    for (const { word } of group) {
      // All of a long text would be searched for each word that it does not hold.
      const found = text.slice(cursor, cursor + LOOKAHEAD + word.length).indexOf(word)
      if (found < 0) continue
      start ??= cursor + found
      cursor += found + word.length
    }
    starts.push(start ?? cursor)
  }
  return groups.map((_, index) => text.slice(index === 0 ? 0 : starts[index], starts[index + 1]))
}
