import { useSignal } from '@preact/signals'
import { Icon } from './icon.tsx'

const FEEDBACK_MS = 1_500

/** A button that copies a text to the clipboard and shows the outcome for a moment. */
export function Copy({ text, label }: { readonly text: string; readonly label: string }) {
  const told = useSignal('')
  const copy = async (button: HTMLElement) => {
    told.value = (await copied(text, button)) ? 'Copied' : 'Copy failed'
    setTimeout(() => {
      told.value = ''
    }, FEEDBACK_MS)
  }
  return (
    <button type="button" class="small" onClick={({ currentTarget }) => void copy(currentTarget)}>
      <Icon name={told.value === 'Copied' ? 'check' : 'copy'} />
      <span aria-live="polite">{told.value || label}</span>
    </button>
  )
}

/** Without TLS a page has no clipboard API, except on localhost. Such a page copies a selection with the deprecated `execCommand`. */
async function copied(text: string, button: HTMLElement): Promise<boolean> {
  if (isSecureContext && navigator.clipboard) {
    return await navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    )
  }
  const field = document.createElement('textarea')
  field.className = 'unseen'
  field.value = text
  // Next to the button, because text outside an open dialog cannot be selected.
  button.after(field)
  field.select()
  const isDone = document.execCommand('copy')
  field.remove()
  button.focus()
  return isDone
}
