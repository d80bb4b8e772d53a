import type { Action } from './action.ts'
import { ErrorText } from './error-text.tsx'

interface FormActionsProps {
  readonly action: Action
  readonly verb: string
  readonly close: () => void
}

/** The error of a form with its Cancel and submit buttons. */
export function FormActions({ action: { isBusy, problem }, verb, close }: FormActionsProps) {
  return (
    <div class="form-end">
      <ErrorText text={problem.value} />
      <div class="actions end">
        <button type="button" onClick={close}>
          Cancel
        </button>
        <button type="submit" class="primary" disabled={isBusy.value}>
          {verb}
        </button>
      </div>
    </div>
  )
}
