import { useSignal } from '@preact/signals'
import { useDeed } from '#services/console/parts/deed.ts'
import { Dialog } from '#services/console/parts/dialog.tsx'
import { Icon } from '#services/console/parts/icon.tsx'
import { Refusal } from '#services/console/parts/refusal.tsx'
import type { DeadLetterList, Redriven } from './list.ts'

/** The bounds of schemas/admin/admin.ts. */
const MAX = { most: 1_000, usual: 100 }
/** Maximum number of jobs listed in the preview. */
const NAMED = 8

/** Requeues up to a maximum number of dead letters, after a preview from a dry run. */
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
        <Icon name="again" /> Requeue all
      </button>
      {isOpen.value && (
        <Dialog
          title={list.pool ? `Requeue dead letters of ${list.pool}` : 'Requeue dead letters'}
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
  /** Cursor behind the records of the previous round. */
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
      <p>
        Requeues durable jobs that this version can read, newest first. A preview shows them before anything changes.
      </p>
      <label class="cap">
        <span>Maximum</span>
        <input
          type="number"
          min={1}
          max={MAX.most}
          value={max.value}
          disabled={done.value !== undefined}
          onInput={({ currentTarget }) => {
            max.value = Math.min(MAX.most, Math.max(1, Math.floor(currentTarget.valueAsNumber || 1)))
            // A preview is valid for one maximum only.
            dry.value = undefined
          }}
        />
      </label>
      <div aria-live="polite">
        {done.value ? (
          <p class="note good">{summaryOf(done.value, 'requeued.')}</p>
        ) : (
          dry.value && <Found found={dry.value} />
        )}
      </div>
      <Refusal of={problem.value} />
      <div class="actions end">
        <button type="button" onClick={close}>
          {done.value ? 'Done' : 'Cancel'}
        </button>
        {canGoOn && (
          <button type="button" class="primary" disabled={isBusy.value} onClick={goOn}>
            Preview older ones
          </button>
        )}
        {!done.value && !canGoOn && (
          <button
            type="button"
            class="primary"
            disabled={isBusy.value || (dry.value !== undefined && count === 0)}
            onClick={() => void (dry.value ? putBack() : look())}
          >
            {dry.value && count > 0 ? `Requeue ${count}` : 'Preview'}
          </button>
        )}
      </div>
    </>
  )
}

function Found({ found }: { readonly found: Redriven }) {
  const { data } = found
  if (data.length === 0) return <p class="note">No dead letters here can be requeued.</p>
  return (
    <div class="note found">
      <p>{summaryOf(found, 'to be requeued:')}</p>
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

function summaryOf({ data, has_more }: Redriven, text: string): string {
  return `${data.length} ${text}${has_more ? ' There may be more.' : ''}`
}
