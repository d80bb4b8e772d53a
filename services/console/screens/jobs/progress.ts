import type { AnyJob } from '#services/console/api/types.ts'

/** Progress of the child jobs, such as `120 of 500 done`; empty without children. */
export function progressText({ child_counts }: AnyJob): string {
  if (!child_counts) return ''
  const { total, completed, failed } = child_counts
  return `${(completed + failed).toLocaleString()} of ${total.toLocaleString()} done`
}
