import { useMemo } from 'preact/hooks'
import { usePoll } from '#services/console/api/poll.ts'
import { isOperator } from '#services/console/api/session.ts'
import { asked, askFor, BASE } from '#services/console/place.ts'
import { GroupOf } from './group.tsx'
import { type Filter, JobList } from './list.ts'
import { JobTable } from './table.tsx'

const REFRESH_MS = 2_000
const STATUSES = ['queued', 'in_progress', 'completed', 'failed', 'cancelled', 'expired'] as const
const ENDPOINTS = [
  '/v1/chat/completions',
  '/v1/completions',
  '/v1/responses',
  '/v1/messages',
  '/v1/embeddings',
  '/v1/rerank',
  '/v1/moderations',
  '/v1/audio/transcriptions',
  '/v1/audio/translations',
  '/v1/audio/speech',
  '/v1/tools/code',
  '/v1/deep-research',
  '/v1/batches',
]

/** The jobs of the key's project, or of all projects, as they are now. */
export function Jobs() {
  const filter = filterOf()
  const which = JSON.stringify(filter)
  const list = useMemo(() => new JobList(filter), [which])
  usePoll(REFRESH_MS, (signal) => list.refresh(signal), [list])
  const { jobs, problem, isLoaded, hasMore } = list
  return (
    <section class="jobs">
      <div class="title">
        <h1>Jobs</h1>
        <p class="dim" aria-live="polite">
          {isLoaded.value ? countWords(jobs.value.length, hasMore.value) : 'Loading…'}
        </p>
      </div>
      {filter.group && <GroupOf key={filter.group} id={filter.group} isAll={filter.isAll} />}
      <Filters filter={filter} />
      {problem.value && (
        <p class="refusal" role="alert">
          {problem.value}
        </p>
      )}
      {isLoaded.value && jobs.value.length === 0 ? <NoJobs filter={filter} /> : <JobTable list={list} />}
    </section>
  )
}

function countWords(count: number, hasMore: boolean): string {
  return `${count === 1 ? '1 job' : `${count.toLocaleString()} jobs`}${hasMore ? ' and more' : ''}`
}

function filterOf(): Filter {
  const isAll = isOperator.value === true && asked('of') !== 'mine'
  return {
    status: asked('status'),
    model: asked('model'),
    endpoint: asked('endpoint'),
    group: asked('group'),
    isAll,
  }
}

function Filters({ filter }: { readonly filter: Filter }) {
  return (
    <div class="filters">
      <fieldset class="chips" aria-label="Status">
        <Chip name="All" isOn={filter.status === ''} onClick={() => askFor({ status: '' })} />
        {STATUSES.map((status) => (
          <Chip
            key={status}
            name={status.replace('_', ' ')}
            isOn={filter.status === status}
            onClick={() => askFor({ status })}
          />
        ))}
      </fieldset>
      {filter.isAll ? (
        <input
          type="search"
          aria-label="Model"
          placeholder="Model"
          value={filter.model}
          onChange={({ currentTarget }) => askFor({ model: currentTarget.value.trim() })}
        />
      ) : (
        <select
          aria-label="Endpoint"
          value={filter.endpoint}
          onChange={({ currentTarget }) => askFor({ endpoint: currentTarget.value })}
        >
          <option value="">All endpoints</option>
          {ENDPOINTS.map((endpoint) => (
            <option key={endpoint}>{endpoint}</option>
          ))}
        </select>
      )}
      {isOperator.value && (
        <select
          aria-label="Whose"
          value={filter.isAll ? '' : 'mine'}
          onChange={({ currentTarget }) => askFor({ of: currentTarget.value })}
        >
          <option value="">All projects</option>
          <option value="mine">My project</option>
        </select>
      )}
    </div>
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
      <h2>{isFiltered ? 'No job is like that' : 'There are no jobs yet'}</h2>
      <p class="dim">
        {isFiltered
          ? 'Take a filter away to see more.'
          : 'A call with the header Prefer: respond-async becomes a job, which is kept until it is done.'}
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
