import type { TokenLogprob, TranscriptSegment, Word } from '#schemas/transcription/transcription.ts'
import { cutText } from '#shared/engines/cut-text.ts'

/** Lenient readers for segments, words and log probabilities: missing numbers are 0. */

/** Pause between two words that ends a segment, in seconds. */
const PAUSE_SECONDS = 1
const WORDS_MAX = 40

/** The segments of an answer, with their words if present. The caller assigns the ids. */
export function readSegments(value: unknown): TranscriptSegment[] {
  if (!Array.isArray(value)) return []
  return value.filter(isObject).map((segment) => {
    const words = readWords(segment.words)
    return {
      id: 0,
      seek: Math.round(numberOf(segment.seek)),
      start: numberOf(segment.start),
      end: numberOf(segment.end),
      text: typeof segment.text === 'string' ? segment.text : '',
      tokens: Array.isArray(segment.tokens) ? segment.tokens.filter(Number.isInteger) : [],
      temperature: numberOf(segment.temperature),
      avg_logprob: numberOf(segment.avg_logprob),
      compression_ratio: numberOf(segment.compression_ratio),
      no_speech_prob: numberOf(segment.no_speech_prob),
      ...(words.length > 0 && { words }),
    }
  })
}

export function readWords(value: unknown): Word[] {
  if (!Array.isArray(value)) return []
  return value
    .filter(isObject)
    .map(({ word, start, end }) => ({ word: String(word ?? '').trim(), start: numberOf(start), end: numberOf(end) }))
    .filter(({ word }) => word !== '')
}

/** Log probabilities in OpenAI's format; undefined if there are none. */
export function readLogprobs(value: unknown): TokenLogprob[] | undefined {
  if (!Array.isArray(value) || value.length === 0) return undefined
  return value.filter(isObject).map(({ token, logprob, bytes }) => ({
    token: String(token ?? ''),
    logprob: numberOf(logprob),
    bytes: Array.isArray(bytes) ? bytes.filter(Number.isInteger) : null,
  }))
}

/**
 * Assigns words to segments, each to the segment that contains its middle, or else to the last segment that began before it. Segments with
 * words of their own keep them.
 */
export function withWords(segments: readonly TranscriptSegment[], words: readonly Word[]): TranscriptSegment[] {
  if (words.length === 0 || segments.some((segment) => segment.words)) return [...segments]
  const filled = segments.map((segment) => ({ ...segment, words: [] as Word[] }))
  let at = 0
  for (const word of words) {
    const middle = (word.start + word.end) / 2
    while (at + 1 < filled.length && (filled[at + 1]?.start ?? 0) <= middle) at += 1
    filled[at]?.words.push(word)
  }
  return filled
}

/** Creates segments for a text whose upstream sent only words: split after sentences, at pauses, or after {@link WORDS_MAX} words. */
export function cutByWords(text: string, words: readonly Word[]): TranscriptSegment[] {
  const groups: Word[][] = []
  for (const word of words) {
    const group = groups.at(-1)
    if (group && !isEndOfPiece(group, word)) group.push(word)
    else groups.push([word])
  }
  const texts = cutText(text, groups)
  return groups.map((group, index) => ({
    ...NO_FIGURES,
    start: group[0]?.start ?? 0,
    end: group.at(-1)?.end ?? 0,
    text: texts[index] ?? '',
    words: group,
  }))
}

function isEndOfPiece(group: readonly Word[], next: Word): boolean {
  const last = group.at(-1)
  if (!last) return false
  return /[.?!。？！]$/.test(last.word) || next.start - last.end > PAUSE_SECONDS || group.length >= WORDS_MAX
}

/** Fields of a segment that no model created. */
export const NO_FIGURES = {
  id: 0,
  seek: 0,
  tokens: [] as number[],
  temperature: 0,
  avg_logprob: 0,
  compression_ratio: 0,
  no_speech_prob: 0,
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null
}

function numberOf(value: unknown): number {
  const number = Number(value ?? 0)
  return Number.isFinite(number) ? number : 0
}
