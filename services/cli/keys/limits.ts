import type { Values } from '#services/cli/command.ts'
import { usageError } from '#services/cli/failure.ts'
import type { Limits } from '#shared/keys/project.ts'

/** The limits by their options. */
const OPTIONS = {
  'requests-per-minute': 'requests_per_minute',
  'tokens-per-minute': 'tokens_per_minute',
  running: 'running',
  queued: 'queued',
  scheduled: 'scheduled',
  budget: 'budget_usd_per_month',
} as const satisfies Record<string, keyof Limits>

const COUNT_MAX = 1_000_000_000_000
/** Takes a limit away, so that the setting holds. */
const DEFAULT = 'default'

/** For `parseArgs`. */
export const LIMIT_OPTIONS = Object.fromEntries(Object.keys(OPTIONS).map((name) => [name, { type: 'string' as const }]))

/** For `--help`. */
export const LIMIT_HELP = `  --requests-per-minute N, --tokens-per-minute N, --running N, --queued N, --scheduled N, --budget USD
                    what it may use in the whole fleet: calls, tokens in and out, calls and jobs that run at once, jobs
                    that wait, jobs that wait for their time, cost in a month of UTC. 0: nothing; default: the setting`

/**
 * The limits after what the options say of them; undefined where they say nothing.
 *
 * @param before Those there are.
 * @throws CommandError for what is no number
 */
export function limitsOf(values: Values, before: Limits = {}): Limits | undefined {
  const limits: Partial<Record<keyof Limits, number>> = { ...before }
  let isAsked = false
  for (const [option, field] of Object.entries(OPTIONS)) {
    const text = values.text(option)
    if (text === undefined) continue
    isAsked = true
    if (text === DEFAULT) delete limits[field]
    else limits[field] = option === 'budget' ? amountOf(text) : values.count(option, 0, COUNT_MAX)
  }
  return isAsked ? (limits as Limits) : undefined
}

/** Limits as a cell of a table. */
export function limitText(limits: Limits = {}): string {
  const shown = Object.entries(OPTIONS).flatMap(([option, field]) => {
    const value = limits[field]
    return value === undefined ? [] : `${option} ${value}`
  })
  return shown.join(', ')
}

function amountOf(text: string): number {
  if (/^\d{1,9}(\.\d{1,6})?$/.test(text)) return Number(text)
  throw usageError(`--budget ${text}: give an amount such as 25 or 12.50, in US dollars a month, or default.`)
}
