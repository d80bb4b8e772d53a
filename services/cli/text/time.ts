import { usageError } from '#services/cli/failure.ts'

const UNIT_SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3_600, d: 86_400 }

/** A duration such as `90`, `90s`, `15m`, `2h` or `1d`, in seconds. @throws CommandError that names the option */
export function secondsOf(option: string, text: string): number {
  const [, digits, unit = 's'] = /^(\d{1,9})([smhd])?$/.exec(text) ?? []
  if (digits === undefined) {
    throw usageError(`--${option} must be a duration such as 90s, 15m, 2h or 1d; got '${text}'.`)
  }
  return Number(digits) * (UNIT_SECONDS[unit] ?? 1)
}

/**
 * A point in time in Unix seconds: an ISO 8601 date and time, Unix seconds, or a duration relative to now.
 *
 * @param sign 1: the duration counts from now; -1: it counts back from now.
 * @throws CommandError that names the option
 */
export function timeOf(option: string, text: string, nowMs: number, sign: 1 | -1): number {
  if (/^\d{10,11}$/.test(text)) return Number(text)
  if (/^\d+[smhd]$/.test(text)) return Math.floor(nowMs / 1_000) + sign * secondsOf(option, text)
  const ms = /^\d{4}-\d\d-\d\d/.test(text) ? Date.parse(text) : Number.NaN
  if (Number.isFinite(ms)) return Math.floor(ms / 1_000)
  throw usageError(
    `--${option} must be a time such as 2030-01-31T08:00:00Z, Unix seconds, or a duration such as 15m; got '${text}'.`,
  )
}
