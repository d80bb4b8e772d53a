import type { Turn } from '../../test/support/speech/measure.ts'

/** Frames of this length are compared. */
const STEP_SECONDS = 0.01
/** Around each change of speaker nothing counts, as is usual (NIST): where exactly a word begins is anybody's guess. */
const COLLAR_SECONDS = 0.25

/** Time of a recording, in seconds. */
export interface DiarizationCount {
  readonly speech: number
  /** Speech that is nobody's. */
  readonly missed: number
  /** Silence that is somebody's. */
  readonly falseAlarm: number
  /** Speech that is somebody else's. */
  readonly confused: number
}

/**
 * Compares who speaks when with what was found.
 *
 * @param isNamed The names must be the same; otherwise they are matched one to one as they fit best.
 */
export function countDiarization(truth: readonly Turn[], found: readonly Turn[], isNamed: boolean): DiarizationCount {
  const frames = framesOf(truth, found)
  const name = isNamed ? (speaker: string) => speaker : matchNames(frames)
  let [speech, missed, falseAlarm, confused] = [0, 0, 0, 0]
  for (const { real, heard } of frames) {
    if (real !== undefined) speech += STEP_SECONDS
    if (real !== undefined && heard === undefined) missed += STEP_SECONDS
    if (real === undefined && heard !== undefined) falseAlarm += STEP_SECONDS
    if (real !== undefined && heard !== undefined && name(heard) !== real) confused += STEP_SECONDS
  }
  return { speech, missed, falseAlarm, confused }
}

/** The diarization error rate of several recordings: all that is wrong for each second of speech. */
export function errorRate(counts: readonly DiarizationCount[]): number {
  const sum = (of: (count: DiarizationCount) => number) => counts.reduce((total, count) => total + of(count), 0)
  return sum(({ missed, falseAlarm, confused }) => missed + falseAlarm + confused) / sum(({ speech }) => speech)
}

/** Part of the speech whose speaker is somebody else. */
export function confusionRate(counts: readonly DiarizationCount[]): number {
  const sum = (of: (count: DiarizationCount) => number) => counts.reduce((total, count) => total + of(count), 0)
  return sum(({ confused }) => confused) / sum(({ speech, missed }) => speech - missed)
}

interface Frame {
  readonly real: string | undefined
  readonly heard: string | undefined
}

function framesOf(truth: readonly Turn[], found: readonly Turn[]): Frame[] {
  const edges = truth.flatMap(({ start, end }) => [start, end])
  const frames: Frame[] = []
  for (let at = 0; at < (truth.at(-1)?.end ?? 0); at += STEP_SECONDS) {
    if (edges.some((edge) => Math.abs(edge - at) < COLLAR_SECONDS)) continue
    frames.push({ real: speakerAt(truth, at), heard: speakerAt(found, at) })
  }
  return frames
}

function speakerAt(turns: readonly Turn[], at: number): string | undefined {
  return turns.find(({ start, end }) => start <= at && at < end)?.speaker
}

/** The name of whoever is meant by each that was found: the pair with the most time first. */
function matchNames(frames: readonly Frame[]): (heard: string) => string | undefined {
  const shared = new Map<string, Map<string, number>>()
  for (const { real, heard } of frames) {
    if (real === undefined || heard === undefined) continue
    const own = shared.get(heard) ?? new Map<string, number>()
    shared.set(heard, own.set(real, (own.get(real) ?? 0) + 1))
  }
  const pairs = [...shared].flatMap(([heard, own]) => [...own].map(([real, count]) => ({ heard, real, count })))
  const names = new Map<string, string>()
  const taken = new Set<string>()
  for (const { heard, real } of pairs.sort((a, b) => b.count - a.count)) {
    if (names.has(heard) || taken.has(real)) continue
    names.set(heard, real)
    taken.add(real)
  }
  return (heard) => names.get(heard)
}
