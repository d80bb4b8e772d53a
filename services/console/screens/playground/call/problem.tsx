import { ErrorText } from '#services/console/parts/error-text.tsx'
import type { Run } from './run.ts'

/** The error of the last request with its remedy; nothing after a success. */
export function RunProblem({ run }: { readonly run: Run }) {
  const { message = '', fix = '' } = run.problem.value ?? {}
  return <ErrorText text={[message, fix].filter(Boolean).join(' ')} />
}
