import { useSignal } from '@preact/signals'
import { Icon } from './icon.tsx'

/** How long a button says that it has copied. */
const TOLD_MS = 1_500

/** Copies a text, and says that it did. */
export function Copy({ text, label }: { readonly text: string; readonly label: string }) {
  const told = useSignal('')
  const copy = async (button: HTMLElement) => {
    told.value = (await copied(text, button)) ? 'Copied' : 'Not allowed here'
    setTimeout(() => {
      told.value = ''
    }, TOLD_MS)
  }
  return (
    <button type="button" class="small" onClick={({ currentTarget }) => void copy(currentTarget)}>
      <Icon name={told.value === 'Copied' ? 'check' : 'copy'} />
      <span aria-live="polite">{told.value || label}</span>
    </button>
  )
}

/** Browsers give pages without TLS no clipboard, except on this machine: such a page copies what is selected in it. */
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
  // Beside the button: what is outside of an open dialog cannot be selected.
  button.after(field)
  field.select()
  const isDone = document.execCommand('copy')
  field.remove()
  button.focus()
  return isDone
}
