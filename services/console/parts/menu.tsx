import { useSignal } from '@preact/signals'
import { useEffect, useId, useRef } from 'preact/hooks'
import { Icon } from './parts.tsx'

export interface MenuItem {
  readonly name: string
  /** Whether the item is set apart at the end, in the colour of warnings; default: false. */
  readonly isDestructive?: boolean
  readonly onChoose: () => void
}

interface ActionMenuProps {
  /** Accessible name of the button, such as `Actions of laptop`. */
  readonly label: string
  readonly items: readonly MenuItem[]
}

const GAP_PIXELS = 4
/** Width of a menu and height of one item. The menu is placed by these sizes, because its real size is known only after layout. */
const WIDTH_PIXELS = 180
const ITEM_PIXELS = 44

/**
 * A button with a menu of the secondary actions of a table row, by the ARIA menu button pattern. The arrow keys, Home and End move between
 * the items. Escape and a press elsewhere close the menu. The menu is a popover, because the table would clip any other element. An item's
 * dialog must be rendered outside of the menu, because the menu is hidden while the dialog is open.
 */
export function ActionMenu({ label, items }: ActionMenuProps) {
  const id = useId()
  const button = useRef<HTMLButtonElement>(null)
  const menu = useRef<HTMLDivElement>(null)
  const isOpen = useSignal(false)
  const close = () => menu.current?.hidePopover()
  useEffect(() => {
    if (!isOpen.value) return
    menu.current?.querySelector('button')?.focus()
    // The menu has a fixed position in the window. If the page scrolls, then the menu closes, because it would no
    // longer be next to its button.
    addEventListener('scroll', close, { capture: true })
    return () => removeEventListener('scroll', close, { capture: true })
  }, [isOpen.value])
  const press = (event: KeyboardEvent) => {
    const all = [...(menu.current?.querySelectorAll('button') ?? [])]
    const at = all.indexOf(document.activeElement as HTMLButtonElement)
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key]
    if (event.key === 'Tab') close()
    if (to === undefined) return
    event.preventDefault()
    all[to % all.length]?.focus({ preventScroll: true })
  }
  return (
    <>
      <button
        ref={button}
        type="button"
        class="small"
        aria-label={label}
        title="More actions"
        aria-haspopup="menu"
        aria-expanded={isOpen.value}
        popovertarget={id}
      >
        <Icon name="more" />
      </button>
      <div
        ref={menu}
        id={id}
        class="action-menu"
        role="menu"
        tabIndex={-1}
        aria-label={label}
        popover="auto"
        onBeforeToggle={() => button.current && place(menu.current, button.current, items.length)}
        onToggle={({ newState }) => {
          isOpen.value = newState === 'open'
        }}
        onKeyDown={press}
      >
        {items.map(({ name, isDestructive = false, onChoose }) => (
          <button
            key={name}
            type="button"
            role="menuitem"
            tabIndex={-1}
            class={isDestructive ? 'destructive' : undefined}
            onClick={() => {
              // Closing the menu moves the focus to the button. A dialog that `onChoose` opens can therefore return the
              // focus to the button.
              close()
              onChoose()
            }}
          >
            {name}
          </button>
        ))}
      </div>
    </>
  )
}

/** Positions a menu below its button, or above the button if there is not enough space below. */
function place(menu: HTMLElement | null, button: HTMLElement, items: number): void {
  if (!menu) return
  const { top, right, bottom, left } = button.getBoundingClientRect()
  const { clientWidth, clientHeight } = document.documentElement
  const isBelow = bottom + items * ITEM_PIXELS < clientHeight
  const isLeft = right > WIDTH_PIXELS
  menu.style.inset = [
    isBelow ? `${bottom + GAP_PIXELS}px` : 'auto',
    isLeft ? `${clientWidth - right}px` : 'auto',
    isBelow ? 'auto' : `${clientHeight - top + GAP_PIXELS}px`,
    isLeft ? 'auto' : `${left}px`,
  ].join(' ')
}
