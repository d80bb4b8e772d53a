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

interface LoadStateProps {
  /** The error of the last load, or an empty text. */
  readonly problem: string
  readonly isLoaded: boolean
  /** Called by the button of an error. Default: runs all polls of the screen now. */
  readonly retry?: () => void
}

/**
 * The state of a screen: an error with a button that tries again, or a placeholder until the data is loaded. The error is also shown above
 * loaded data if a later load failed.
 */
export function LoadState({ problem, isLoaded, retry = retryPolls }: LoadStateProps) {
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
  return (
    <div class="card loading" role="status">
      <span class="dim">Loading…</span>
      <span class="bone" />
      <span class="bone" />
      <span class="bone" />
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
  if (isOperator.value === undefined) return <p class="dim">Loading…</p>
  if (isOperator.value) return <>{children}</>
  return (
    <p class="card">
      This page requires a key with the <code>admin</code> scope. To create one, run{' '}
      <code>npx sluice keys create --scopes calls,admin</code>
    </p>
  )
}
