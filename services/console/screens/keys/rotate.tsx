import { useSignal } from '@preact/signals'
import type { ApiKey } from '#services/console/api/types.ts'
import { useDeed } from '#services/console/parts/deed.ts'
import { FormEnd } from '#services/console/parts/form-end.tsx'
import { useDraft } from './draft.ts'
import { endOf } from './form.tsx'
import { Secret } from './secret.tsx'
import { type MadeKey, rotateKey } from './state.ts'

/** Grace periods of the old key, in seconds. */
const OVERLAPS = [
  [0, 'Revoke immediately'],
  [3_600, '1 hour'],
  [86_400, '1 day'],
  [604_800, '1 week'],
] as const

/** Replaces a key by a new one and shows the new secret. */
export function Rotate({ of, close }: { readonly of: ApiKey; readonly close: () => void }) {
  const draft = useDraft({ overlap: '86400', end: of.expires_at === null ? '' : '30' })
  const made = useSignal<MadeKey | undefined>(undefined)
  const deed = useDeed()
  const send = (event: Event) => {
    event.preventDefault()
    void deed.act(async () => {
      const expires_at = endOf(draft)
      const body = { overlap_seconds: Number(draft.text('overlap')), ...(expires_at !== undefined && { expires_at }) }
      made.value = await rotateKey(of.id, body)
    })
  }
  if (made.value) return <Secret of={made.value} close={close} />
  return (
    <form class="fields" onSubmit={send}>
      <p>A new key with the same project and permissions replaces {of.name ?? of.id}.</p>
      <label>
        <span>Old key stays valid for</span>
        <select
          value={draft.text('overlap')}
          onChange={({ currentTarget }) => draft.set('overlap', currentTarget.value)}
        >
          {OVERLAPS.map(([seconds, text]) => (
            <option key={seconds} value={String(seconds)}>
              {text}
            </option>
          ))}
        </select>
      </label>
      {of.expires_at !== null && (
        <label>
          <span>New key expires</span>
          <select value={draft.text('end')} onChange={({ currentTarget }) => draft.set('end', currentTarget.value)}>
            <option value="30">In 30 days</option>
            <option value="90">In 90 days</option>
            <option value="365">In 1 year</option>
            <option value="never">Never</option>
          </select>
        </label>
      )}
      <FormEnd deed={deed} verb="Rotate" close={close} />
    </form>
  )
}
