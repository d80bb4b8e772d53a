import { setTimeout as delay } from 'node:timers/promises'
import { coloured, type Output, plain } from '#services/cli/output.ts'
import type { Config } from '#shared/config.ts'

/** What a check found out about one thing. */
export interface Finding {
  /** What was checked, in one or two words. */
  readonly check: string
  readonly status: 'ok' | 'warn' | 'fail'
  readonly message: string
  /** How to mend it; undefined where nothing is wrong. */
  readonly fix?: string
}

/** Looks at one thing and changes nothing. What it throws is a failure. */
export interface Check {
  readonly name: string
  /** What to do when it throws. */
  readonly fix: string
  run(config: Config): Promise<readonly Finding[]>
}

/** No check takes longer: connections give up after 5 s. */
const CHECK_MS_MAX = 20_000

/** Runs a check to its end, whatever happens to it. */
export async function runCheck({ name, fix, run }: Check, config: Config): Promise<readonly Finding[]> {
  const stop = new AbortController()
  const late = delay(CHECK_MS_MAX, undefined, { signal: stop.signal }).then(() => {
    throw new Error(`no answer within ${CHECK_MS_MAX / 1_000} s`)
  })
  try {
    return await Promise.race([run(config), late])
  } catch (error) {
    return [failed(name, reasonOf(error), fix)]
  } finally {
    stop.abort()
    late.catch(() => undefined)
  }
}

export function ok(check: string, message: string): Finding {
  return { check, status: 'ok', message }
}

export function warned(check: string, message: string, fix: string): Finding {
  return { check, status: 'warn', message, fix }
}

export function failed(check: string, message: string, fix: string): Finding {
  return { check, status: 'fail', message, fix }
}

/** An error in one line, with the first cause that says more. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  // Several addresses were tried: the errors are inside, and the message is empty.
  if (error instanceof AggregateError && error.errors.length > 0) return reasonOf(error.errors[0])
  const cause = error.cause === undefined ? '' : reasonOf(error.cause)
  return cause && !error.message.includes(cause) ? `${error.message} (${cause})` : error.message
}

const LABELS = { ok: ['OK  ', 'green'], warn: ['WARN', 'yellow'], fail: ['FAIL', 'red'] } as const
const NAME_WIDTH = 9

/** One finding on a line, its fix on the next. */
export async function printFinding(out: Output, { check, status, message, fix }: Finding): Promise<void> {
  const [label, colour] = LABELS[status]
  const line = `${coloured(colour, label)}  ${check.padEnd(NAME_WIDTH)}  ${plain(message)}\n`
  await out.write(fix ? `${line}${' '.repeat(NAME_WIDTH + 8)}→ ${fix}\n` : line)
}
