import type { Run } from './run.ts'

/** The error of the last request with its remedy; nothing after a success. */
export function ProblemOf({ run }: { readonly run: Run }) {
  const problem = run.problem.value
  if (!problem) return null
  return (
    <p class="refusal" role="alert">
      {problem.words} {problem.next}
    </p>
  )
}
