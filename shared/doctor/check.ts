import { setTimeout as delay } from 'node:timers/promises'
import type { Config } from '#shared/config/config.ts'
import type { FailureCount } from '#shared/usage/comparison.ts'

/** Failures of a model from their start until now, at most 24 hours. */
export interface FailureTrend extends FailureCount {
  /** Whether the counts are lower bounds: an hour had more calls than were read, or the failures began before the first of the hours. */
  readonly isLowerBound: boolean
  readonly lastFailureAtMs: number
  readonly lastHour: FailureCount
  /** The hour before the last hour. Null if the failures began later. */
  readonly previousHour: FailureCount | null
  /** Clock hours (UTC) since the start, the oldest first. */
  readonly hours: readonly (FailureCount & { readonly atMs: number })[]
}

/** Number of failed requests of a project or with an error code. */
export interface RequestCount {
  readonly name: string
  readonly requests: number
}

export interface Finding {
  readonly check: string
  readonly status: 'ok' | 'skip' | 'warn' | 'fail'
  readonly message: string
  readonly remediation?: string
  readonly details?: readonly string[]
  /** Id of the model to which the finding refers. */
  readonly model?: string
  /** Error codes of the requests that the finding is about. Empty: all codes. */
  readonly errorCodes?: readonly string[]
  /** Only requests that ended since this time are counted, in ms since the epoch. */
  readonly windowFromMs?: number
  /** Short title of an alert, such as `m1 is failing`. */
  readonly title?: string
  /** Counts in one phrase, such as `78 of 92 calls failed in the last hour, mostly upstream_error`. */
  readonly summary?: string
  /** Cause in one sentence, which an alert shows below its title instead of the message. May be empty. */
  readonly cause?: string
  /** Failed requests of the window that an open circuit breaker refused. */
  readonly notSent?: number
  /** Start of the problem, in ms since the epoch. */
  readonly sinceMs?: number
  /** Calls of a failing model since the start of the problem. */
  readonly trend?: FailureTrend
  /** Affected projects and error codes with the numbers of their failed requests, the highest first. */
  readonly projects?: readonly RequestCount[]
  readonly errors?: readonly RequestCount[]
}

/** A read-only check of one dependency. If `run` throws, then the result is a finding with status `fail`. */
export interface Check {
  readonly name: string
  readonly remediation: string
  /** Timeout in ms. Default: 20,000. */
  readonly msMax?: number
  run(config: Config): Promise<readonly Finding[]>
}

/** Default timeout of a check, in ms. Connection attempts end after 5 s, so most checks take less. */
const CHECK_MS_MAX = 20_000

/** Runs a check with its timeout. Never rejects, because an error or a timeout becomes a finding with status `fail`. */
export async function runCheck(check: Check, config: Config): Promise<readonly Finding[]> {
  const { name, remediation, msMax = CHECK_MS_MAX } = check
  const stop = new AbortController()
  const late = delay(msMax, undefined, { signal: stop.signal }).then(() => {
    throw new Error(`no answer within ${msMax / 1_000} s`)
  })
  try {
    return await Promise.race([check.run(config), late])
  } catch (error) {
    return [failed(name, reasonOf(error), remediationOf(error) ?? remediation)]
  } finally {
    stop.abort()
    late.catch(() => undefined)
  }
}

export function ok(check: string, message: string): Finding {
  return { check, status: 'ok', message }
}

export function skipped(check: string, message: string): Finding {
  return { check, status: 'skip', message }
}

export function warned(check: string, message: string, remediation: string): Finding {
  return { check, status: 'warn', message, remediation }
}

export function failed(check: string, message: string, remediation: string): Finding {
  return { check, status: 'fail', message, remediation }
}

function remediationOf(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined
  const { remediation } = error as { remediation?: unknown }
  return typeof remediation === 'string' ? remediation : remediationOf(error.cause)
}

export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  // If connections to several addresses failed, then the outer message is empty, and the inner errors have the reasons.
  if (error instanceof AggregateError && error.errors.length > 0) return reasonOf(error.errors[0])
  const cause = error.cause === undefined ? '' : reasonOf(error.cause)
  // A cause with a remedy is written for operators, so it is sufficient. The outer message is written for API callers.
  if (remediationOf(error.cause) !== undefined) return cause
  return cause && !error.message.includes(cause) ? `${error.message} (${cause})` : error.message
}
