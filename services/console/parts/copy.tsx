import { useSignal } from '@preact/signals'
import { Icon } from './icon.tsx'

/** How long a button says that it has copied. */
const TOLD_MS = 1_500

/** Copies a text, and says that it did. */
export function Copy({ text, label }: { readonly text: string; readonly label: string }) {
  const isDone = useSignal(false)
  const copy = async () => {
    await navigator.clipboard.writeText(text)
    isDone.value = true
    setTimeout(() => {
      isDone.value = false
    }, TOLD_MS)
  }
  return (
    <button type="button" class="small" onClick={() => void copy().catch(() => {})}>
      <Icon name={isDone.value ? 'check' : 'copy'} />
      <span aria-live="polite">{isDone.value ? 'Copied' : label}</span>
    </button>
  )
}
