import type { Deed } from './deed.ts'
import { Refusal } from './refusal.tsx'

interface FormEndProps {
  /** What sends the form. */
  readonly deed: Deed
  /** Such as `Make it`. */
  readonly verb: string
  readonly close: () => void
}

/** The end of a form: why it was refused, and the buttons that leave it and send it. */
export function FormEnd({ deed: { isBusy, problem }, verb, close }: FormEndProps) {
  return (
    <div class="form-end">
      <Refusal of={problem.value} />
      <div class="actions end">
        <button type="button" onClick={close}>
          Leave it
        </button>
        <button type="submit" class="primary" disabled={isBusy.value}>
          {verb}
        </button>
      </div>
    </div>
  )
}
