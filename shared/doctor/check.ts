import { setTimeout as delay } from 'node:timers/promises'
import type { Config } from '#shared/config/config.ts'

/** What a check found out about one thing. */
export interface Finding {
  /** What was checked, in one or two words. */
  readonly check: string
  readonly status: 'ok' | 'skip' | 'warn' | 'fail'
  readonly message: string
  /** How to mend it; undefined where nothing is wrong. */
  readonly fix?: string
  /** Sentences that say more. */
  readonly details?: readonly string[]
}

/** Looks at one thing and changes nothing. What it throws is a failure. */
export interface Check {
  readonly name: string
  /** What to do when it throws. */
  readonly fix: string
  /** Longest time it may take; default: 20 s. */
  readonly msMax?: number
  run(config: Config): Promise<readonly Finding[]>
}

/** Long enough for most checks: connections give up after 5 s. */
const CHECK_MS_MAX = 20_000

/** Runs a check to its end, whatever happens to it. */
export async function runCheck(check: Check, config: Config): Promise<readonly Finding[]> {
  const { name, fix, msMax = CHECK_MS_MAX } = check
  const stop = new AbortController()
  const late = delay(msMax, undefined, { signal: stop.signal }).then(() => {
    throw new Error(`no answer within ${msMax / 1_000} s`)
  })
  try {
    return await Promise.race([check.run(config), late])
  } catch (error) {
    return [failed(name, reasonOf(error), fixOf(error) ?? fix)]
  } finally {
    stop.abort()
    late.catch(() => undefined)
  }
}

export function ok(check: string, message: string): Finding {
  return { check, status: 'ok', message }
}

/** Not there, and nothing needs it: the message says why. */
export function skipped(check: string, message: string): Finding {
  return { check, status: 'skip', message }
}

export function warned(check: string, message: string, fix: string): Finding {
  return { check, status: 'warn', message, fix }
}

export function failed(check: string, message: string, fix: string): Finding {
  return { check, status: 'fail', message, fix }
}

/** The remedy that an adapter gave with the failure, or with its cause. */
function fixOf(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined
  const { fix } = error as { fix?: unknown }
  return typeof fix === 'string' ? fix : fixOf(error.cause)
}

/** An error in one line, with the first cause that says more. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  // Several addresses were tried: the errors are inside, and the message is empty.
  if (error instanceof AggregateError && error.errors.length > 0) return reasonOf(error.errors[0])
  const cause = error.cause === undefined ? '' : reasonOf(error.cause)
  // The words around a cause with a remedy are for callers.
  if (fixOf(error.cause) !== undefined) return cause
  return cause && !error.message.includes(cause) ? `${error.message} (${cause})` : error.message
}
