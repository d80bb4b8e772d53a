import { useSignal } from '@preact/signals'
import { useMemo } from 'preact/hooks'
import { Pages } from '#services/console/api/pages.ts'
import { usePoll } from '#services/console/api/poll.ts'
import { isOperator } from '#services/console/api/session.ts'
import type { AnyJob } from '#services/console/api/types.ts'
import { Refusal } from '#services/console/parts/refusal.tsx'
import { Status } from '#services/console/parts/status.tsx'
import { BASE } from '#services/console/place.ts'
import { doneOf } from '#services/console/screens/jobs/done.ts'
import { isEnded } from '#services/console/screens/jobs/list.ts'

const REFRESH_MS = 3_000
/** Levels below a job that are opened within its page: what is below has a page of its own. */
const DEPTH_MAX = 4

interface FamilyProps {
  readonly job: AnyJob
  /** It belongs to the project of the key. */
  readonly isOwn: boolean
}

/** The jobs that a job has others do, each with its own below it; nothing for a job that does all by itself. */
export function Family({ job, isOwn }: FamilyProps) {
  const counts = job.child_counts
  if (!counts) return null
  const { total, completed, failed } = counts
  return (
    <section class="card family" aria-label="Children">
      <div class="title">
        <h2>Children</h2>
        <p class="dim" aria-live="polite">
          {doneOf(job)}
          {failed > 0 && <span class="bad">, {failed.toLocaleString()} of them not completed</span>}
        </p>
      </div>
      <progress value={completed + failed} max={Math.max(1, total)} aria-label="Children that have ended" />
      <Branch job={job} isOwn={isOwn} depth={1} />
      <p>
        <a href={`${BASE}/jobs?group=${job.id}${isOwn && isOperator.value ? '&of=mine' : ''}`}>
          All of them in the table
        </a>
      </p>
    </section>
  )
}

function Branch({ job, isOwn, depth }: FamilyProps & { readonly depth: number }) {
  const children = useMemo(() => {
    // Those of other projects are seen through the operator's door.
    return new Pages<AnyJob>(isOwn ? '/v1/jobs' : '/v1/admin/jobs', { parent_id: job.id })
  }, [job.id, isOwn])
  const isOver = isEnded(job.status)
  usePoll(
    REFRESH_MS,
    async (signal) => {
      // Of a job that has ended nothing changes any more.
      if (!isOver || !children.isLoaded.peek()) await children.refresh(signal)
    },
    [children, isOver],
  )
  // Their ids have no order in time.
  const jobs = children.items.value.toSorted((a, b) => a.created_at - b.created_at || (a.id < b.id ? -1 : 1))
  return (
    <>
      <Refusal of={children.problem.value} />
      {children.isLoaded.value && jobs.length === 0 && <p class="dim">None of them is kept any more.</p>}
      <ul class="tree">
        {jobs.map((child) => (
          <Child key={child.id} job={child} isOwn={isOwn} depth={depth} />
        ))}
      </ul>
      {children.hasMore.value && (
        <p>
          <button type="button" class="small" onClick={() => void children.more()}>
            Show more of them
          </button>
        </p>
      )}
    </>
  )
}

function Child({ job, isOwn, depth }: FamilyProps & { readonly depth: number }) {
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
            aria-label={`Children of ${id}`}
            onClick={() => {
              isOpen.value = !isOpen.value
            }}
          >
            {isOpen.value ? '−' : '+'}
          </button>
        )}
        <Status of={status} />
        <a class="child-name" href={`${BASE}/jobs/${id}`} title={id}>
          {custom_id || <code>{id}</code>}
        </a>
        <span class="dim">{[what, doneOf(job)].filter(Boolean).join(' · ')}</span>
      </div>
      {isOpen.value && <Branch job={job} isOwn={isOwn} depth={depth + 1} />}
    </li>
  )
}
