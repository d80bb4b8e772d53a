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
const COLUMNS = ['Message', 'Job', 'To', 'Tries', 'Last answer', 'Next try', 'Made', '']
/** What is asked for, and what stands where there is nothing of it. */
const STATES = [
  { id: '', name: 'Not received', none: 'Every message that was due has been received.' },
  { id: 'pending', name: 'Waiting', none: 'No message waits to be sent.' },
  { id: 'failed', name: 'Given up', none: 'No message was given up.' },
  { id: 'delivered', name: 'Delivered', none: 'No message has been received in the time for which jobs are kept.' },
] as const
/** How the state of a message is called, and its colour. */
const SAID: Readonly<Record<string, readonly [text: string, status: string]>> = {
  pending: ['waiting', 'queued'],
  failed: ['given up', 'failed'],
  delivered: ['delivered', 'completed'],
}

/** What webhooks were told, were not told yet, or could not be told: each try, why, and the way to send it again. */
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
        Messages about jobs, to the addresses that these name. Each is tried for about 17 hours; one that was given up
        can be sent again.
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
        <h2>There are none</h2>
        <p class="dim">{STATES.find(({ id }) => id === asked('status'))?.none}</p>
      </div>
    )
  }
  return (
    <>
      <Table label="Webhook messages" columns={COLUMNS}>
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
  const [said, state] = SAID[status] ?? [status, status]
  return (
    <tr>
      <Cell of="Message">
        <span class={`status ${state}`}>{said}</span>
        <span class="below">{type}</span>
      </Cell>
      <Cell of="Job">
        <a href={`${BASE}/jobs/${job_id}`}>
          <code class="breaks">{job_id}</code>
        </a>
        <span class="dim below">of {project}</span>
      </Cell>
      <Cell of="To">{host ?? <span class="dim">–</span>}</Cell>
      <Cell of="Tries">{attempts}</Cell>
      <Cell of="Last answer">
        {/* The words of an answer name its status. */}
        <span>{error ?? response_status ?? <span class="dim">not tried yet</span>}</span>
        {of.history.length > 0 && <History of={of.history} />}
      </Cell>
      <Cell of="Next try">{next_at === null ? <span class="dim">–</span> : <Next at={next_at} />}</Cell>
      <Cell of="Made">
        <span title={clock(created_at)}>{ago(created_at)}</span>
      </Cell>
      <Cell>{status !== 'delivered' && <SendAgain id={id} list={list} />}</Cell>
    </tr>
  )
}

function History({ of }: { readonly of: Delivery['history'] }) {
  return (
    <details class="tries">
      <summary>{of.length === 1 ? '1 try' : `The last ${of.length} tries`}</summary>
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
        aria-label={`Send again ${id}`}
        disabled={isBusy.value}
        onClick={() => void act(send)}
      >
        <Icon name="again" /> Send again
      </button>
      <Refusal of={problem.value} />
    </>
  )
}

function countOf({ items, hasMore }: Pages<Delivery>): string {
  const count = items.value.length
  const said = count === 1 ? '1 message' : `${count} messages`
  return hasMore.value ? `${said} and more` : said
}
