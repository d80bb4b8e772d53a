import { useSignal } from '@preact/signals'
import { useAction } from '#services/console/parts/action.ts'
import { Dialog } from '#services/console/parts/dialog.tsx'
import { ErrorText } from '#services/console/parts/error-text.tsx'
import { Icon } from '#services/console/parts/icon.tsx'
import type { DeadLetterList, RequeueResult } from './list.ts'

/** Maximum and default number of dead letters per request, as in schemas/admin/admin.ts. */
const LIMIT = { max: 1_000, default: 100 }
const PREVIEW_MAX = 8

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
  const max = useSignal(LIMIT.default)
  const dry = useSignal<RequeueResult | undefined>(undefined)
  const done = useSignal<RequeueResult | undefined>(undefined)
  /** Cursor after the last record of the previous preview. */
  const after = useSignal<string | null>(null)
  const { isBusy, problem, run } = useAction()
  const preview = () =>
    run(async () => {
      dry.value = await list.redrive(max.value, true, after.value)
    })
  const requeue = () =>
    run(async () => {
      done.value = await list.redrive(max.value, false, after.value)
    })
  const continueOlder = () => {
    after.value = (done.value ?? dry.value)?.last_id ?? null
    done.value = undefined
    dry.value = undefined
    void preview()
  }
  const count = dry.value?.data.length ?? 0
  const canContinue = done.value?.has_more || (dry.value?.has_more && count === 0)
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
          max={LIMIT.max}
          value={max.value}
          disabled={done.value !== undefined}
          onInput={({ currentTarget }) => {
            max.value = Math.min(LIMIT.max, Math.max(1, Math.floor(currentTarget.valueAsNumber || 1)))
            // The preview was made for another maximum, so it is discarded.
            dry.value = undefined
          }}
        />
      </label>
      <div aria-live="polite">
        {done.value ? (
          <p class="note good">{summaryOf(done.value, 'requeued.')}</p>
        ) : (
          dry.value && <Preview result={dry.value} />
        )}
      </div>
      <ErrorText text={problem.value} />
      <div class="actions end">
        <button type="button" onClick={close}>
          {done.value ? 'Done' : 'Cancel'}
        </button>
        {canContinue && (
          <button type="button" class="primary" disabled={isBusy.value} onClick={continueOlder}>
            Preview older ones
          </button>
        )}
        {!done.value && !canContinue && (
          <button
            type="button"
            class="primary"
            disabled={isBusy.value || (dry.value !== undefined && count === 0)}
            onClick={() => void (dry.value ? requeue() : preview())}
          >
            {dry.value && count > 0 ? `Requeue ${count}` : 'Preview'}
          </button>
        )}
      </div>
    </>
  )
}

function Preview({ result }: { readonly result: RequeueResult }) {
  const { data } = result
  if (data.length === 0) return <p class="note">No dead letters here can be requeued.</p>
  return (
    <div class="note found">
      <p>{summaryOf(result, 'to be requeued:')}</p>
      <ul>
        {data.slice(0, PREVIEW_MAX).map(({ id, job_id, pool }) => (
          <li key={id}>
            <code>{job_id}</code> <span class="dim">{pool}</span>
          </li>
        ))}
      </ul>
      {data.length > PREVIEW_MAX && <p class="dim">and {data.length - PREVIEW_MAX} more</p>}
    </div>
  )
}

function summaryOf({ data, has_more }: RequeueResult, text: string): string {
  return `${data.length} ${text}${has_more ? ' There may be more.' : ''}`
}
