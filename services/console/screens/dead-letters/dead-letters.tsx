import { useSignal } from '@preact/signals'
import { useEffect, useMemo } from 'preact/hooks'
import { askJson } from '#services/console/api/client.ts'
import { usePoll } from '#services/console/api/poll.ts'
import type { DeadLetter, Page, Pool } from '#services/console/api/types.ts'
import { Confirm } from '#services/console/parts/confirm.tsx'
import { Older } from '#services/console/parts/older.tsx'
import { ForOperators } from '#services/console/parts/operators.tsx'
import { Refusal } from '#services/console/parts/refusal.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { ago, clock } from '#services/console/parts/time.ts'
import { asked, askFor, BASE } from '#services/console/place.ts'
import { DeadLetterList } from './list.ts'
import { Redrive } from './redrive.tsx'

const REFRESH_MS = 5_000
const COLUMNS = ['Reason', 'Pool', 'Job', 'Kind', 'Size', 'Created', '']
const REASONS: Readonly<Record<string, string>> = {
  not_understood: 'unreadable',
  understood_here: 'version mismatch',
}

/** Records that no worker could process, with the reason. Durable jobs among them can be requeued. */
export function DeadLetters() {
  return (
    <section>
      <ForOperators>
        <Letters />
      </ForOperators>
    </section>
  )
}

function Letters() {
  const pool = asked('pool')
  const list = useMemo(() => new DeadLetterList(pool), [pool])
  usePoll(REFRESH_MS, (signal) => list.refresh(signal), [list])
  const { letters, isLoaded, problem } = list
  return (
    <>
      <div class="title">
        <h1>Dead letters</h1>
        <Redrive key={pool} list={list} />
      </div>
      <p class="dim">
        Records that no worker could process. They are deleted after 14 days, whether requeued or not. Requeueing one
        twice is safe: its job runs once.
      </p>
      <PoolFilter pool={pool} />
      <Refusal of={problem.value} />
      {isLoaded.value ? <Shown list={list} letters={letters.value} /> : !problem.value && <p class="dim">Loading…</p>}
    </>
  )
}

function PoolFilter({ pool }: { readonly pool: string }) {
  const pools = useSignal<readonly string[]>([])
  useEffect(() => {
    askJson<Page<Pool>>('/v1/admin/pools').then(
      ({ data }) => {
        pools.value = data.map(({ id }) => id)
      },
      // The filter is optional: without it, the page shows all pools.
      () => {},
    )
  }, [pools])
  return (
    <div class="filters">
      <select aria-label="Pool" value={pool} onChange={({ currentTarget }) => askFor({ pool: currentTarget.value })}>
        <option value="">All pools</option>
        {[...new Set([...pools.value, ...(pool ? [pool] : [])])].map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
    </div>
  )
}

function Shown({ list, letters }: { readonly list: DeadLetterList; readonly letters: readonly DeadLetter[] }) {
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
      <Older list={list} />
    </>
  )
}

function Row({ list, letter }: { readonly list: DeadLetterList; readonly letter: DeadLetter }) {
  const { id, reason, message, pool, position, job_id, kind, model, project, bytes, redrivable, created_at } = letter
  return (
    <tr>
      <Cell of="Reason">
        <span class={`status ${redrivable ? 'queued' : 'failed'}`}>
          {REASONS[reason] ?? reason.replaceAll('_', ' ')}
        </span>
        <span class="dim below">{message}</span>
        {redrivable && <span class="below">Can be requeued.</span>}
      </Cell>
      <Cell of="Pool">
        {pool ?? '–'}
        {typeof position === 'string' && <code class="dim below">{position}</code>}
      </Cell>
      <Cell of="Job">{job_id ? <JobName id={job_id} isDurable={redrivable} /> : '–'}</Cell>
      <Cell of="Kind">
        {kind ?? '–'}
        {model && <span class="below">{model}</span>}
        {project && <span class="dim below">project {project}</span>}
      </Cell>
      <Cell of="Size">{bytes.toLocaleString()} B</Cell>
      <Cell of="Created">
        <span title={clock(created_at)}>{ago(created_at)}</span>
      </Cell>
      <Cell>
        <div class="actions">
          {redrivable && (
            <Confirm verb="Requeue" what={`dead letter ${id}`} deed={() => list.putBack(id)}>
              <p>The job returns to its queue. A job that has already finished does not change.</p>
            </Confirm>
          )}
          <Confirm verb="Discard" what={`dead letter ${id}`} deed={() => list.discard(id)}>
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

/** Only durable jobs have a page of their own. */
function JobName({ id, isDurable }: { readonly id: string; readonly isDurable: boolean }) {
  if (!isDurable) return <code>{id}</code>
  return (
    <a href={`${BASE}/jobs/${id}`}>
      <code>{id}</code>
    </a>
  )
}
