import { useSignal } from '@preact/signals'
import { useEffect, useMemo, useRef } from 'preact/hooks'
import { type AnyJob, ApiFailure, fetchJson, isOperator } from '#services/console/api/client.ts'
import { serviceNow } from '#services/console/api/clock.ts'
import { projectName } from '#services/console/api/names.ts'
import { Chips, ErrorText, ShortId, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, queryParam, setQuery } from '#services/console/parts/router.ts'
import { CountsBar, Empty, LoadState, Status } from '#services/console/parts/states.tsx'
import { Age } from '#services/console/parts/table.tsx'
import { durationText } from '#shared/lib/duration.ts'
import {
  batchCountsOf,
  batchModels,
  dueText,
  endedAtOf,
  type Filter,
  isBatch,
  isEnded,
  JobList,
  jobEndpoints,
  loadSuggestions,
  modelIds,
  progressText,
  shownStatusOf,
} from './list.ts'

const REFRESH_INTERVAL_MS = 2_000
const STATUSES = [
  { id: '', name: 'All' },
  { id: 'queued', name: 'Queued' },
  { id: 'scheduled', name: 'Scheduled' },
  { id: 'retrying', name: 'Retrying' },
  { id: 'in_progress', name: 'Running' },
  { id: 'completed', name: 'Completed' },
  { id: 'failed', name: 'Failed' },
  { id: 'cancelled', name: 'Cancelled' },
  { id: 'expired', name: 'Expired' },
] as const
const NUMBERS = ['Created', 'Duration']
const COLUMNS = ['Status', 'Job', 'Model', ...NUMBERS]
const OPERATOR_COLUMNS = COLUMNS.toSpliced(3, 0, 'Project')

export function Jobs() {
  const filter = filterOf()
  const key = JSON.stringify(filter)
  const list = useMemo(() => new JobList(filter), [key])
  usePoll(REFRESH_INTERVAL_MS, (signal) => list.refresh(signal), [list])
  const { jobs, problem, isLoaded, hasMore } = list
  return (
    <section class="jobs">
      <div class="title">
        <h1>Jobs</h1>
        <p class="dim" aria-live="polite">
          {isLoaded.value && countText(jobs.value.length, hasMore.value)}
        </p>
      </div>
      {filter.group && <ParentJob key={filter.group} id={filter.group} isAll={filter.isAll} />}
      <Filters filter={filter} />
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {isLoaded.value && (jobs.value.length === 0 ? <NoJobs filter={filter} /> : <JobTable list={list} />)}
    </section>
  )
}

function countText(count: number, hasMore: boolean): string {
  return count === 1 && !hasMore ? '1 job' : `${count.toLocaleString('en')}${hasMore ? '+' : ''} jobs`
}

function filterOf(): Filter {
  const isAll = isOperator.value === true && queryParam('of') !== 'mine'
  return {
    status: queryParam('status'),
    model: queryParam('model'),
    endpoint: queryParam('endpoint'),
    group: queryParam('group'),
    isAll,
  }
}

function Filters({ filter }: { readonly filter: Filter }) {
  useEffect(() => void loadSuggestions(), [])
  return (
    <div class="filters">
      <Chips label="Status" choices={STATUSES} value={filter.status} onChoose={(status) => setQuery({ status })} />
      {filter.isAll ? (
        <input
          type="search"
          list="known-models"
          autocomplete="off"
          aria-label="Model"
          placeholder="Model"
          value={filter.model}
          onChange={({ currentTarget }) => setQuery({ model: currentTarget.value.trim() })}
        />
      ) : (
        <EndpointFilter endpoint={filter.endpoint} />
      )}
      <datalist id="known-models">
        {modelIds.value.map((id) => (
          <option key={id} value={id} />
        ))}
      </datalist>
      {isOperator.value && (
        <select
          aria-label="Project"
          value={filter.isAll ? '' : 'mine'}
          onChange={({ currentTarget }) => setQuery({ of: currentTarget.value })}
        >
          <option value="">All projects</option>
          <option value="mine">My project</option>
        </select>
      )}
    </div>
  )
}

function EndpointFilter({ endpoint }: { readonly endpoint: string }) {
  // Until the endpoints are loaded, the filter offers only the endpoint in the URL.
  const endpoints = new Set([...jobEndpoints.value, ...(endpoint ? [endpoint] : [])])
  return (
    <select
      aria-label="Endpoint"
      value={endpoint}
      onChange={({ currentTarget }) => setQuery({ endpoint: currentTarget.value })}
    >
      <option value="">All endpoints</option>
      {[...endpoints].map((one) => (
        <option key={one}>{one}</option>
      ))}
    </select>
  )
}

function NoJobs({ filter }: { readonly filter: Filter }) {
  const isFiltered = Boolean(filter.status || filter.model || filter.endpoint || filter.group)
  if (isFiltered) {
    return (
      <Empty
        title="No matching jobs"
        action={
          <button type="button" onClick={() => setQuery({ status: '', model: '', endpoint: '', group: '' })}>
            Remove all filters
          </button>
        }
      />
    )
  }
  return (
    <Empty
      title="No jobs yet"
      action={
        <a class="button" href="/docs/guide">
          Open the guide
        </a>
      }
    >
      To create a durable job, send any request with the header <code>Prefer: respond-async</code>. Jobs appear here.
    </Empty>
  )
}

/** Row height in pixels, as set in styles/screens.css. A narrow row has two lines. */
const ROW = { wide: 48, narrow: 98 }
const NARROW = '(max-width: 960px)'
/** Number of rows that are rendered above the visible rows, and below. */
const MARGIN_ROWS = 12

/** A virtual table: only visible rows are in the DOM. The page scrolls, and the next page loads before the end is reached. */
function JobTable({ list }: { readonly list: JobList }) {
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
  const isOwned = jobs.some((job) => 'project' in job)
  return (
    <div class="table" role="table" aria-label="Jobs" aria-rowcount={jobs.length + 1}>
      <div class={isOwned ? 'row head owned' : 'row head'} role="row" aria-rowindex={1}>
        {(isOwned ? OPERATOR_COLUMNS : COLUMNS).map((name) => (
          <span
            key={name}
            role="columnheader"
            class={NUMBERS.includes(name) ? 'number' : name === 'Project' ? 'owner' : undefined}
          >
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
  const { id, model, endpoint, created_at, metadata } = job
  const project = 'project' in job ? projectName(job.project) : ''
  const counts = batchCountsOf(job)
  const progress = progressText(job).replace(' done', '')
  const what = job.prompt_preview ?? (isBatch(job) ? 'Batch of requests' : undefined)
  const href = `${BASE}/jobs/${id}`
  const call = metadata.custom_id || endpoint.replace('/v1/', '')
  return (
    <div
      class={project ? 'row owned' : 'row'}
      role="row"
      aria-rowindex={index + 2}
      style={{ transform: `translateY(${top}px)` }}
    >
      <span role="cell">
        <Status status={shownStatusOf(job)} counts={counts} />
        {waitText(job) && <span class="dim below">{waitText(job)}</span>}
        {job.error?.code && <span class="bad below">{job.error.code}</span>}
        {progress && (
          <span class="progress dim below">
            {progress}
            {job.child_counts && <CountsBar label={`Finished child jobs of ${id}`} counts={job.child_counts} />}
          </span>
        )}
      </span>
      <span role="cell" class="id">
        {what ? (
          <>
            <a class="row-link what" href={href} title={what} aria-label={`${what}, ${id}`}>
              {what}
            </a>
            <ShortId id={id} />
          </>
        ) : (
          <ShortId id={id} href={href} />
        )}
      </span>
      <span role="cell" class="model">
        <span>{batchModels.value.get(id) || model}</span>
        <span class="endpoint dim below">
          {call}
          {[progress, project].filter(Boolean).map((text) => (
            <span key={text} class="narrow-only">
              {' '}
              · {text}
            </span>
          ))}
        </span>
      </span>
      {project && (
        <span role="cell" class="owner dim">
          {project}
        </span>
      )}
      <span role="cell" class="made number dim">
        <Age at={created_at} />
      </span>
      <span role="cell" class="took number dim">
        {durationOf(job)}
      </span>
    </div>
  )
}

/** Returns the due time or the queue position of a waiting job, and the number of a further attempt. */
function waitText(job: AnyJob): string {
  const { status, queue, attempt, child_counts } = job
  const due = dueText(job)
  if (due) return attempt > 0 ? `attempt ${attempt + 1} ${due}` : due
  if (status === 'in_progress') return attempt > 1 && !child_counts ? `attempt ${attempt}` : ''
  if (status !== 'queued' || queue.position === null) return ''
  return queue.position === 0 ? 'next in queue' : `${queue.position.toLocaleString('en')} ahead in queue`
}

/** Returns the run time of a job or, before its start, the time since its creation. A dash until the job is due. */
function durationOf(job: AnyJob): string {
  if (dueText(job)) return '–'
  return durationText(Math.max(0, (endedAtOf(job) ?? serviceNow()) - (job.started_at ?? job.created_at)))
}

const PARENT_REFRESH_MS = 2_000
const ID = /^[\w-]+$/

/**
 * Header of a table filtered by parent: the parent job, the progress of its child jobs, and a link to all jobs. Only a 404 is shown as an error,
 * because the table already reports all other errors.
 *
 * @param id Job or batch id from the URL, unchecked
 */
function ParentJob({ id, isAll }: { readonly id: string; readonly isAll: boolean }) {
  const job = useSignal<AnyJob | undefined>(undefined)
  const problem = useSignal('')
  const root = id.replace(/^(msg)?batch_/, 'job_')
  useEffect(() => {
    job.value = undefined
    problem.value = ''
  }, [root, isAll])
  usePoll(
    PARENT_REFRESH_MS,
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
        {job.value && <Status status={shownStatusOf(job.value)} counts={batchCountsOf(job.value)} />}
        <button type="button" class="small" onClick={() => setQuery({ group: '' })}>
          Show all jobs
        </button>
      </div>
      <ErrorText text={problem.value} />
      {job.value && counts && (
        <div class="budget">
          <span class="dim">
            {progressText(job.value)}
            {counts.failed > 0 && <span class="bad">, {counts.failed.toLocaleString('en')} not completed</span>}
          </span>
          <CountsBar label="Finished child jobs" counts={counts} />
        </div>
      )}
    </section>
  )
}
