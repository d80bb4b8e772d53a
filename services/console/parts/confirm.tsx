import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useAction } from './action.ts'
import { Dialog } from './dialog.tsx'
import { ErrorText } from './error-text.tsx'

interface ConfirmProps {
  /** Label of both buttons, such as `Pause`. */
  readonly verb: string
  /** Object of the verb, such as a model id. */
  readonly what: string
  readonly action: () => Promise<void>
  /** The consequence, and whether it can be undone. */
  readonly children: ComponentChildren
}

export function Confirm({ verb, what, action, children }: ConfirmProps) {
  const isOpen = useSignal(false)
  const { isBusy, problem, run } = useAction()
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
              <ErrorText text={problem.value} />
              <div class="actions end">
                <button type="button" onClick={close}>
                  Cancel
                </button>
                <button
                  type="button"
                  class="primary"
                  disabled={isBusy.value}
                  onClick={() => void run(action).then((isDone) => isDone && close())}
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
