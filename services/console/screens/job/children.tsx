import { useSignal } from '@preact/signals'
import { useMemo } from 'preact/hooks'
import { Pages } from '#services/console/api/pages.ts'
import { usePoll } from '#services/console/api/poll.ts'
import { isOperator } from '#services/console/api/session.ts'
import type { AnyJob } from '#services/console/api/types.ts'
import { ErrorText } from '#services/console/parts/error-text.tsx'
import { Status } from '#services/console/parts/status.tsx'
import { BASE } from '#services/console/router.ts'
import { isEnded } from '#services/console/screens/jobs/list.ts'
import { progressText } from '#services/console/screens/jobs/progress.ts'

const REFRESH_INTERVAL_MS = 3_000
/** Maximum depth of the tree; deeper jobs are shown on their own page. */
const DEPTH_MAX = 4

interface ChildrenProps {
  readonly job: AnyJob
  readonly isOwn: boolean
}

export function Children({ job, isOwn }: ChildrenProps) {
  const counts = job.child_counts
  if (!counts) return null
  const { total, completed, failed } = counts
  return (
    <section class="card child-jobs" aria-label="Child jobs">
      <div class="title">
        <h2>Child jobs</h2>
        <p class="dim" aria-live="polite">
          {progressText(job)}
          {failed > 0 && <span class="bad">, {failed.toLocaleString()} not completed</span>}
        </p>
      </div>
      <progress value={completed + failed} max={Math.max(1, total)} aria-label="Finished child jobs" />
      <Branch job={job} isOwn={isOwn} depth={1} />
      <p>
        <a href={`${BASE}/jobs?group=${job.id}${isOwn && isOperator.value ? '&of=mine' : ''}`}>
          Show all in the jobs table
        </a>
      </p>
    </section>
  )
}

function Branch({ job, isOwn, depth }: ChildrenProps & { readonly depth: number }) {
  const children = useMemo(() => {
    // Child jobs of other projects are visible in the admin API only.
    return new Pages<AnyJob>(isOwn ? '/v1/jobs' : '/v1/admin/jobs', { parent_id: job.id })
  }, [job.id, isOwn])
  const isFinished = isEnded(job.status)
  usePoll(
    REFRESH_INTERVAL_MS,
    async (signal) => {
      // The children of a finished job do not change.
      if (!isFinished || !children.isLoaded.peek()) await children.refresh(signal)
    },
    [children, isFinished],
  )
  // Sorted by creation time, because ids of child jobs do not increase with time.
  const jobs = children.items.value.toSorted((a, b) => a.created_at - b.created_at || (a.id < b.id ? -1 : 1))
  return (
    <>
      <ErrorText text={children.problem.value} />
      {children.isLoaded.value && jobs.length === 0 && <p class="dim">The child jobs have expired.</p>}
      <ul class="tree">
        {jobs.map((child) => (
          <Child key={child.id} job={child} isOwn={isOwn} depth={depth} />
        ))}
      </ul>
      {children.hasMore.value && (
        <p>
          <button type="button" class="small" onClick={() => void children.more()}>
            Show more
          </button>
        </p>
      )}
    </>
  )
}

function Child({ job, isOwn, depth }: ChildrenProps & { readonly depth: number }) {
  const isOpen = useSignal(false)
  const { id, status, model, endpoint, metadata } = job
  const canOpen = job.child_counts !== undefined && depth < DEPTH_MAX
  const { custom_id } = metadata
  const what = custom_id ? '' : [endpoint.replace('/v1/', ''), model].join(', ')
  return (
    <li>
      <div class="child">
        {canOpen && (
          <button
            type="button"
            class="small twist"
            aria-expanded={isOpen.value}
            aria-label={`Child jobs of ${id}`}
            onClick={() => {
              isOpen.value = !isOpen.value
            }}
          >
            {isOpen.value ? '−' : '+'}
          </button>
        )}
        <Status status={status} />
        <a class="child-name" href={`${BASE}/jobs/${id}`} title={id}>
          {custom_id || <code>{id}</code>}
        </a>
        <span class="dim">{[what, progressText(job)].filter(Boolean).join(' · ')}</span>
      </div>
      {isOpen.value && <Branch job={job} isOwn={isOwn} depth={depth + 1} />}
    </li>
  )
}
