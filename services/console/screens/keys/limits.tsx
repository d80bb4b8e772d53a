import type { ApiKey } from '#services/console/api/types.ts'
import type { Draft } from './draft.ts'

/** Limits by their fields on the wire, as people read them. */
export const LIMITS = {
  requests_per_minute: 'Requests a minute',
  tokens_per_minute: 'Tokens a minute',
  running: 'Running at once',
  queued: 'Jobs that wait',
  scheduled: 'Jobs that wait for their time',
  budget_usd_per_month: 'Budget a month, US dollars',
} as const
type LimitName = keyof typeof LIMITS

/** Limits that are known by their names. */
export const LIMIT_NAMES = Object.keys(LIMITS) as readonly LimitName[]

/** The limits of a key or a project as short texts. */
export function limitTexts(limits: ApiKey['limits']): string[] {
  return LIMIT_NAMES.flatMap((name) => {
    const value = limits[name]
    if (value === undefined) return []
    return name === 'budget_usd_per_month' ? `$${value}/month` : `${value.toLocaleString()} ${SHORT[name]}`
  })
}

const SHORT = {
  requests_per_minute: 'calls/min',
  tokens_per_minute: 'tokens/min',
  running: 'running',
  queued: 'waiting',
  scheduled: 'scheduled',
} as const

/** A field for each limit; an empty one leaves it to the setting. */
export function LimitFields({ draft }: { readonly draft: Draft }) {
  return (
    <div class="pair">
      {LIMIT_NAMES.map((name) => (
        <label key={name}>
          <span>{LIMITS[name]}</span>
          <input
            type="number"
            min={0}
            step={name === 'budget_usd_per_month' ? 'any' : 1}
            placeholder="as the setting says"
            value={draft.text(name)}
            onInput={({ currentTarget }) => draft.set(name, currentTarget.value)}
          />
        </label>
      ))}
    </div>
  )
}
