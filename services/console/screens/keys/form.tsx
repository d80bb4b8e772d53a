import { useSignal } from '@preact/signals'
import { serviceNow } from '#services/console/api/clock.ts'
import { ownKey } from '#services/console/api/session.ts'
import type { ApiKey } from '#services/console/api/types.ts'
import { useDeed } from '#services/console/parts/deed.ts'
import { FormEnd } from '#services/console/parts/form-end.tsx'
import { type Draft, useDraft } from './draft.ts'
import { LIMIT_NAMES, LimitFields } from './limits.tsx'
import { Secret } from './secret.tsx'
import { changeKey, type MadeKey, makeKey, projects } from './state.ts'

const DAY_SECONDS = 86_400
/** Ends that are offered, in days. */
const DAYS = [7, 30, 90, 365]
const SCOPES = { calls: 'Calls to the API', admin: 'The operator’s door: all projects, workers, keys' } as const

interface FormProps {
  /** The key that is changed; undefined: a new one. */
  readonly before?: ApiKey
  readonly close: () => void
}

/** The name, rights, end and limits of a key. A new one shows its secret when it is made. */
export function KeyForm({ before, close }: FormProps) {
  const draft = useDraft(
    before ? draftOf(before) : { calls: mayGive('calls') ? 'on' : '', admin: mayGive('calls') ? '' : 'on' },
  )
  const made = useSignal<MadeKey | undefined>(undefined)
  const deed = useDeed()
  const send = (event: Event) => {
    event.preventDefault()
    void deed
      .act(async () => {
        if (before) await changeKey(before.id, changeOf(draft))
        else made.value = await makeKey({ ...changeOf(draft), project: draft.text('project') || null })
      })
      .then((isDone) => isDone && before && close())
  }
  if (made.value) return <Secret of={made.value} close={close} />
  return (
    <form class="fields" onSubmit={send}>
      <Text draft={draft} name="name" label="Name" hint="Whose it is, or what for" />
      {!before && <ProjectField draft={draft} />}
      <fieldset>
        <legend>What it is for</legend>
        {(['calls', 'admin'] as const).map((scope) => (
          <label key={scope} class="check">
            <input
              type="checkbox"
              checked={draft.text(scope) === 'on'}
              disabled={!mayGive(scope) && draft.text(scope) !== 'on'}
              onChange={({ currentTarget }) => draft.set(scope, currentTarget.checked ? 'on' : '')}
            />
            <span>
              {SCOPES[scope]}
              {!mayGive(scope) && <small class="dim below">The key that you signed in with may not give this.</small>}
            </span>
          </label>
        ))}
      </fieldset>
      <EndField draft={draft} before={before} />
      <details>
        <summary>Models, endpoints and limits</summary>
        <div class="fields">
          <Text draft={draft} name="models" label="Models" hint="With commas between; empty: all" />
          <Text
            draft={draft}
            name="endpoints"
            label="Endpoints"
            hint="Such as /v1/chat/completions, with commas; empty: all"
          />
          <LimitFields draft={draft} />
        </div>
      </details>
      <FormEnd deed={deed} verb={before ? 'Change it' : 'Make it'} close={close} />
    </form>
  )
}

interface TextProps {
  readonly draft: Draft
  readonly name: string
  readonly label: string
  readonly hint: string
}

/** A line of text, and what is meant by it. */
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
        <option value="">One of its own</option>
        {projects.value.map(({ id, name }) => (
          <option key={id} value={id}>
            {name ?? id}
          </option>
        ))}
      </select>
    </label>
  )
}

function EndField({ draft, before }: { readonly draft: Draft; readonly before: ApiKey | undefined }) {
  return (
    <label>
      <span>Ends</span>
      <select value={draft.text('end')} onChange={({ currentTarget }) => draft.set('end', currentTarget.value)}>
        {before && (
          <option value="">
            As it is: {before.expires_at ? new Date(before.expires_at * 1_000).toLocaleDateString() : 'never'}
          </option>
        )}
        <option value={before ? 'never' : ''}>Never</option>
        {DAYS.map((days) => (
          <option key={days} value={String(days)}>
            In {days === 365 ? 'a year' : `${days} days`}
          </option>
        ))}
      </select>
    </label>
  )
}

/** Unix seconds of an end that was chosen; null: never; undefined: as it is. */
export function endOf(draft: Draft): number | null | undefined {
  const text = draft.text('end')
  if (text === '') return undefined
  return text === 'never' ? null : Math.floor(serviceNow()) + Number(text) * DAY_SECONDS
}

function changeOf(draft: Draft): object {
  const expires_at = endOf(draft)
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

/** A key may not give what it has not. */
function mayGive(scope: string): boolean {
  return ownKey.value?.scopes.includes(scope) ?? false
}
