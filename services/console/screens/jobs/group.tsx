import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { askJson } from '#services/console/api/client.ts'
import { usePoll } from '#services/console/api/poll.ts'
import type { AnyJob } from '#services/console/api/types.ts'
import { Status } from '#services/console/parts/status.tsx'
import { askFor, BASE } from '#services/console/place.ts'
import { doneOf } from './done.ts'
import { isEnded } from './list.ts'

const REFRESH_MS = 2_000

/** The job whose group the table shows, with how many of it have ended, and the way back to all jobs. @param id Of a job or a batch */
export function GroupOf({ id, isAll }: { readonly id: string; readonly isAll: boolean }) {
  const job = useSignal<AnyJob | undefined>(undefined)
  const root = id.replace(/^(msg)?batch_/, 'job_')
  useEffect(() => {
    job.value = undefined
  }, [root])
  usePoll(
    REFRESH_MS,
    async (signal) => {
      if (isEnded(job.peek()?.status ?? '')) return
      job.value = await askJson<AnyJob>(`${isAll ? '/v1/admin/jobs' : '/v1/jobs'}/${root}`, { signal })
    },
    [root, isAll],
  )
  const counts = job.value?.child_counts
  return (
    <section class="card group" aria-label="Group">
      <div class="title">
        <p>
          What{' '}
          <a href={`${BASE}/jobs/${root}`}>
            <code>{root}</code>
          </a>{' '}
          has others do
        </p>
        {job.value && <Status of={job.value.status} />}
        <button type="button" class="small" onClick={() => askFor({ group: '' })}>
          Show all jobs
        </button>
      </div>
      {job.value && counts && (
        <label class="budget">
          <progress value={counts.completed + counts.failed} max={Math.max(1, counts.total)} />
          <span class="dim">
            {doneOf(job.value)}
            {counts.failed > 0 && <span class="bad">, {counts.failed.toLocaleString()} of them not completed</span>}
          </span>
        </label>
      )}
    </section>
  )
}
