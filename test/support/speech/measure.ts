/** Quality figures: errors of a transcript, or of speaker turns, against the truth. */

/** Splits a text into comparable words. Numbers and hyphens are removed and titles are spelled out, because transcripts write these in several ways. */
function soundsOf(text: string): string[] {
  const plain = text
    .toLowerCase()
    .replace(/\bmr\.?(?=\s)/g, 'mister')
    .replace(/[^a-z' ]+/g, ' ')
  return plain.split(' ').filter((word) => word !== '')
}

/** Edit distance in words (substitutions, insertions, deletions), and the words of the first text. */
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

/** A segment of one speaker, in seconds. */
export interface Turn {
  readonly start: number
  readonly end: number
  readonly speaker: string
}

/**
 * Part of the spoken time with the wrong speaker, in steps of 10 ms, with the best one-to-one assignment of names. Time that only one of the
 * lists marks as speech is ignored.
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
 * The diarization error rate without a collar, in steps of 10 ms: missed, false and confused speech per second of speech. Overlapping speech
 * counts for both speakers. Names are assigned one to one, as well as possible.
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

/** Assigns names greedily: first the pair of names with the most common time. */
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
