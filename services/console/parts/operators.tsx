import type { ComponentChildren } from 'preact'
import { isOperator } from '#services/console/api/session.ts'

/** What only operators may see; others are told whose key shows it. */
export function ForOperators({ children }: { readonly children: ComponentChildren }) {
  if (isOperator.value === undefined) return <p class="dim">Loading…</p>
  if (isOperator.value) return <>{children}</>
  return (
    <p class="card">
      This page is for keys with the scope <code>admin</code>: <code>npx sluice keys create --scopes calls,admin</code>{' '}
      makes one.
    </p>
  )
}
