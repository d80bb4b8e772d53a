import { type ReadonlySignal, type Signal, signal, useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useId, useRef } from 'preact/hooks'
import { messageOf } from '#services/console/api/client.ts'
import { BASE } from './router.ts'

/** Icons as SVG path data, drawn as strokes in a 24 × 24 view box. */
const PATHS = {
  home: 'M4 11l8-7 8 7v9h-5v-6H9v6H4z',
  requests: 'M4 5h3M4 12h3M4 19h3M10 5h10M10 12h10M10 19h10',
  jobs: 'M4 6h16M4 12h16M4 18h10',
  usage: 'M4 20V10M10 20V4M16 20v-7M22 20H2',
  batches: 'M4 5h16v4H4zM4 11h16v4H4zM4 17h9v3H4z',
  models: 'M12 3l9 5-9 5-9-5zM3 12l9 5 9-5M3 16l9 5 9-5',
  pools: 'M4 6h7v5H4zM13 6h7v5h-7zM4 14h7v5H4zM13 14h7v5h-7z',
  audit: 'M6 3h9l4 4v14H6zM14 3v5h5M9 12h6M9 16h6',
  workers: 'M4 5h16v6H4zM4 13h16v6H4zM7 8h3M7 16h3',
  letters: 'M3 6h18v12H3zM3 7l9 7 9-7',
  keys: 'M15 9a4 4 0 1 0-4.5 4L4 19.5V21h3v-2h2v-2h2l1.5-1.5M16 7v.5',
  hook: 'M9 10a4 4 0 1 1 5 4l2 4M14 9l-4 7a4 4 0 1 1-5-2M16 18a3 3 0 1 0 3-4',
  play: 'M4 5h16v11H9l-5 4z',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2',
  moon: 'M20 14a8 8 0 1 1-9-11 7 7 0 0 0 9 11z',
  half: 'M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18',
  leave: 'M14 4h6v16h-6M4 12h11M11 8l4 4-4 4',
  stop: 'M7 7h10v10H7z',
  send: 'M4 12h15M13 6l6 6-6 6',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  back: 'M19 12H5M11 6l-6 6 6 6',
  again: 'M4 12a8 8 0 1 1 3 6M4 20v-5h5',
  warn: 'M12 3l10 18H2zM12 10v5M12 18v.5',
  check: 'M4 12l6 6L20 6',
  menu: 'M4 6h16M4 12h16M4 18h16',
  close: 'M6 6l12 12M18 6L6 18',
  more: 'M5 12h.01M12 12h.01M19 12h.01',
} as const

export type IconName = keyof typeof PATHS

/** A decorative icon, hidden from screen readers. Text next to it carries the meaning. */
export function Icon({ name }: { readonly name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  )
}

export function ErrorText({ text }: { readonly text: string }) {
  if (!text) return null
  return (
    <p class="error-text" role="alert">
      {text}
    </p>
  )
}

interface Toast {
  readonly text: string
  /** Path below {@link BASE} and name of a link to the result, such as a new job. */
  readonly link?: readonly [path: string, name: string] | undefined
}

const TOAST_MS = 8_000
const toast = signal<Toast | undefined>(undefined)
let toastTimer: ReturnType<typeof setTimeout> | undefined

/** Reports the success of an action for some seconds, at the lower edge of the window. A later report replaces an earlier one. */
export function report(text: string, link?: Toast['link']): void {
  toast.value = { text, link }
  clearTimeout(toastTimer)
  toastTimer = setTimeout(closeToast, TOAST_MS)
}

function closeToast(): void {
  toast.value = undefined
}

/** The region of the reports. The region is always on the page, because screen readers announce only changes of a known region. */
export function Toasts() {
  const { text, link } = toast.value ?? {}
  return (
    <div class="toasts" role="status" aria-label="Reports">
      {text && (
        <div class="toast">
          <Icon name="check" />
          <span>{text}</span>
          {link && (
            <a href={`${BASE}/${link[0]}`} onClick={closeToast}>
              {link[1]}
            </a>
          )}
          <button type="button" class="quiet" aria-label="Dismiss" onClick={closeToast}>
            <Icon name="close" />
          </button>
        </div>
      )}
    </div>
  )
}

interface Action {
  readonly isBusy: Signal<boolean>
  readonly problem: Signal<string>
  /** @param done Report of the success */
  run(work: () => Promise<void>, done?: string): Promise<boolean>
}

export function useAction(): Action {
  const isBusy = useSignal(false)
  const problem = useSignal('')
  const run = async (work: () => Promise<void>, done = '') => {
    isBusy.value = true
    problem.value = ''
    await work().catch((error: unknown) => {
      problem.value = messageOf(error)
    })
    isBusy.value = false
    if (done && problem.value === '') report(done)
    return problem.value === ''
  }
  return { isBusy, problem, run }
}

interface DialogProps {
  readonly title: string
  /** Called after any kind of close: a button, Escape or the back gesture. */
  readonly onClose: () => void
  /** @param close Closes the dialog, which returns the focus to the opening button */
  readonly children: (close: () => void) => ComponentChildren
}

export function Dialog({ title, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null)
  const id = useId()
  useEffect(() => dialog.current?.showModal(), [])
  return (
    <dialog ref={dialog} aria-labelledby={id} onClose={onClose}>
      <h2 id={id}>{title}</h2>
      {children(() => dialog.current?.close())}
    </dialog>
  )
}

interface ConfirmProps {
  /** Verb on the button that opens the dialog and on the button that confirms, such as `Pause`. */
  readonly verb: string
  /** Object of the verb in the title of the dialog, such as the name of a model or `this job`. */
  readonly what: string
  /** Id of the object, on a line of its own below the title. */
  readonly id?: string
  readonly action: () => Promise<void>
  /** Report of the success, such as `Job cancelled`. */
  readonly done: string
  /** Text of the button that changes nothing. The text names the result of this choice, such as `Keep running`. */
  readonly keep: string
  /** Text of the button that confirms; default: the verb. */
  readonly confirm?: string
  /** Whether the action cannot be undone; default: false. */
  readonly isDestructive?: boolean
  /** Describes the consequence of the action, and whether the action can be undone. */
  readonly children: ComponentChildren
}

export function Confirm(props: ConfirmProps) {
  const isOpen = useSignal(false)
  const { verb, what, id, isDestructive = false } = props
  return (
    <>
      <button
        type="button"
        class={isDestructive ? 'small destructive' : 'small'}
        aria-label={`${verb} ${id ?? what}`}
        onClick={() => {
          isOpen.value = true
        }}
      >
        {verb}
      </button>
      {isOpen.value && (
        <ConfirmDialog
          {...props}
          onClose={() => {
            isOpen.value = false
          }}
        />
      )}
    </>
  )
}

export function ConfirmDialog(props: ConfirmProps & { readonly onClose: () => void }) {
  const { verb, what, id, keep, confirm = verb, action, done, children, isDestructive = false, onClose } = props
  const { isBusy, problem, run } = useAction()
  return (
    <Dialog title={`${verb} ${what}?`} onClose={onClose}>
      {(close) => (
        <>
          {id && (
            <p class="dim">
              <code>{id}</code>
            </p>
          )}
          {children}
          <ErrorText text={problem.value} />
          <div class="actions end">
            <button type="button" onClick={close}>
              {keep}
            </button>
            <button
              type="button"
              class={isDestructive ? 'primary destructive' : 'primary'}
              disabled={isBusy.value}
              onClick={() => void run(action, done).then((isDone) => isDone && close())}
            >
              {isBusy.value ? 'Working…' : confirm}
            </button>
          </div>
        </>
      )}
    </Dialog>
  )
}

interface FormActionsProps {
  readonly action: Action
  readonly verb: string
  readonly close: () => void
}

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

const FEEDBACK_MS = 1_500

interface CopyButtonProps {
  readonly text: string
  readonly label: string
  /** Whether only the icon is visible; default: false. */
  readonly isIcon?: boolean
}

export function CopyButton({ text, label, isIcon = false }: CopyButtonProps) {
  const feedback = useSignal('')
  const copy = async (button: HTMLElement) => {
    feedback.value = (await copyText(text, button)) ? 'Copied' : 'Copy failed'
    setTimeout(() => {
      feedback.value = ''
    }, FEEDBACK_MS)
  }
  return (
    <button
      type="button"
      class={isIcon ? 'quiet copy' : 'small'}
      title={isIcon ? label : undefined}
      onClick={({ currentTarget }) => void copy(currentTarget)}
    >
      <Icon name={feedback.value === 'Copied' ? 'check' : 'copy'} />
      <span aria-live="polite" class={isIcon ? 'visually-hidden' : undefined}>
        {feedback.value || label}
      </span>
    </button>
  )
}

/**
 * Number of characters at the end of an id that stay visible. Ids begin with their creation time, so neighbouring ids
 * in a list differ only at the end.
 */
const TAIL_CHARS = 6

/** An id on one line, shortened by an ellipsis in its middle, with a button that copies it. With a link, the whole table row opens the page. */
export function ShortId({ id, href }: { readonly id: string; readonly href?: string }) {
  const code = (
    <code class="short-id" title={id}>
      <span>{id.slice(0, -TAIL_CHARS)}</span>
      <span>{id.slice(-TAIL_CHARS)}</span>
    </code>
  )
  return (
    <span class="id-cell">
      {href ? (
        <a class="row-link" href={href} aria-label={id}>
          {code}
        </a>
      ) : (
        code
      )}
      <CopyButton text={id} label="Copy ID" isIcon />
    </span>
  )
}

interface ChipsProps {
  readonly label: string
  readonly choices: readonly { readonly id: string; readonly name: string }[]
  readonly value: string
  readonly onChoose: (id: string) => void
}

/** Distance of the chosen chip from the edge of a line that scrolls, in pixels. */
const CHIP_MARGIN_PX = 14

/** A filter with several choices, of which exactly one is selected. */
export function Chips({ label, choices, value, onChoose }: ChipsProps) {
  const chips = useRef<HTMLFieldSetElement>(null)
  // In a narrow window, the chips are one line that scrolls. Only the line is scrolled here, because `scrollIntoView` would also scroll the
  // page.
  useEffect(() => {
    const line = chips.current
    const chosen = line?.querySelector('[aria-pressed=true]')?.getBoundingClientRect()
    if (!line || !chosen) return
    const { left, right } = line.getBoundingClientRect()
    line.scrollLeft += Math.min(0, chosen.left - CHIP_MARGIN_PX - left)
    line.scrollLeft += Math.max(0, chosen.right + CHIP_MARGIN_PX - right)
  }, [value])
  return (
    <fieldset class="chips" ref={chips}>
      <legend class="visually-hidden">{label}</legend>
      {choices.map(({ id, name }) => (
        <button key={id} type="button" class="chip" aria-pressed={id === value} onClick={() => onChoose(id)}>
          {name}
        </button>
      ))}
    </fieldset>
  )
}

/**
 * Copies a text. Browsers offer the clipboard API only on pages with TLS and on localhost. On other pages, the function
 * selects the text in a field and copies the selection with the deprecated `execCommand`.
 */
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
  // The button may be in an open dialog. Text outside an open dialog cannot be selected, so the field is inserted next to the button.
  button.after(field)
  field.select()
  const isDone = document.execCommand('copy')
  field.remove()
  button.focus()
  return isDone
}

interface LoadMoreProps {
  readonly list: { readonly hasMore: ReadonlySignal<boolean>; more(): Promise<void> }
}

export function LoadMore({ list }: LoadMoreProps) {
  const { isBusy, problem, run } = useAction()
  return (
    <>
      <ErrorText text={problem.value} />
      {list.hasMore.value && (
        <p>
          <button type="button" disabled={isBusy.value} onClick={() => void run(() => list.more())}>
            Load more
          </button>
        </p>
      )}
    </>
  )
}

interface CountProps {
  /** Undefined until the value is loaded. */
  readonly value: number | undefined
  /** Whether the value is a minimum, because not all objects were read. Default: false. */
  readonly hasMore?: boolean
  /** Path below {@link BASE} of the counted objects. */
  readonly path: string
  readonly isFailures?: boolean
}

/** A number that links to the counted objects. An exact zero is not a link, because its list is empty. */
export function Count({ value, path, hasMore = false, isFailures = false }: CountProps) {
  if (value === undefined) return <span class="dim">–</span>
  if (value === 0 && !hasMore) return <>0</>
  return (
    <a class={isFailures ? 'figure bad' : 'figure'} href={`${BASE}/${path}`}>
      {value.toLocaleString('en')}
      {hasMore && '+'}
    </a>
  )
}

/** Playground form for each capability of a model, in order of precedence. */
const FORM_OF = [
  ['chat', 'chat'],
  ['transcription', 'audio'],
  ['speech', 'speech'],
  ['embeddings', 'embeddings'],
  ['rerank', 'rerank'],
  ['deep_research', 'research'],
] as const

interface TryItProps {
  readonly model: string
  readonly capabilities: readonly string[]
  readonly class?: string
}

export function TryIt({ model, capabilities, class: className }: TryItProps) {
  const [, form] = FORM_OF.find(([capability]) => capabilities.includes(capability)) ?? []
  if (!form) return null
  const query = new URLSearchParams({ form, model })
  return (
    <a class={className} href={`${BASE}/playground?${query}`} aria-label={`Try it: ${model} in the playground`}>
      Try it
    </a>
  )
}

const retries = new EventTarget()

export function retryPolls(): void {
  retries.dispatchEvent(new Event('retry'))
}

/**
 * Calls `round` now and at an interval while the page is visible. While a call of `round` is in progress, the next call
 * is skipped.
 */
export function usePoll(
  everyMs: number,
  round: (signal: AbortSignal) => Promise<void>,
  inputs: readonly unknown[],
): void {
  useEffect(() => {
    const abort = new AbortController()
    let isBusy = false
    const tick = async () => {
      if (isBusy || document.hidden) return
      isBusy = true
      await round(abort.signal).finally(() => {
        isBusy = false
      })
    }
    const quietly = () => void tick().catch(() => {})
    quietly()
    const timer = setInterval(quietly, everyMs)
    document.addEventListener('visibilitychange', quietly)
    retries.addEventListener('retry', quietly)
    return () => {
      abort.abort()
      clearInterval(timer)
      document.removeEventListener('visibilitychange', quietly)
      retries.removeEventListener('retry', quietly)
    }
  }, inputs)
}

/** Name that the service gives to the file of a response. */
export function fileNameOf({ headers }: Response): string {
  const text = headers.get('content-disposition') ?? ''
  const [, extended] = /filename\*=UTF-8''([^;]+)/.exec(text) ?? []
  return extended ? decodeURIComponent(extended) : (/filename="([^"]+)"/.exec(text)?.[1] ?? 'results')
}

/**
 * Delay in ms before the object URL is revoked. An earlier revocation could cancel the
 * download, because the browser starts the download later.
 */
const REVOKE_DELAY_MS = 10_000

export function download(name: string, content: string | Blob): void {
  const blob = typeof content === 'string' ? new Blob([content], { type: 'text/plain' }) : content
  const url = URL.createObjectURL(blob)
  const link = document.createElement('a')
  link.href = url
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(url), REVOKE_DELAY_MS)
}
