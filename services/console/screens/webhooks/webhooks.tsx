import { useMemo } from 'preact/hooks'
import { askJson } from '#services/console/api/client.ts'
import { serviceNow } from '#services/console/api/clock.ts'
import { Pages } from '#services/console/api/pages.ts'
import { usePoll } from '#services/console/api/poll.ts'
import type { Delivery } from '#services/console/api/types.ts'
import { useDeed } from '#services/console/parts/deed.ts'
import { Icon } from '#services/console/parts/icon.tsx'
import { Older } from '#services/console/parts/older.tsx'
import { ForOperators } from '#services/console/parts/operators.tsx'
import { Refusal } from '#services/console/parts/refusal.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { ago, brief, clock, lasted } from '#services/console/parts/time.ts'
import { asked, askFor, BASE } from '#services/console/place.ts'

const REFRESH_MS = 3_000
const COLUMNS = ['Event', 'Job', 'Host', 'Attempts', 'Last response', 'Next attempt', 'Created', '']
/** Filters, each with the text of its empty state. */
const STATES = [
  { id: '', name: 'Undelivered', none: 'Events that a receiver has not accepted yet appear here.' },
  { id: 'pending', name: 'Pending', none: 'Events that are waiting for their next attempt appear here.' },
  { id: 'failed', name: 'Failed', none: 'Events whose retries are exhausted appear here.' },
  { id: 'delivered', name: 'Delivered', none: 'Delivered events appear here until their job expires.' },
] as const
/** Label and CSS class of each delivery status. */
const STATUSES: Readonly<Record<string, readonly [text: string, status: string]>> = {
  pending: ['pending', 'queued'],
  failed: ['failed', 'failed'],
  delivered: ['delivered', 'completed'],
}

/** Webhook deliveries with their attempts and errors. Undelivered ones can be resent. */
export function Webhooks() {
  return (
    <section>
      <ForOperators>
        <Messages />
      </ForOperators>
    </section>
  )
}

function Messages() {
  const status = asked('status')
  const list = useMemo(() => new Pages<Delivery>('/v1/admin/deliveries', { status }), [status])
  usePoll(REFRESH_MS, (signal) => list.refresh(signal), [list])
  const { isLoaded, problem } = list
  return (
    <>
      <div class="title">
        <h1>Webhooks</h1>
        {isLoaded.value && <p class="dim">{countOf(list)}</p>}
      </div>
      <p class="dim">
        Job events, sent to the webhook URL of each job. Deliveries are retried for about 17 hours; failed ones can be
        resent.
      </p>
      <div class="filters">
        <fieldset class="chips">
          <legend class="unseen">State</legend>
          {STATES.map(({ id, name }) => (
            <button
              key={id}
              type="button"
              class="chip"
              aria-pressed={id === status}
              onClick={() => askFor({ status: id })}
            >
              {name}
            </button>
          ))}
        </fieldset>
      </div>
      <Refusal of={problem.value} />
      {isLoaded.value ? <Shown list={list} /> : !problem.value && <p class="dim">Loading…</p>}
    </>
  )
}

function Shown({ list }: { readonly list: Pages<Delivery> }) {
  const { items } = list
  if (items.value.length === 0) {
    return (
      <div class="empty card">
        <h2>No deliveries</h2>
        <p class="dim">{STATES.find(({ id }) => id === asked('status'))?.none}</p>
      </div>
    )
  }
  return (
    <>
      <Table label="Webhook deliveries" columns={COLUMNS}>
        {items.value.map((delivery) => (
          <Row key={delivery.id} of={delivery} list={list} />
        ))}
      </Table>
      <Older list={list} />
    </>
  )
}

function Row({ of, list }: { readonly of: Delivery; readonly list: Pages<Delivery> }) {
  const { id, type, status, project, job_id, host, attempts, response_status, error, next_at, created_at } = of
  const [label, style] = STATUSES[status] ?? [status, status]
  return (
    <tr>
      <Cell of="Event">
        <span class={`status ${style}`}>{label}</span>
        <span class="below">{type}</span>
      </Cell>
      <Cell of="Job">
        <a href={`${BASE}/jobs/${job_id}`}>
          <code class="breaks">{job_id}</code>
        </a>
        <span class="dim below">project {project}</span>
      </Cell>
      <Cell of="Host">{host ?? <span class="dim">–</span>}</Cell>
      <Cell of="Attempts">{attempts}</Cell>
      <Cell of="Last response">
        {/* An error text includes the response status. */}
        <span>{error ?? response_status ?? <span class="dim">not attempted yet</span>}</span>
        {of.history.length > 0 && <History of={of.history} />}
      </Cell>
      <Cell of="Next attempt">{next_at === null ? <span class="dim">–</span> : <Next at={next_at} />}</Cell>
      <Cell of="Created">
        <span title={clock(created_at)}>{ago(created_at)}</span>
      </Cell>
      <Cell>{status !== 'delivered' && <SendAgain id={id} list={list} />}</Cell>
    </tr>
  )
}

function History({ of }: { readonly of: Delivery['history'] }) {
  return (
    <details class="tries">
      <summary>{of.length === 1 ? '1 attempt' : `Last ${of.length} attempts`}</summary>
      <ol>
        {of.toReversed().map(({ at, duration_ms, response_status, error }) => (
          <li key={`${at} ${duration_ms}`}>
            <span title={clock(at)}>{ago(at)}</span>
            <span class="dim">, {brief(duration_ms / 1_000)}</span>
            <span class="below">{error ?? response_status}</span>
          </li>
        ))}
      </ol>
    </details>
  )
}

function Next({ at }: { readonly at: number }) {
  const left = at - serviceNow()
  return <span title={clock(at)}>{left < 1 ? 'now' : `in ${lasted(left)}`}</span>
}

function SendAgain({ id, list }: { readonly id: string; readonly list: Pages<Delivery> }) {
  const { isBusy, problem, act } = useDeed()
  const send = async () => {
    await askJson(`/v1/admin/deliveries/${encodeURIComponent(id)}/retry`, { method: 'POST' })
    await list.refresh()
  }
  return (
    <>
      <button
        type="button"
        class="small"
        aria-label={`Resend ${id}`}
        disabled={isBusy.value}
        onClick={() => void act(send)}
      >
        <Icon name="again" /> Resend
      </button>
      <Refusal of={problem.value} />
    </>
  )
}

function countOf({ items, hasMore }: Pages<Delivery>): string {
  const count = items.value.length
  return count === 1 && !hasMore.value ? '1 delivery' : `${count}${hasMore.value ? '+' : ''} deliveries`
}
