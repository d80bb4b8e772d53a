import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import type { CurrentMonth, UsageReport } from '#schemas/usage.ts'
import { type ApiKey, fetchJson, ownKey } from '#services/console/api/client.ts'
import { dateText, serviceNow, usdText } from '#services/console/api/clock.ts'
import { CopyButton, FormActions, Icon, useAction } from '#services/console/parts/parts.tsx'
import { durationText } from '#shared/lib/duration.ts'
import { monthForecastText, spentPartText } from '#shared/usage/forecast.ts'
import { type CreatedKey, createKey, type Draft, projects, updateKey, useDraft } from './state.ts'

const DAY_SECONDS = 86_400
const DAYS = [7, 30, 90, 365]
const SCOPES = { calls: 'API calls', admin: 'Admin: manage all projects, workers and keys' } as const

interface FormProps {
  /** The key to edit. Without a key, the form creates a key. */
  readonly before?: ApiKey
  readonly close: () => void
}

export function KeyForm({ before, close }: FormProps) {
  const draft = useDraft(
    before ? draftOf(before) : { calls: canGrant('calls') ? 'on' : '', admin: canGrant('calls') ? '' : 'on' },
  )
  const created = useSignal<CreatedKey | undefined>(undefined)
  const action = useAction()
  const send = (event: Event) => {
    event.preventDefault()
    void action
      .run(async () => {
        if (before) await updateKey(before.id, bodyOf(draft))
        else created.value = await createKey({ ...bodyOf(draft), project: draft.text('project') || null })
      }, before && 'Key saved.')
      .then((isDone) => isDone && before && close())
  }
  if (created.value) return <Secret createdKey={created.value} close={close} />
  return (
    <form class="fields" onSubmit={send}>
      <Text draft={draft} name="name" label="Name" hint="e.g. ci-server" />
      {!before && <ProjectField draft={draft} />}
      <fieldset>
        <legend>Permissions</legend>
        {(['calls', 'admin'] as const).map((scope) => (
          <label key={scope} class="check">
            <input
              type="checkbox"
              checked={draft.text(scope) === 'on'}
              disabled={!canGrant(scope) && draft.text(scope) !== 'on'}
              onChange={({ currentTarget }) => draft.set(scope, currentTarget.checked ? 'on' : '')}
            />
            <span>
              {SCOPES[scope]}
              {!canGrant(scope) && (
                <small class="dim below">The key you signed in with cannot grant this permission.</small>
              )}
            </span>
          </label>
        ))}
      </fieldset>
      <ExpiryField draft={draft} before={before} />
      <details>
        <summary>Models, endpoints and limits</summary>
        <div class="fields">
          <Text draft={draft} name="models" label="Models" hint="Comma-separated; empty allows all" />
          <Text
            draft={draft}
            name="endpoints"
            label="Endpoints"
            hint="Comma-separated, e.g. /v1/chat/completions; empty allows all"
          />
          <LimitFields draft={draft} spender={before && { key: before.id }} />
        </div>
      </details>
      <FormActions action={action} verb={before ? 'Save' : 'Create'} close={close} />
    </form>
  )
}

interface TextProps {
  readonly draft: Draft
  readonly name: string
  readonly label: string
  readonly hint: string
}

export function Text({ draft, name, label, hint }: TextProps) {
  return (
    <label>
      <span>{label}</span>
      <input
        value={draft.text(name)}
        autocomplete="off"
        onInput={({ currentTarget }) => draft.set(name, currentTarget.value)}
      />
      <small class="dim">{hint}</small>
    </label>
  )
}

function ProjectField({ draft }: { readonly draft: Draft }) {
  return (
    <label>
      <span>Project</span>
      <select value={draft.text('project')} onChange={({ currentTarget }) => draft.set('project', currentTarget.value)}>
        <option value="">None (standalone)</option>
        {projects.value.map(({ id, name }) => (
          <option key={id} value={id}>
            {name ?? id}
          </option>
        ))}
      </select>
    </label>
  )
}

function ExpiryField({ draft, before }: { readonly draft: Draft; readonly before: ApiKey | undefined }) {
  return (
    <label>
      <span>Expires</span>
      <select value={draft.text('expiry')} onChange={({ currentTarget }) => draft.set('expiry', currentTarget.value)}>
        {before && <option value="">Unchanged ({before.expires_at ? dateText(before.expires_at) : 'never'})</option>}
        <option value={before ? 'never' : ''}>Never</option>
        {DAYS.map((days) => (
          <option key={days} value={String(days)}>
            In {days === 365 ? '1 year' : `${days} days`}
          </option>
        ))}
      </select>
    </label>
  )
}

/** Returns the chosen expiry in Unix seconds. Null for never, and undefined if unchanged. */
export function expiryOf(draft: Draft): number | null | undefined {
  const text = draft.text('expiry')
  if (text === '') return undefined
  return text === 'never' ? null : Math.floor(serviceNow()) + Number(text) * DAY_SECONDS
}

function bodyOf(draft: Draft): object {
  const expires_at = expiryOf(draft)
  return {
    name: draft.text('name').trim() || null,
    scopes: (['calls', 'admin'] as const).filter((scope) => draft.text(scope) === 'on'),
    models: draft.parts('models'),
    endpoints: draft.parts('endpoints'),
    limits: Object.fromEntries(LIMIT_NAMES.map((name) => [name, draft.number(name)])),
    ...(expires_at !== undefined && { expires_at }),
  }
}

function draftOf({ name, scopes, models, endpoints, limits }: ApiKey): Record<string, string> {
  return {
    name: name ?? '',
    models: models?.join(', ') ?? '',
    endpoints: endpoints?.join(', ') ?? '',
    ...Object.fromEntries(scopes.map((scope) => [scope, 'on'])),
    ...Object.fromEntries(Object.entries(limits).map(([limit, value]) => [limit, String(value)])),
  }
}

/** Whether the form may grant a scope. A key can grant only the scopes that it has itself. */
function canGrant(scope: string): boolean {
  return ownKey.value?.scopes.includes(scope) ?? false
}

/** Shows the secret of a new key, which the API returns only once. */
export function Secret({ createdKey, close }: { readonly createdKey: CreatedKey; readonly close: () => void }) {
  const secret = useRef<HTMLElement>(null)
  useEffect(() => secret.current?.focus(), [])
  return (
    <>
      <p class="note warn">
        <Icon name="warn" />
        <span>Copy this key now. You won’t be able to see it again.</span>
      </p>
      {/*
       * biome-ignore lint/a11y/noNoninteractiveTabindex: the focus moves here, so that screen readers announce the new
       * key.
       */}
      <code class="secret" ref={secret} tabIndex={0}>
        {createdKey.secret}
      </code>
      <p class="dim">
        Key ID: <code>{createdKey.id}</code>. Send the key as <code>Authorization: Bearer …</code>
      </p>
      <div class="actions end">
        <CopyButton text={createdKey.secret} label="Copy key" />
        <button type="button" class="primary" onClick={close}>
          Done
        </button>
      </div>
    </>
  )
}

const LIMITS = {
  requests_per_minute: 'Requests per minute',
  tokens_per_minute: 'Tokens per minute',
  running: 'Concurrent requests and jobs',
  queued: 'Queued jobs',
  scheduled: 'Scheduled jobs',
  budget_usd_per_month: 'Monthly budget (USD)',
  request_bodies_seconds: 'Prompts and answers in the log (seconds)',
} as const
type LimitName = keyof typeof LIMITS

export const LIMIT_NAMES = Object.keys(LIMITS) as readonly LimitName[]

/** The label of a limit in the form, without its unit. Undefined for a name that is no limit. */
export function limitName(name: string): string | undefined {
  return Object.hasOwn(LIMITS, name) ? LIMITS[name as LimitName].replace(/ \(.*\)$/, '') : undefined
}

export function limitTexts(limits: ApiKey['limits']): string[] {
  return LIMIT_NAMES.flatMap((name) => {
    const value = limits[name]
    if (value === undefined) return []
    if (name === 'budget_usd_per_month') return `$${value}/month`
    if (name === 'request_bodies_seconds')
      return value === 0 ? 'no prompts in the log' : `prompts in the log for ${durationText(value)}`
    return `${value.toLocaleString('en')} ${UNITS[name]}`
  })
}

const UNITS = {
  requests_per_minute: 'requests/min',
  tokens_per_minute: 'tokens/min',
  running: 'concurrent',
  queued: 'queued',
  scheduled: 'scheduled',
} as const

interface LimitProps {
  readonly draft: Draft
  readonly isBudgetFocused?: boolean
  /** Filter of the usage report that selects the spending of the edited project or key. */
  readonly spender?: Readonly<Record<string, string>> | undefined
}

export function LimitFields({ draft, isBudgetFocused = false, spender }: LimitProps) {
  return (
    <div class="pair">
      {LIMIT_NAMES.map((name) => (
        <label key={name}>
          <span>{LIMITS[name]}</span>
          <input
            type="number"
            min={0}
            autofocus={isBudgetFocused && name === 'budget_usd_per_month'}
            step={name === 'budget_usd_per_month' ? 'any' : 1}
            placeholder="Default"
            value={draft.text(name)}
            onInput={({ currentTarget }) => draft.set(name, currentTarget.value)}
          />
          {name === 'budget_usd_per_month' && spender && <Spent spender={spender} budget={draft.number(name)} />}
        </label>
      ))}
    </div>
  )
}

/** The spending of this month and its forecast, with the part of the entered budget. The text has its place before the values arrive. */
function Spent({
  spender,
  budget,
}: {
  readonly spender: Readonly<Record<string, string>>
  readonly budget: number | null
}) {
  const month = useSignal<CurrentMonth | null | undefined>(undefined)
  useEffect(() => {
    const query = new URLSearchParams({ ...spender, group_by: 'model' })
    fetchJson<UsageReport>(`/v1/usage?${query}`).then(
      ({ current_month }) => {
        month.value = current_month
      },
      () => {
        month.value = null
      },
    )
  }, [])
  const { value } = month
  if (value === null) return null
  const part =
    value && budget ? ` (${spentPartText({ spent_usd: value.spent_usd, budget_usd: budget })} of this budget)` : ''
  return (
    <small class="dim">
      {value
        ? `${usdText(value.spent_usd)} spent this month${part}, ${monthForecastText(value)}`
        : 'Reading the spending…'}
    </small>
  )
}
