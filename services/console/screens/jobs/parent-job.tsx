import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { ApiFailure, fetchJson } from '#services/console/api/client.ts'
import { usePoll } from '#services/console/api/poll.ts'
import type { AnyJob } from '#services/console/api/types.ts'
import { ErrorText } from '#services/console/parts/error-text.tsx'
import { Status } from '#services/console/parts/status.tsx'
import { BASE, setQuery } from '#services/console/router.ts'
import { isEnded } from './list.ts'
import { progressText } from './progress.ts'

const REFRESH_INTERVAL_MS = 2_000
const ID = /^[\w-]+$/

/**
 * Header of a table filtered by parent: the parent job, the progress of its child jobs, and a link to all jobs. Errors other than 404 are
 * not shown, because the table already reports them.
 *
 * @param id Job or batch id from the URL, unchecked
 */
export function ParentJob({ id, isAll }: { readonly id: string; readonly isAll: boolean }) {
  const job = useSignal<AnyJob | undefined>(undefined)
  const problem = useSignal('')
  const root = id.replace(/^(msg)?batch_/, 'job_')
  useEffect(() => {
    job.value = undefined
    problem.value = ''
  }, [root, isAll])
  usePoll(
    REFRESH_INTERVAL_MS,
    async (signal) => {
      // Only valid ids are requested, because an id such as `../key` would lead to another path.
      if (!ID.test(root) || isEnded(job.peek()?.status ?? '') || problem.peek()) return
      await fetchJson<AnyJob>(`${isAll ? '/v1/admin/jobs' : '/v1/jobs'}/${root}`, { signal }).then(
        (now) => {
          job.value = now
        },
        (error: unknown) => {
          if (error instanceof ApiFailure && error.status === 404) problem.value = error.message
        },
      )
    },
    [root, isAll],
  )
  const counts = job.value?.child_counts
  const name = <code>{root}</code>
  return (
    <section class="card group" aria-label="Parent job">
      <div class="title">
        <p>Child jobs of {ID.test(root) ? <a href={`${BASE}/jobs/${root}`}>{name}</a> : name}</p>
        {job.value && <Status status={job.value.status} />}
        <button type="button" class="small" onClick={() => setQuery({ group: '' })}>
          Show all jobs
        </button>
      </div>
      <ErrorText text={problem.value} />
      {job.value && counts && (
        <label class="budget">
          <progress value={counts.completed + counts.failed} max={Math.max(1, counts.total)} />
          <span class="dim">
            {progressText(job.value)}
            {counts.failed > 0 && <span class="bad">, {counts.failed.toLocaleString()} not completed</span>}
          </span>
        </label>
      )}
    </section>
  )
}
