import { useSignal } from '@preact/signals'
import { useDeed } from '#services/console/parts/deed.ts'
import { Dialog } from '#services/console/parts/dialog.tsx'
import { Icon } from '#services/console/parts/icon.tsx'
import { Refusal } from '#services/console/parts/refusal.tsx'
import type { DeadLetterList, Redriven } from './list.ts'

/** As schemas/admin/admin.ts has them. */
const MAX = { most: 1_000, usual: 100 }
/** Letters of a dry run that are named. */
const NAMED = 8

/** Puts dead letters back, once it was seen which: at most so many. */
export function Redrive({ list }: { readonly list: DeadLetterList }) {
  const isOpen = useSignal(false)
  return (
    <>
      <button
        type="button"
        class="primary"
        onClick={() => {
          isOpen.value = true
        }}
      >
        <Icon name="again" /> Put many back
      </button>
      {isOpen.value && (
        <Dialog
          title={list.pool ? `Put letters of ${list.pool} back into their queue` : 'Put letters back into their queues'}
          onClose={() => {
            isOpen.value = false
          }}
        >
          {(close) => <Steps list={list} close={close} />}
        </Dialog>
      )}
    </>
  )
}

function Steps({ list, close }: { readonly list: DeadLetterList; readonly close: () => void }) {
  const max = useSignal(MAX.usual)
  const dry = useSignal<Redriven | undefined>(undefined)
  const done = useSignal<Redriven | undefined>(undefined)
  /** Behind those that were put back already. */
  const after = useSignal<string | null>(null)
  const { isBusy, problem, act } = useDeed()
  const look = () =>
    act(async () => {
      dry.value = await list.redrive(max.value, true, after.value)
    })
  const putBack = () =>
    act(async () => {
      done.value = await list.redrive(max.value, false, after.value)
    })
  const goOn = () => {
    after.value = (done.value ?? dry.value)?.last_id ?? null
    done.value = undefined
    dry.value = undefined
    void look()
  }
  const count = dry.value?.data.length ?? 0
  const canGoOn = done.value?.has_more || (dry.value?.has_more && count === 0)
  return (
    <>
      <p>Those that are durable jobs which this version can read, newest first. First you see which.</p>
      <label class="cap">
        <span>At most</span>
        <input
          type="number"
          min={1}
          max={MAX.most}
          value={max.value}
          disabled={done.value !== undefined}
          onInput={({ currentTarget }) => {
            max.value = Math.min(MAX.most, Math.max(1, Math.floor(currentTarget.valueAsNumber || 1)))
            // Another cap, other letters.
            dry.value = undefined
          }}
        />
      </label>
      <div aria-live="polite">
        {done.value ? (
          <p class="note good">{said(done.value, 'was put back.', 'were put back.')}</p>
        ) : (
          dry.value && <Found found={dry.value} />
        )}
      </div>
      <Refusal of={problem.value} />
      <div class="actions end">
        <button type="button" onClick={close}>
          {done.value ? 'Close' : 'Leave it'}
        </button>
        {canGoOn && (
          <button type="button" class="primary" disabled={isBusy.value} onClick={goOn}>
            Look at older ones
          </button>
        )}
        {!done.value && !canGoOn && (
          <button
            type="button"
            class="primary"
            disabled={isBusy.value || (dry.value !== undefined && count === 0)}
            onClick={() => void (dry.value ? putBack() : look())}
          >
            {dry.value && count > 0 ? `Put ${count} back` : 'See which'}
          </button>
        )}
      </div>
    </>
  )
}

function Found({ found }: { readonly found: Redriven }) {
  const { data } = found
  if (data.length === 0) return <p class="note">None that can run again.</p>
  return (
    <div class="note found">
      <p>{said(found, 'would be put back:', 'would be put back:')}</p>
      <ul>
        {data.slice(0, NAMED).map(({ id, job_id, pool }) => (
          <li key={id}>
            <code>{job_id}</code> <span class="dim">{pool}</span>
          </li>
        ))}
      </ul>
      {data.length > NAMED && <p class="dim">and {data.length - NAMED} more</p>}
    </div>
  )
}

function said({ data, has_more }: Redriven, one: string, many: string): string {
  const rest = has_more ? ' There may be more.' : ''
  return `${data.length} ${data.length === 1 ? one : many}${rest}`
}
