import { useEffect, useMemo } from 'preact/hooks'
import { usePoll } from '#services/console/api/poll.ts'
import { isOperator } from '#services/console/api/session.ts'
import { ErrorText } from '#services/console/parts/error-text.tsx'
import { BASE, queryParam, setQuery } from '#services/console/router.ts'
import { jobEndpoints, loadJobEndpoints } from './endpoints.ts'
import { type Filter, JobList } from './list.ts'
import { ParentJob } from './parent-job.tsx'
import { JobTable } from './table.tsx'

const REFRESH_INTERVAL_MS = 2_000
const STATUSES = ['queued', 'in_progress', 'completed', 'failed', 'cancelled', 'expired'] as const

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
          {isLoaded.value ? countText(jobs.value.length, hasMore.value) : 'Loading…'}
        </p>
      </div>
      {filter.group && <ParentJob key={filter.group} id={filter.group} isAll={filter.isAll} />}
      <Filters filter={filter} />
      <ErrorText text={problem.value} />
      {isLoaded.value && jobs.value.length === 0 ? <NoJobs filter={filter} /> : <JobTable list={list} />}
    </section>
  )
}

function countText(count: number, hasMore: boolean): string {
  return count === 1 && !hasMore ? '1 job' : `${count.toLocaleString()}${hasMore ? '+' : ''} jobs`
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
  return (
    <div class="filters">
      <fieldset class="chips" aria-label="Status">
        <Chip name="All" isOn={filter.status === ''} onClick={() => setQuery({ status: '' })} />
        {STATUSES.map((status) => (
          <Chip
            key={status}
            name={status.replace('_', ' ')}
            isOn={filter.status === status}
            onClick={() => setQuery({ status })}
          />
        ))}
      </fieldset>
      {filter.isAll ? (
        <input
          type="search"
          aria-label="Model"
          placeholder="Model"
          value={filter.model}
          onChange={({ currentTarget }) => setQuery({ model: currentTarget.value.trim() })}
        />
      ) : (
        <EndpointFilter endpoint={filter.endpoint} />
      )}
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
  // An error is ignored, because the filter then still offers the endpoint in the URL.
  useEffect(() => void loadJobEndpoints().catch(() => {}), [])
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

function Chip({
  name,
  isOn,
  onClick,
}: {
  readonly name: string
  readonly isOn: boolean
  readonly onClick: () => void
}) {
  return (
    <button type="button" class="chip" aria-pressed={isOn} onClick={onClick}>
      {name}
    </button>
  )
}

function NoJobs({ filter }: { readonly filter: Filter }) {
  const isFiltered = Boolean(filter.status || filter.model || filter.endpoint || filter.group)
  return (
    <div class="empty card">
      <h2>{isFiltered ? 'No matching jobs' : 'No jobs yet'}</h2>
      <p class="dim">
        {isFiltered
          ? 'Remove a filter to see more jobs.'
          : 'To create a durable job, send any request with the header Prefer: respond-async. Jobs appear here.'}
      </p>
      {!isFiltered && (
        <p>
          <a class="button" href={`${BASE}/playground`}>
            Try it in the playground
          </a>
        </p>
      )}
    </div>
  )
}
