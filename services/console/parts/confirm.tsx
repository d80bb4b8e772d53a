import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useDeed } from './deed.ts'
import { Dialog } from './dialog.tsx'
import { Refusal } from './refusal.tsx'

interface ConfirmProps {
  /** Label of both buttons, such as `Pause`. */
  readonly verb: string
  /** Object of the verb, such as a model id. */
  readonly what: string
  readonly deed: () => Promise<void>
  /** The consequence, and whether it can be undone. */
  readonly children: ComponentChildren
}

/** A button that asks for confirmation in a dialog. */
export function Confirm({ verb, what, deed, children }: ConfirmProps) {
  const isOpen = useSignal(false)
  const { isBusy, problem, act } = useDeed()
  const open = () => {
    problem.value = ''
    isOpen.value = true
  }
  return (
    <>
      <button type="button" class="small" aria-label={`${verb} ${what}`} onClick={open}>
        {verb}
      </button>
      {isOpen.value && (
        <Dialog
          title={`${verb} ${what}?`}
          onClose={() => {
            isOpen.value = false
          }}
        >
          {(close) => (
            <>
              {children}
              <Refusal of={problem.value} />
              <div class="actions end">
                <button type="button" onClick={close}>
                  Cancel
                </button>
                <button
                  type="button"
                  class="primary"
                  disabled={isBusy.value}
                  onClick={() => void act(deed).then((isDone) => isDone && close())}
                >
                  {isBusy.value ? 'Working…' : verb}
                </button>
              </div>
            </>
          )}
        </Dialog>
      )}
    </>
  )
}
