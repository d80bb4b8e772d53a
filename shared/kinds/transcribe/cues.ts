import type { TranscriptSegment, Word } from '#schemas/kinds/transcription.ts'
import { runNowOrYielding } from '#shared/lib/yielding.ts'
import { canBreak, columnsBetween, LINE_COLUMNS_MAX, linesOf, type Token, tokensOf } from './cue-text.ts'

/*
 * Subtitles (docs/reference/compatibility.md, Transcripts). Each segment of the transcript becomes one or more cues:
 *
 * 1. A cue has at most two lines of 42 columns. If the times of words are known, then a cue lasts at most seven seconds.
 * 2. A cue ends at the possible place with the highest score. The end of a sentence is best, then the end of a clause or a pause, then the place
 *    before a conjunction. A cue rarely ends after an article and never inside a number. Cues of one segment have similar lengths.
 * 3. A cue begins with its first word. The end of a cue is extended until the text can be read, but not into the next cue.
 *
 * If the times of words are unknown, then the duration of a segment is divided in proportion to the widths of the words.
 */

const CUE_SECONDS_MAX = 7
const CUE_SECONDS_MIN = 0.8
const COLUMNS_PER_SECOND_MAX = 20
const LINGER_SECONDS_MAX = 2
const PAUSE_SECONDS = 0.35
const PAUSE_SCORE = 50
/** Silence within a segment after which a new cue begins, in seconds. */
const SILENCE_SECONDS = 2
/** Cost of each column by which the length of a cue differs from an even division of the text, in points of the score. */
const UNEVEN_COST = 1.2
const CUE_COLUMNS = 76
/**
 * Maximum number of characters between two consecutive words of the engine in the text, for spaces and punctuation. If the next match is farther
 * away, then it belongs to a later occurrence of the same word. The word is then skipped.
 */
const GAP_CHARS_MAX = 4
/** Maximum characters of a segment that is divided into cues: about an hour of speech. Dividing a longer segment would block the event loop. */
const DIVIDED_CHARS_MAX = 64 * 1024

interface Cue {
  readonly start: number
  readonly end: number
  readonly lines: readonly string[]
}

/**
 * Encodes SubRip subtitles: numbered cues, decimal commas, a blank line after each cue. The result is empty if there is no speech. Long transcripts
 * are encoded with event-loop yields.
 */
export function encodeSrt(segments: readonly TranscriptSegment[], language = ''): string | Promise<string> {
  return runNowOrYielding(written(segments, language, (cue, index) => `${index + 1}\n${cueIn(cue, ',')}`))
}

/** Encodes WebVTT subtitles: a header, cues without numbers, decimal points. Long transcripts are encoded with event-loop yields. */
export function encodeVtt(segments: readonly TranscriptSegment[], language = ''): string | Promise<string> {
  return runNowOrYielding(written(segments, language, (cue) => cueIn(cue, '.'), 'WEBVTT\n\n'))
}

function* written(
  segments: readonly TranscriptSegment[],
  language: string,
  write: (cue: Cue, index: number) => string,
  head = '',
): Generator<undefined, string> {
  const cues: Cue[] = []
  for (const segment of segments) {
    cues.push(...divide(segment, cueText(segment.text), language))
    yield
  }
  let text = head
  for (const [index, cue] of cues.entries()) {
    text += write(readable(cue, cues[index + 1]), index)
    yield
  }
  return text
}

function cueIn({ start, end, lines }: Cue, point: ',' | '.'): string {
  return `${time(start, point)} --> ${time(end, point)}\n${lines.join('\n')}\n\n`
}

/** Removes blank lines, which would end the cue, and arrows, which players would parse as a timing line. */
function cueText(text: string): string {
  return text
    .trim()
    .replace(/\s*[\r\n\u2028\u2029]\s*/g, ' ')
    .replace(/-{2,}>/g, '->')
}

interface Timed {
  readonly tokens: readonly Token[]
  readonly starts: readonly number[]
  readonly ends: readonly number[]
  /** True if the engine reported the times of words. False if the duration of the segment was divided in proportion to the text. */
  readonly isTimed: boolean
}

function divide(segment: TranscriptSegment, text: string, language: string): Cue[] {
  if (text === '') return []
  if (text.length > DIVIDED_CHARS_MAX) return [{ start: segment.start, end: segment.end, lines: [text] }]
  const timed = timedOf(tokensOf(text, language), text, segment)
  const { tokens, starts, ends, isTimed } = timed
  const cues: Cue[] = []
  for (let from = 0; from < tokens.length; ) {
    const to = endOf(timed, from)
    const start = starts[from] as number
    const last = ends[to - 1] as number
    // The last cue of a segment ends with the segment. If the segment ends much later than its last word, then the time in between is
    // silence, and the cue ends with the word.
    const until = to === tokens.length && segment.end <= last + LINGER_SECONDS_MAX ? Math.max(last, segment.end) : last
    const end = isTimed ? Math.min(until, start + CUE_SECONDS_MAX) : last
    cues.push({ start, end, lines: linesOf(tokens, from, to) ?? [] })
    from = to
  }
  return cues
}

function endOf(timed: Timed, from: number): number {
  const { tokens, starts, ends } = timed
  const reach = reachOf(timed, from)
  if (reach === tokens.length) return reach
  // Only the next {@link CUE_COLUMNS} columns are measured. Text after them has no influence on this cue.
  const rest = columnsBetween(tokens, from, Math.min(tokens.length, from + CUE_COLUMNS))
  const even = rest / Math.max(2, Math.ceil(rest / CUE_COLUMNS))
  let best = { to: reach, score: Number.NEGATIVE_INFINITY }
  let columns = 0
  for (let to = from + 1; to <= reach; to++) {
    const { columns: own, isSpaced, endScore } = tokens[to - 1] as Token
    columns += own + (isSpaced ? 1 : 0)
    const pause = (starts[to] ?? 0) - (ends[to - 1] as number) >= PAUSE_SECONDS ? PAUSE_SCORE : 0
    const score = endScore + pause - UNEVEN_COST * Math.abs(columns - even)
    if (score >= best.score) best = { to, score }
  }
  return best.to
}

/** Returns the latest possible end of a cue, which has at most two lines and seven seconds, no long silence, and at least one token. */
function reachOf({ tokens, starts, ends, isTimed }: Timed, from: number): number {
  const start = starts[from] as number
  let columns = 0
  let to = from
  while (to < tokens.length) {
    const { columns: own, isSpaced } = tokens[to] as Token
    columns += own + (isSpaced && to > from ? 1 : 0)
    const silence = to > from ? (starts[to] as number) - (ends[to - 1] as number) : 0
    const isTooLong = isTimed && ((ends[to] as number) - start > CUE_SECONDS_MAX || silence > SILENCE_SECONDS)
    if (to > from && (isTooLong || (columns > LINE_COLUMNS_MAX && !canBreak(tokens, from, to + 1)))) break
    to += 1
  }
  return to
}

/**
 * Determines the times of each token from the words of the segment. If the engine reported no words, then the duration is divided in proportion to
 * the widths.
 */
function timedOf(tokens: readonly Token[], text: string, { start, end, words }: TranscriptSegment): Timed {
  const found = words && words.length > 0 ? located(words, text) : []
  return found.length === 0 ? inProportion(tokens, start, end) : byWords(tokens, found)
}

function byWords(tokens: readonly Token[], found: readonly Located[]): Timed {
  const [starts, ends]: [number[], number[]] = [[], []]
  let at = 0
  for (const token of tokens) {
    const until = token.at + token.text.length
    while (at + 1 < found.length && (found[at] as Located).until <= token.at) at += 1
    starts.push((found[at] as Located).start)
    while (at + 1 < found.length && (found[at + 1] as Located).from < until) at += 1
    ends.push((found[at] as Located).end)
  }
  return { tokens, starts, ends, isTimed: true }
}

interface Located {
  readonly from: number
  readonly until: number
  readonly start: number
  readonly end: number
}

/** Finds the engine's words in the text, in order. Words that do not occur are skipped. Times never decrease. */
function located(words: readonly Word[], text: string): Located[] {
  const found: Located[] = []
  let from = 0
  let latest = 0
  let skipped = 0
  for (const { word, start, end } of words) {
    const bare = word.trim()
    const near = text.slice(from, from + skipped + bare.length + GAP_CHARS_MAX)
    const place = bare === '' ? -1 : near.indexOf(bare)
    if (place < 0) {
      skipped += bare.length + 1
      continue
    }
    const at = from + place
    skipped = 0
    from = at + bare.length
    const begins = Math.max(latest, start)
    latest = Math.max(begins, end)
    found.push({ from: at, until: from, start: begins, end: latest })
  }
  return found
}

function inProportion(tokens: readonly Token[], start: number, end: number): Timed {
  const all = tokens.reduce((sum, { columns }) => sum + columns, 0)
  const [starts, ends]: [number[], number[]] = [[], []]
  let before = 0
  for (const { columns } of tokens) {
    starts.push(start + ((end - start) * before) / all)
    before += columns
    ends.push(start + ((end - start) * before) / all)
  }
  return { tokens, starts, ends, isTimed: false }
}

function readable(cue: Cue, next: Cue | undefined): Cue {
  const columns = cue.lines.reduce((sum, line) => sum + line.length, 0)
  const wanted = Math.max(CUE_SECONDS_MIN, columns / COLUMNS_PER_SECOND_MAX)
  const longest = Math.min(cue.start + Math.min(wanted, CUE_SECONDS_MAX), cue.end + LINGER_SECONDS_MAX)
  return { ...cue, end: Math.max(cue.end, Math.min(longest, next?.start ?? longest)) }
}

function time(seconds: number, point: ',' | '.'): string {
  const ms = Math.round(seconds * 1_000)
  const two = (value: number) => String(Math.floor(value)).padStart(2, '0')
  const clock = `${two(ms / 3_600_000)}:${two((ms / 60_000) % 60)}:${two((ms / 1_000) % 60)}`
  return `${clock}${point}${String(ms % 1_000).padStart(3, '0')}`
}
