import type { Deed } from './deed.ts'
import { Refusal } from './refusal.tsx'

interface FormEndProps {
  readonly deed: Deed
  /** Label of the submit button, such as `Create`. */
  readonly verb: string
  readonly close: () => void
}

/** The error of a form with its Cancel and submit buttons. */
export function FormEnd({ deed: { isBusy, problem }, verb, close }: FormEndProps) {
  return (
    <div class="form-end">
      <Refusal of={problem.value} />
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
