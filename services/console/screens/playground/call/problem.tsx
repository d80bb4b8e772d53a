import type { Run } from './run.ts'

/** Why the last call failed, and what to do next; nothing where it did not. */
export function ProblemOf({ run }: { readonly run: Run }) {
  const problem = run.problem.value
  if (!problem) return null
  return (
    <p class="refusal" role="alert">
      {problem.words} {problem.next}
    </p>
  )
}
