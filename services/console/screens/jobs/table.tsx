import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import type { AnyJob } from '#services/console/api/types.ts'
import { Status } from '#services/console/parts/status.tsx'
import { ageText, dateTimeText, durationText } from '#services/console/parts/time.ts'
import { BASE } from '#services/console/router.ts'
import type { JobList } from './list.ts'
import { progressText } from './progress.ts'

/** Row height in pixels, as set in styles/screens.css. A narrow row has two lines. */
const ROW = { wide: 44, narrow: 90 }
const NARROW = '(max-width: 760px)'
/** Rows rendered above and below the visible ones. */
const MARGIN_ROWS = 12

/** A virtual table: only visible rows are in the DOM. The page scrolls, and the next page loads before the end is reached. */
export function JobTable({ list }: { readonly list: JobList }) {
  const body = useRef<HTMLDivElement>(null)
  const visible = useSignal({ first: 0, count: 40, height: ROW.wide })
  const jobs = list.jobs.value
  useEffect(() => {
    const update = () => {
      const height = matchMedia(NARROW).matches ? ROW.narrow : ROW.wide
      const above = Math.max(0, -(body.current?.getBoundingClientRect().top ?? 0))
      const first = Math.max(0, Math.floor(above / height) - MARGIN_ROWS)
      const count = Math.ceil(innerHeight / height) + 2 * MARGIN_ROWS
      const now = visible.peek()
      if (now.first !== first || now.count !== count || now.height !== height) visible.value = { first, count, height }
      if (first + count >= list.jobs.peek().length) void list.more()
    }
    update()
    addEventListener('scroll', update, { passive: true })
    addEventListener('resize', update)
    return () => {
      removeEventListener('scroll', update)
      removeEventListener('resize', update)
    }
  }, [list, visible, jobs.length])
  const { first, count, height } = visible.value
  return (
    <div class="table" role="table" aria-label="Jobs" aria-rowcount={jobs.length + 1}>
      <div class="row head" role="row" aria-rowindex={1}>
        {['Status', 'Job', 'Model', 'Endpoint', 'Created', 'Duration'].map((name) => (
          <span key={name} role="columnheader">
            {name}
          </span>
        ))}
      </div>
      <div ref={body} class="rows" role="rowgroup" style={{ height: `${jobs.length * height}px` }}>
        {jobs.slice(first, first + count).map((job, nth) => (
          <Row key={job.id} job={job} index={first + nth} top={(first + nth) * height} />
        ))}
      </div>
    </div>
  )
}

function Row({ job, index, top }: { readonly job: AnyJob; readonly index: number; readonly top: number }) {
  const { id, status, model, endpoint, created_at, metadata } = job
  const project = 'project' in job ? job.project : ''
  return (
    <div class="row" role="row" aria-rowindex={index + 2} style={{ transform: `translateY(${top}px)` }}>
      <span role="cell">
        <Status status={status} />
      </span>
      <span role="cell" class="id">
        <a href={`${BASE}/jobs/${id}`}>
          <code>{id}</code>
        </a>
      </span>
      <span role="cell" class="model">
        {model}
      </span>
      <span role="cell" class="endpoint dim">
        {[progressText(job), metadata.custom_id || endpoint.replace('/v1/', ''), project].filter(Boolean).join(' · ')}
      </span>
      <span role="cell" class="made dim" title={dateTimeText(created_at)}>
        {ageText(created_at)}
      </span>
      <span role="cell" class="took dim">
        {durationOf(job)}
      </span>
    </div>
  )
}

/** The duration of a finished job, or the progress of an unfinished one. */
function durationOf({ status, queue, started_at, created_at, attempt, ...job }: AnyJob): string {
  const ended = job.completed_at ?? job.failed_at ?? job.cancelled_at ?? job.expired_at
  if (ended !== null) return durationText(ended - (started_at ?? created_at))
  if (status === 'queued')
    return queue.position === null ? 'waiting' : `#${(queue.position + 1).toLocaleString()} in queue`
  return attempt > 1 ? `attempt ${attempt}` : 'running'
}
