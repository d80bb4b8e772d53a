import { useMemo } from 'preact/hooks'
import { type Delivery, fetchJson, Pages } from '#services/console/api/client.ts'
import { dateTimeText, latencyText, serviceNow } from '#services/console/api/clock.ts'
import { projectName } from '#services/console/api/names.ts'
import { Chips, ErrorText, Icon, LoadMore, ShortId, useAction, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, queryParam, setQuery } from '#services/console/parts/router.ts'
import { Empty, LoadState, OperatorsOnly, Status } from '#services/console/parts/states.tsx'
import { Age, Cell, Table } from '#services/console/parts/table.tsx'
import { durationText } from '#shared/lib/duration.ts'

const REFRESH_INTERVAL_MS = 3_000
const COLUMNS = ['Status', 'Job', 'Host', 'Last response', 'Attempts', 'Next attempt', 'Created', '']
const NUMBERS = ['Attempts', 'Next attempt', 'Created']
const STATES = [
  { id: '', name: 'All', none: 'Budget alerts, and events of jobs that have a webhook, appear here.' },
  { id: 'undelivered', name: 'Undelivered', none: 'Events that a receiver has not accepted yet appear here.' },
  { id: 'pending', name: 'Pending', none: 'Events that are waiting for their next attempt appear here.' },
  { id: 'failed', name: 'Failed', none: 'Events whose retries are exhausted appear here.' },
  { id: 'delivered', name: 'Delivered', none: 'Delivered events appear here until their job expires.' },
] as const
/**
 * Value of the query parameter `status` of the API, by filter of the screen. An empty `status` lists undelivered messages, so the filter
 * without a value must request `all`.
 */
const API_STATUSES: Readonly<Record<string, string>> = { '': 'all', undelivered: '' }

export function Webhooks() {
  return (
    <section>
      <OperatorsOnly>
        <Deliveries />
      </OperatorsOnly>
    </section>
  )
}

function Deliveries() {
  const status = queryParam('status')
  const list = useMemo(
    () => new Pages<Delivery>('/v1/admin/deliveries', { status: API_STATUSES[status] ?? status }),
    [status],
  )
  usePoll(REFRESH_INTERVAL_MS, (signal) => list.refresh(signal), [list])
  const { isLoaded, problem } = list
  return (
    <>
      <div class="title">
        <h1>Webhooks</h1>
        {isLoaded.value && <p class="dim">{countOf(list)}</p>}
      </div>
      <p class="dim">
        Events of jobs, sent to the webhook URL of each job, and budget alerts. Deliveries are retried within 18 hours;
        failed ones can be resent.
      </p>
      <div class="filters">
        <Chips label="Status" choices={STATES} value={status} onChoose={(id) => setQuery({ status: id })} />
      </div>
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {isLoaded.value && <DeliveryTable list={list} />}
    </>
  )
}

function DeliveryTable({ list }: { readonly list: Pages<Delivery> }) {
  const { items } = list
  if (items.value.length === 0) {
    return <Empty title="No deliveries">{STATES.find(({ id }) => id === queryParam('status'))?.none}</Empty>
  }
  return (
    <>
      <Table
        label="Webhook deliveries"
        columns={COLUMNS}
        numbers={NUMBERS}
        main={['Last response']}
        optional={['Host']}
        card={{ end: 'Created', hidden: ['Attempts'] }}
      >
        {items.value.map((delivery) => (
          <Row key={delivery.id} delivery={delivery} list={list} />
        ))}
      </Table>
      <LoadMore list={list} />
    </>
  )
}

function Row({ delivery, list }: { readonly delivery: Delivery; readonly list: Pages<Delivery> }) {
  const { id, type, status, project, job_id, host, attempts, response_status, error, next_at, created_at } = delivery
  return (
    <tr>
      <Cell column="Status">
        <Status status={status} />
        <span class="below">{type}</span>
      </Cell>
      <Cell column="Job">
        {job_id === null ? (
          <a href={`${BASE}/usage`}>budget</a>
        ) : (
          <ShortId id={job_id} href={`${BASE}/jobs/${job_id}`} />
        )}
        <span class="dim below">project {projectName(project)}</span>
      </Cell>
      <Cell column="Host">{host ?? '–'}</Cell>
      <Cell column="Last response">
        {/* The error text already includes the response status, so the status is shown only without an error text. */}
        <span>{error ?? response_status ?? <span class="dim">not attempted yet</span>}</span>
        {delivery.history.length > 0 && <Attempts history={delivery.history} />}
      </Cell>
      <Cell column="Attempts">{attempts}</Cell>
      <Cell column="Next attempt">{next_at === null ? '–' : <Next at={next_at} />}</Cell>
      <Cell column="Created">
        <Age at={created_at} />
      </Cell>
      <Cell>{status !== 'delivered' && <Resend id={id} list={list} />}</Cell>
    </tr>
  )
}

function Attempts({ history }: { readonly history: Delivery['history'] }) {
  return (
    <details class="tries">
      <summary>{history.length === 1 ? '1 attempt' : `Last ${history.length} attempts`}</summary>
      <ol>
        {history.toReversed().map(({ at, duration_ms, response_status, error }) => (
          <li key={`${at} ${duration_ms}`}>
            <Age at={at} />
            <span class="dim">, {latencyText(duration_ms / 1_000)}</span>
            <span class="below">{error ?? response_status}</span>
          </li>
        ))}
      </ol>
    </details>
  )
}

function Next({ at }: { readonly at: number }) {
  const left = at - serviceNow()
  return <span title={dateTimeText(at)}>{left < 1 ? 'now' : `in ${durationText(left)}`}</span>
}

function Resend({ id, list }: { readonly id: string; readonly list: Pages<Delivery> }) {
  const { isBusy, problem, run } = useAction()
  const send = async () => {
    await fetchJson(`/v1/admin/deliveries/${encodeURIComponent(id)}/retry`, { method: 'POST' })
    await list.refresh()
  }
  return (
    <>
      <button
        type="button"
        class="small"
        aria-label={`Resend ${id}`}
        disabled={isBusy.value}
        onClick={() => void run(send, 'Delivery queued again.')}
      >
        <Icon name="again" /> Resend
      </button>
      <ErrorText text={problem.value} />
    </>
  )
}

function countOf({ items, hasMore }: Pages<Delivery>): string {
  const count = items.value.length
  return count === 1 && !hasMore.value ? '1 delivery' : `${count}${hasMore.value ? '+' : ''} deliveries`
}
