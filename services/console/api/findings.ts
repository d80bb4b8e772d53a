import type { Finding } from './client.ts'
import { ageText, clockText, dayText, serviceNow } from './clock.ts'

const DAY_SECONDS = 86_400

/** Returns the query with which the screen Requests lists exactly the failed requests that a finding counts. Empty if it counts none. */
export function failedRequestsOf({ model, error_codes, window_start }: Finding): string {
  if (!model && error_codes.length === 0) return ''
  return new URLSearchParams({
    ...(model && { model }),
    ...(error_codes.length > 0 ? { error_code: error_codes.join(',') } : { status: '5xx' }),
    ...(window_start !== null && { since: String(window_start) }),
  }).toString()
}

/** The counts of a finding and its start, such as `78 of 92 calls failed in the last hour, mostly upstream_error; first failure 14:02 (38 min ago)`. */
export function factsOf({ summary, since }: Finding): string {
  const start = since === null ? '' : `first failure ${sinceText(since)} (${ageText(since)})`
  return capitalized([summary, start].filter(Boolean).join('; '))
}

/** Time of today, or an earlier day in UTC. */
function sinceText(seconds: number): string {
  const isToday = serviceNow() - seconds < DAY_SECONDS
  return isToday ? clockText(seconds) : dayText(new Date(seconds * 1_000).toISOString().slice(0, 10))
}

export function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1)
}
