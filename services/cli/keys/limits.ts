import type { Values } from '#services/cli/command.ts'
import { usageError } from '#services/cli/failure.ts'
import type { Limits } from '#shared/keys/project.ts'

const OPTIONS = {
  'requests-per-minute': 'requests_per_minute',
  'tokens-per-minute': 'tokens_per_minute',
  running: 'running',
  queued: 'queued',
  scheduled: 'scheduled',
  budget: 'budget_usd_per_month',
} as const satisfies Record<string, keyof Limits>

const COUNT_MAX = 1_000_000_000_000
/** Removes a limit, so that the service's setting applies. */
const DEFAULT = 'default'

export const LIMIT_OPTIONS = Object.fromEntries(Object.keys(OPTIONS).map((name) => [name, { type: 'string' as const }]))

export const LIMIT_HELP = `  --requests-per-minute N  calls per minute
  --tokens-per-minute N    input and output tokens per minute
  --running N              calls and jobs in flight
  --queued N               queued jobs
  --scheduled N            jobs with a start time in the future
  --budget USD             cost per UTC month, in US dollars
Each limit applies to the whole fleet. 0 blocks everything; default removes the limit, so that the service's setting applies.`

/**
 * The new limits: `before` with the changes of the options, or undefined if no option sets a limit.
 *
 * @throws CommandError for an invalid number
 */
export function limitsOf(values: Values, before: Limits = {}): Limits | undefined {
  const limits: Partial<Record<keyof Limits, number>> = { ...before }
  let hasChanges = false
  for (const [option, field] of Object.entries(OPTIONS)) {
    const text = values.text(option)
    if (text === undefined) continue
    hasChanges = true
    if (text === DEFAULT) delete limits[field]
    else limits[field] = option === 'budget' ? amountOf(text) : values.count(option, 0, COUNT_MAX)
  }
  return hasChanges ? (limits as Limits) : undefined
}

export function limitText(limits: Limits = {}): string {
  const shown = Object.entries(OPTIONS).flatMap(([option, field]) => {
    const value = limits[field]
    return value === undefined ? [] : `${option} ${value}`
  })
  return shown.join(', ')
}

function amountOf(text: string): number {
  if (/^\d{1,9}(\.\d{1,6})?$/.test(text)) return Number(text)
  throw usageError(`--budget must be US dollars per month, such as 25 or 12.50, or default; got '${text}'.`)
}
