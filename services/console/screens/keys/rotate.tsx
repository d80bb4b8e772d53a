import { useSignal } from '@preact/signals'
import type { ApiKey } from '#services/console/api/types.ts'
import { useAction } from '#services/console/parts/action.ts'
import { FormActions } from '#services/console/parts/form-actions.tsx'
import { useDraft } from './draft.ts'
import { expiryOf } from './form.tsx'
import { Secret } from './secret.tsx'
import { type CreatedKey, rotateKey } from './state.ts'

/** Grace periods of the old key, in seconds. */
const GRACE_PERIODS = [
  [0, 'Revoke immediately'],
  [3_600, '1 hour'],
  [86_400, '1 day'],
  [604_800, '1 week'],
] as const

/** Replaces a key by a new one and shows the new secret. */
export function Rotate({ apiKey, close }: { readonly apiKey: ApiKey; readonly close: () => void }) {
  const draft = useDraft({ overlap: '86400', expiry: apiKey.expires_at === null ? '' : '30' })
  const created = useSignal<CreatedKey | undefined>(undefined)
  const action = useAction()
  const send = (event: Event) => {
    event.preventDefault()
    void action.run(async () => {
      const expires_at = expiryOf(draft)
      const body = { overlap_seconds: Number(draft.text('overlap')), ...(expires_at !== undefined && { expires_at }) }
      created.value = await rotateKey(apiKey.id, body)
    })
  }
  if (created.value) return <Secret createdKey={created.value} close={close} />
  return (
    <form class="fields" onSubmit={send}>
      <p>A new key with the same project and permissions replaces {apiKey.name ?? apiKey.id}.</p>
      <label>
        <span>Old key stays valid for</span>
        <select
          value={draft.text('overlap')}
          onChange={({ currentTarget }) => draft.set('overlap', currentTarget.value)}
        >
          {GRACE_PERIODS.map(([seconds, text]) => (
            <option key={seconds} value={String(seconds)}>
              {text}
            </option>
          ))}
        </select>
      </label>
      {apiKey.expires_at !== null && (
        <label>
          <span>New key expires</span>
          <select
            value={draft.text('expiry')}
            onChange={({ currentTarget }) => draft.set('expiry', currentTarget.value)}
          >
            <option value="30">In 30 days</option>
            <option value="90">In 90 days</option>
            <option value="365">In 1 year</option>
            <option value="never">Never</option>
          </select>
        </label>
      )}
      <FormActions action={action} verb="Rotate" close={close} />
    </form>
  )
}
