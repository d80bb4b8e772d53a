import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { ApiFailure, askJson } from '#services/console/api/client.ts'
import { usePoll } from '#services/console/api/poll.ts'
import type { AnyJob } from '#services/console/api/types.ts'
import { Refusal } from '#services/console/parts/refusal.tsx'
import { Status } from '#services/console/parts/status.tsx'
import { askFor, BASE } from '#services/console/place.ts'
import { doneOf } from './done.ts'
import { isEnded } from './list.ts'

const REFRESH_MS = 2_000
/** What ids are made of. */
const ID = /^[\w-]+$/

/**
 * The job whose group the table shows, with how many of it have ended, and the way back to all jobs. That the service is away is said by
 * the table.
 *
 * @param id Of a job or a batch, as the address has it, which may be anything
 */
export function GroupOf({ id, isAll }: { readonly id: string; readonly isAll: boolean }) {
  const job = useSignal<AnyJob | undefined>(undefined)
  const problem = useSignal('')
  const root = id.replace(/^(msg)?batch_/, 'job_')
  useEffect(() => {
    job.value = undefined
    problem.value = ''
  }, [root, isAll])
  usePoll(
    REFRESH_MS,
    async (signal) => {
      // A path of something else would be asked for.
      if (!ID.test(root) || isEnded(job.peek()?.status ?? '') || problem.peek()) return
      await askJson<AnyJob>(`${isAll ? '/v1/admin/jobs' : '/v1/jobs'}/${root}`, { signal }).then(
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
    <section class="card group" aria-label="Group">
      <div class="title">
        <p>What {ID.test(root) ? <a href={`${BASE}/jobs/${root}`}>{name}</a> : name} has others do</p>
        {job.value && <Status of={job.value.status} />}
        <button type="button" class="small" onClick={() => askFor({ group: '' })}>
          Show all jobs
        </button>
      </div>
      <Refusal of={problem.value} />
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
