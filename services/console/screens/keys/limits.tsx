import type { ApiKey } from '#services/console/api/types.ts'
import type { Draft } from './draft.ts'

/** API field of a limit → label. */
export const LIMITS = {
  requests_per_minute: 'Requests per minute',
  tokens_per_minute: 'Tokens per minute',
  running: 'Concurrent requests and jobs',
  queued: 'Queued jobs',
  scheduled: 'Scheduled jobs',
  budget_usd_per_month: 'Monthly budget (USD)',
} as const
type LimitName = keyof typeof LIMITS

export const LIMIT_NAMES = Object.keys(LIMITS) as readonly LimitName[]

export function limitTexts(limits: ApiKey['limits']): string[] {
  return LIMIT_NAMES.flatMap((name) => {
    const value = limits[name]
    if (value === undefined) return []
    return name === 'budget_usd_per_month' ? `$${value}/month` : `${value.toLocaleString()} ${UNITS[name]}`
  })
}

const UNITS = {
  requests_per_minute: 'requests/min',
  tokens_per_minute: 'tokens/min',
  running: 'concurrent',
  queued: 'queued',
  scheduled: 'scheduled',
} as const

/** A field per limit. An empty field uses the default from the settings. */
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
            placeholder="Default"
            value={draft.text(name)}
            onInput={({ currentTarget }) => draft.set(name, currentTarget.value)}
          />
        </label>
      ))}
    </div>
  )
}
