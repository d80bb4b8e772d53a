import { useSignal } from '@preact/signals'
import { useEffect, useMemo } from 'preact/hooks'
import { fetchJson } from '#services/console/api/client.ts'
import { usePoll } from '#services/console/api/poll.ts'
import type { DeadLetter, Page, Pool } from '#services/console/api/types.ts'
import { Confirm } from '#services/console/parts/confirm.tsx'
import { ErrorText } from '#services/console/parts/error-text.tsx'
import { LoadMore } from '#services/console/parts/load-more.tsx'
import { OperatorsOnly } from '#services/console/parts/operators-only.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { ageText, dateTimeText } from '#services/console/parts/time.ts'
import { BASE, queryParam, setQuery } from '#services/console/router.ts'
import { DeadLetterList } from './list.ts'
import { Redrive } from './redrive.tsx'

const REFRESH_INTERVAL_MS = 5_000
const COLUMNS = ['Reason', 'Pool', 'Job', 'Kind', 'Size', 'Created', '']
const REASONS: Readonly<Record<string, string>> = {
  not_understood: 'unreadable',
  understood_here: 'version mismatch',
}

/** Records that no worker could process, with the reason. Durable jobs among them can be requeued. */
export function DeadLetters() {
  return (
    <section>
      <OperatorsOnly>
        <Letters />
      </OperatorsOnly>
    </section>
  )
}

function Letters() {
  const pool = queryParam('pool')
  const list = useMemo(() => new DeadLetterList(pool), [pool])
  usePoll(REFRESH_INTERVAL_MS, (signal) => list.refresh(signal), [list])
  const { letters, isLoaded, problem } = list
  return (
    <>
      <div class="title">
        <h1>Dead letters</h1>
        <Redrive key={pool} list={list} />
      </div>
      <p class="dim">
        Records that no worker could process. The service deletes them after 14 days, whether requeued or not.
        Requeueing a record twice is safe: its job runs once.
      </p>
      <PoolFilter pool={pool} />
      <ErrorText text={problem.value} />
      {isLoaded.value ? (
        <LetterTable list={list} letters={letters.value} />
      ) : (
        !problem.value && <p class="dim">Loading…</p>
      )}
    </>
  )
}

function PoolFilter({ pool }: { readonly pool: string }) {
  const pools = useSignal<readonly string[]>([])
  useEffect(() => {
    fetchJson<Page<Pool>>('/v1/admin/pools').then(
      ({ data }) => {
        pools.value = data.map(({ id }) => id)
      },
      // An error is ignored, because the filter is optional: without it, the page shows all pools.
      () => {},
    )
  }, [pools])
  return (
    <div class="filters">
      <select aria-label="Pool" value={pool} onChange={({ currentTarget }) => setQuery({ pool: currentTarget.value })}>
        <option value="">All pools</option>
        {[...new Set([...pools.value, ...(pool ? [pool] : [])])].map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
    </div>
  )
}

function LetterTable({ list, letters }: { readonly list: DeadLetterList; readonly letters: readonly DeadLetter[] }) {
  return (
    <>
      {letters.length > 0 ? (
        <Table label="Dead letters" columns={COLUMNS}>
          {letters.map((letter) => (
            <Row key={letter.id} list={list} letter={letter} />
          ))}
        </Table>
      ) : (
        <div class="empty card">
          <h2>{list.hasMore.value ? 'None among the newest 10,000 records' : 'No dead letters'}</h2>
          <p class="dim">Records that no worker can process appear here.</p>
        </div>
      )}
      <LoadMore list={list} />
    </>
  )
}

function Row({ list, letter }: { readonly list: DeadLetterList; readonly letter: DeadLetter }) {
  const { id, reason, message, pool, position, job_id, kind, model, project, bytes, redrivable, created_at } = letter
  return (
    <tr>
      <Cell column="Reason">
        <span class={`status ${redrivable ? 'queued' : 'failed'}`}>
          {REASONS[reason] ?? reason.replaceAll('_', ' ')}
        </span>
        <span class="dim below">{message}</span>
        {redrivable && <span class="below">Can be requeued.</span>}
      </Cell>
      <Cell column="Pool">
        {pool ?? '–'}
        {typeof position === 'string' && <code class="dim below">{position}</code>}
      </Cell>
      <Cell column="Job">{job_id ? <JobName id={job_id} isDurable={redrivable} /> : '–'}</Cell>
      <Cell column="Kind">
        {kind ?? '–'}
        {model && <span class="below">{model}</span>}
        {project && <span class="dim below">project {project}</span>}
      </Cell>
      <Cell column="Size">{bytes.toLocaleString()} B</Cell>
      <Cell column="Created">
        <span title={dateTimeText(created_at)}>{ageText(created_at)}</span>
      </Cell>
      <Cell>
        <div class="actions">
          {redrivable && (
            <Confirm verb="Requeue" what={`dead letter ${id}`} action={() => list.requeue(id)}>
              <p>The job returns to its queue. A job that has already finished does not change.</p>
            </Confirm>
          )}
          <Confirm verb="Discard" what={`dead letter ${id}`} action={() => list.discard(id)}>
            <p>
              The record leaves this list and can no longer be requeued. A durable job expires at its deadline. This
              can’t be undone.
            </p>
          </Confirm>
        </div>
      </Cell>
    </tr>
  )
}

/** The id of a job, as a link if the job is durable. Other jobs have no page. */
function JobName({ id, isDurable }: { readonly id: string; readonly isDurable: boolean }) {
  if (!isDurable) return <code>{id}</code>
  return (
    <a href={`${BASE}/jobs/${id}`}>
      <code>{id}</code>
    </a>
  )
}
