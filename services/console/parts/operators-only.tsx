import type { ComponentChildren } from 'preact'
import { isOperator } from '#services/console/api/session.ts'

/** Renders its children for keys with the `admin` scope, and an explanation for others. */
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
