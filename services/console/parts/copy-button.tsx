import { useSignal } from '@preact/signals'
import { Icon } from './icon.tsx'

const FEEDBACK_MS = 1_500

/** A button that copies a text to the clipboard and shows the outcome for a moment. */
export function CopyButton({ text, label }: { readonly text: string; readonly label: string }) {
  const feedback = useSignal('')
  const copy = async (button: HTMLElement) => {
    feedback.value = (await copyText(text, button)) ? 'Copied' : 'Copy failed'
    setTimeout(() => {
      feedback.value = ''
    }, FEEDBACK_MS)
  }
  return (
    <button type="button" class="small" onClick={({ currentTarget }) => void copy(currentTarget)}>
      <Icon name={feedback.value === 'Copied' ? 'check' : 'copy'} />
      <span aria-live="polite">{feedback.value || label}</span>
    </button>
  )
}

/** Without TLS a page has no clipboard API, except on localhost. Such a page copies a selection with the deprecated `execCommand`. */
async function copyText(text: string, button: HTMLElement): Promise<boolean> {
  if (isSecureContext && navigator.clipboard) {
    return await navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    )
  }
  const field = document.createElement('textarea')
  field.className = 'visually-hidden'
  field.value = text
  // Next to the button, because text outside an open dialog cannot be selected.
  button.after(field)
  field.select()
  const isDone = document.execCommand('copy')
  field.remove()
  button.focus()
  return isDone
}
