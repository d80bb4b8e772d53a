import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { Dialog } from '#services/console/parts/dialog.tsx'

interface DialogButtonProps {
  readonly verb: string
  readonly title: string
  readonly isSmall?: boolean
  readonly isPrimary?: boolean
  readonly onClose: () => void
  readonly children: (close: () => void) => ComponentChildren
}

export function DialogButton({
  verb,
  title,
  isSmall = false,
  isPrimary = false,
  onClose,
  children,
}: DialogButtonProps) {
  const isOpen = useSignal(false)
  return (
    <>
      <button
        type="button"
        class={isPrimary ? 'primary' : isSmall ? 'small' : undefined}
        aria-label={isSmall ? title : undefined}
        onClick={() => {
          isOpen.value = true
        }}
      >
        {verb}
      </button>
      {isOpen.value && (
        <Dialog
          title={title}
          onClose={() => {
            isOpen.value = false
            onClose()
          }}
        >
          {children}
        </Dialog>
      )}
    </>
  )
}
