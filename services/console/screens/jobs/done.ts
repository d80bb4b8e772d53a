import type { AnyJob } from '#services/console/api/types.ts'

/** How many of the jobs that a job has others do have ended, such as `120 of 500`; empty where there are none. */
export function doneOf({ child_counts }: AnyJob): string {
  if (!child_counts) return ''
  const { total, completed, failed } = child_counts
  return `${(completed + failed).toLocaleString()} of ${total.toLocaleString()}`
}
