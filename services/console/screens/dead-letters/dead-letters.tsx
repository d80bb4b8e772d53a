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
const COLUMNS = ['Reason', 'Pool', 'Job', 'What', 'Size', 'When', '']

/** What no worker could run, why, and the way back into the queues. */
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
        Records that no worker could run. They are kept for two weeks, also those that were put back: doing that twice
        runs nothing twice.
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
      // Without their names the letters of all pools are shown.
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
          <h2>{list.hasMore.value ? 'None among the newest ten thousand' : 'There are none'}</h2>
          <p class="dim">Every record that came to a worker could be read.</p>
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
        <span class={`status ${redrivable ? 'queued' : 'failed'}`}>{reason.replaceAll('_', ' ')}</span>
        <span class="dim below">{message}</span>
        {redrivable && <span class="below">It can be put back.</span>}
      </Cell>
      <Cell of="Pool">
        {pool ?? '–'}
        {typeof position === 'string' && <code class="dim below">{position}</code>}
      </Cell>
      <Cell of="Job">{job_id ? <JobName id={job_id} isDurable={redrivable} /> : '–'}</Cell>
      <Cell of="What">
        {kind ?? '–'}
        {model && <span class="below">{model}</span>}
        {project && <span class="dim below">of {project}</span>}
      </Cell>
      <Cell of="Size">{bytes.toLocaleString()} B</Cell>
      <Cell of="When">
        <span title={clock(created_at)}>{ago(created_at)}</span>
      </Cell>
      <Cell>
        <div class="actions">
          {redrivable && (
            <Confirm verb="Put back" what={`letter ${id}`} deed={() => list.putBack(id)}>
              <p>It goes back into its queue. A job that has ended meanwhile stays as it is.</p>
            </Confirm>
          )}
          <Confirm verb="Discard" what={`letter ${id}`} deed={() => list.discard(id)}>
            <p>It is shown no more, and is not put back with others. A durable job of it ends at its deadline.</p>
          </Confirm>
        </div>
      </Cell>
    </tr>
  )
}

/** A call leaves no job behind that could be looked at. */
function JobName({ id, isDurable }: { readonly id: string; readonly isDurable: boolean }) {
  if (!isDurable) return <code>{id}</code>
  return (
    <a href={`${BASE}/jobs/${id}`}>
      <code>{id}</code>
    </a>
  )
}
