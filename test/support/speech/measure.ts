/** Measures the quality of transcripts and of speaker recognition, compared with the correct result. */

/** Splits a text into comparable words. Numbers and hyphens are removed and titles are spelled out, because transcripts write these in several ways. */
function soundsOf(text: string): string[] {
  const plain = text
    .toLowerCase()
    .replace(/\bmr\.?(?=\s)/g, 'mister')
    .replace(/[^a-z' ]+/g, ' ')
  return plain.split(' ').filter((word) => word !== '')
}

/** Returns the number of wrong, missing and additional words in the second text, and the number of words in the first text. */
export function wordErrors(said: string, heard: string): { errors: number; words: number } {
  const [from, to] = [soundsOf(said), soundsOf(heard)]
  let row = Array.from({ length: to.length + 1 }, (_, index) => index)
  for (const [at, word] of from.entries()) {
    const next = [at + 1]
    for (const [index, other] of to.entries()) {
      const changed = (row[index] ?? 0) + (word === other ? 0 : 1)
      next.push(Math.min(changed, (row[index + 1] ?? 0) + 1, (next[index] ?? 0) + 1))
    }
    row = next
  }
  return { errors: row.at(-1) ?? 0, words: from.length }
}

/** A time segment in which one speaker speaks, in seconds. */
export interface Turn {
  readonly start: number
  readonly end: number
  readonly speaker: string
}

/**
 * Fraction of the spoken time that was assigned to the wrong speaker, measured in steps of 10 ms. Names are matched one to one, as well as
 * possible. Time that only one of the lists marks as speech is ignored.
 */
export function speakerError(truth: readonly Turn[], found: readonly Turn[]): number {
  const shared = new Map<string, number>()
  let total = 0
  for (let at = 0; at < (truth.at(-1)?.end ?? 0); at += 0.01) {
    const [real, heard] = [truth, found].map(
      (turns) => turns.find(({ start, end }) => start <= at && at < end)?.speaker,
    )
    if (real === undefined || heard === undefined) continue
    total += 1
    const pair = `${real}\n${heard}`
    shared.set(pair, (shared.get(pair) ?? 0) + 1)
  }
  return 1 - matched(shared) / total
}

/**
 * Diarization error rate (missed, false and confused speech per second of speech), measured in steps of 10 ms. Errors near the borders of
 * segments count, too (no collar). Overlapping speech counts for both speakers. Names are matched one to one, as well as possible.
 */
export function diarizationError(truth: readonly Turn[], found: readonly Turn[]): number {
  const shared = new Map<string, number>()
  const end = Math.max(...[...truth, ...found].map((turn) => turn.end))
  let [spoken, wrong] = [0, 0]
  for (let at = 0; at < end; at += 0.01) {
    const [real, heard] = [truth, found].map((turns) => turns.filter((turn) => turn.start <= at && at < turn.end)) as [
      Turn[],
      Turn[],
    ]
    spoken += real.length
    wrong += Math.max(real.length, heard.length)
    for (const one of real) {
      for (const other of heard) {
        const pair = `${one.speaker}\n${other.speaker}`
        shared.set(pair, (shared.get(pair) ?? 0) + 1)
      }
    }
  }
  return (wrong - matched(shared)) / spoken
}

/**
 * Matches each correct speaker with one found speaker, beginning with the pair that overlaps for the longest time. Returns the total overlap of the
 * pairs.
 */
function matched(shared: ReadonlyMap<string, number>): number {
  const taken = new Set<string>()
  let sum = 0
  for (const [pair, count] of [...shared].sort(([, a], [, b]) => b - a)) {
    const [real, heard] = pair.split('\n')
    if (taken.has(`real ${real}`) || taken.has(`heard ${heard}`)) continue
    taken.add(`real ${real}`).add(`heard ${heard}`)
    sum += count
  }
  return sum
}
