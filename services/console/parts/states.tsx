import { signal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { isOperator, messageOf } from '#services/console/api/client.ts'
import { Icon, retryPolls } from './parts.tsx'

/** Data of a screen, which a poll loads repeatedly. After an error, the data of the last load remain. @param none Data until the first load */
export function polled<T>(none: T, load: (abort: AbortSignal) => Promise<T>) {
  const data = signal(none)
  const isLoaded = signal(false)
  const problem = signal('')
  const refresh = async (abort = new AbortController().signal) => {
    try {
      data.value = await load(abort)
      isLoaded.value = true
      problem.value = ''
    } catch (error) {
      if (!abort.aborted) problem.value = messageOf(error)
    }
  }
  return { data, isLoaded, problem, refresh }
}

/** Counts of the requests of a batch by their outcome, or of the child jobs of another job. */
interface Counts {
  readonly total: number
  readonly completed: number
  readonly failed: number
  /** Completed requests whose answer is none of the choices of the table, or lacks the fields for its columns. */
  readonly invalid?: number
}

/** The words of all states. A state that is missing is shown by the name that the API gives it. */
const WORDS: Readonly<Record<string, string>> = { in_progress: 'running', waiting: 'queued' }

type Tone = 'good' | 'busy' | 'wait' | 'bad' | 'none'

/** Colour of each state. Any other state is grey. */
const TONES: Readonly<Record<Exclude<Tone, 'none'>, readonly string[]>> = {
  good: ['completed', 'delivered', 'ready', 'valid', 'alive', 'active'],
  busy: ['in_progress', 'running', 'finalizing', 'validating', 'scheduled'],
  wait: [
    'queued',
    'waiting',
    'pending',
    'retrying',
    'cancelling',
    'paused',
    'loading',
    'draining',
    'drained',
    'partial',
  ],
  bad: ['failed', 'expired', 'no worker', 'unresponsive'],
}

interface StatusProps {
  readonly status: string
  /** Text instead of the word of the state, such as `2 calls, 1 failed`. */
  readonly text?: string | undefined
  /** Counts of a batch. A completed batch with failed requests or invalid answers is not shown as a success. */
  readonly counts?: Counts | undefined
}

/** The state of an object: its word, and a dot in the colour of the state. */
export function Status({ status, text, counts }: StatusProps) {
  const { completed, failed, invalid = 0 } = counts ?? { completed: 0, failed: 0 }
  if (status === 'completed' && failed + invalid > 0) {
    return completed === 0 ? (
      <Status status="failed" text="all failed" />
    ) : (
      <Status status="partial" text="completed with errors" />
    )
  }
  const [tone = 'none'] = Object.entries(TONES).find(([, states]) => states.includes(status)) ?? []
  return (
    <span class={`status ${tone} ${status.replace(' ', '-')}`}>
      {text ?? WORDS[status] ?? status.replace('_', ' ')}
    </span>
  )
}

/** Progress bar in which the failed requests and the invalid answers have their own colour. */
export function CountsBar({ label, counts }: { readonly label: string; readonly counts: Counts }) {
  const { total, completed, failed, invalid = 0 } = counts
  const widthOf = (count: number) => ({ width: `${(100 * count) / Math.max(1, total)}%` })
  return (
    <span
      class="counts-bar"
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={total}
      aria-valuenow={completed + failed}
    >
      <span style={widthOf(completed - invalid)} />
      {failed + invalid > 0 && <span class="failed" style={widthOf(failed + invalid)} />}
    </span>
  )
}

interface LoadStateProps {
  /** The error of the last load, or an empty text. */
  readonly problem: string
  readonly isLoaded: boolean
  /** Shape of the placeholder, so that the page does not move when the data arrives. Default: a table. */
  readonly layout?: 'table' | 'detail'
  /** Called by the button of an error. Default: runs all polls of the screen now. */
  readonly retry?: () => void
}

const PLACEHOLDER_ROWS = [1, 2, 3, 4, 5, 6]

/**
 * The state of a screen: an error with a button that tries again, or a placeholder until the data is loaded. The error is also shown above
 * loaded data if a later load failed.
 */
export function LoadState({ problem, isLoaded, layout = 'table', retry = retryPolls }: LoadStateProps) {
  if (problem) {
    return (
      <div class="error-text load-error" role="alert">
        <Icon name="warn" />
        <p>
          {problem} {isLoaded && 'The values below may be old.'}
        </p>
        <button type="button" class="small" onClick={retry}>
          <Icon name="again" /> Retry
        </button>
      </div>
    )
  }
  if (isLoaded) return null
  const card = (
    <div class="card loading">
      {PLACEHOLDER_ROWS.map((row) => (
        <span key={row} class="bone" />
      ))}
    </div>
  )
  return (
    <div class={layout === 'detail' ? 'columns' : undefined} role="status">
      <span class="visually-hidden">Loading…</span>
      {card}
      {layout === 'detail' && card}
    </div>
  )
}

interface EmptyProps {
  readonly title: string
  readonly children?: ComponentChildren
  /** A link or button for the next step of the user. */
  readonly action?: ComponentChildren
}

/** The card that is shown instead of an empty list. */
export function Empty({ title, children, action }: EmptyProps) {
  return (
    <div class="empty card">
      <h2>{title}</h2>
      {children && <p class="dim">{children}</p>}
      {action && <div class="actions">{action}</div>}
    </div>
  )
}

export function OperatorsOnly({ children }: { readonly children: ComponentChildren }) {
  if (isOperator.value === undefined) return <LoadState problem="" isLoaded={false} />
  if (isOperator.value) return <>{children}</>
  return (
    <p class="card">
      This page requires a key with the <code>admin</code> scope. Ask the operator of the service for one.
    </p>
  )
}
