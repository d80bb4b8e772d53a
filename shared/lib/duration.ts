/** If the longer end of a range is at most this many times the shorter end, then one duration is shown instead of the range. */
const SAME_RATIO_MAX = 1.5

const UNITS = [
  ['d', 86_400],
  ['h', 3_600],
  ['min', 60],
  ['s', 1],
] as const

/**
 * Formats a duration with its two largest units, such as `45 s`, `2 min 11 s` or `1 d 3 h`. The console and the command line use this one format.
 *
 * @param seconds Not negative; a fraction is cut off
 */
export function durationText(seconds: number): string {
  if (seconds < 1) return '< 1 s'
  const nth = UNITS.findIndex(([, length]) => seconds >= length)
  const [unit, length] = UNITS[nth] ?? ['s', 1]
  const [below, part] = UNITS[nth + 1] ?? ['s', 1]
  const rest = Math.floor((seconds % length) / part)
  return `${Math.floor(seconds / length)} ${unit}${rest > 0 ? ` ${rest} ${below}` : ''}`
}

/** Formats the range of an uncertain duration: `about 10 s`, or `4 s to 22 s` if the ends of the range differ much. */
export function durationRangeText(leastSeconds: number, mostSeconds: number): string {
  const [least, most] = [Math.max(1, Math.round(leastSeconds)), Math.max(1, Math.round(mostSeconds))]
  if (most <= least * SAME_RATIO_MAX) return `about ${durationText((least + most) / 2)}`
  return `${durationText(least)} to ${durationText(most)}`
}
