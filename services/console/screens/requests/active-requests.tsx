import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import type { z } from 'zod'
import type { ActiveRequest, ActiveRequestListAnswer } from '#schemas/admin/requests.ts'
import { ApiFailure, fetchJson, isOperator, messageOf } from '#services/console/api/client.ts'
import { keyName } from '#services/console/api/names.ts'
import { Confirm, ShortId, usePoll } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { Empty, LoadState, Status } from '#services/console/parts/states.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { durationText } from '#shared/lib/duration.ts'

const REFRESH_INTERVAL_MS = 2_000
const COLUMNS = ['Status', 'Request', 'Model', 'Age', 'Position', 'Reason', '']

/** Time in ms after which the calls of an ingress are removed from the list if that ingress has not answered again. */
const INGRESS_TTL_MS = 10_000
const CANCEL_ATTEMPTS = 4

type ActivePage = z.infer<typeof ActiveRequestListAnswer>

interface Seen {
  readonly page: ActivePage
  readonly atMs: number
}

/**
 * Merges the answers of several ingresses. An ingress lists only its own calls, and the load balancer chooses an ingress for each poll, so
 * one answer is incomplete.
 */
function merged(before: ReadonlyMap<string, Seen>, page: ActivePage, nowMs: number): ReadonlyMap<string, Seen> {
  const recent = [...before].filter(([, { atMs }]) => nowMs - atMs < INGRESS_TTL_MS)
  return new Map(recent).set(page.ingress, { page, atMs: nowMs })
}

/** Synchronous calls that wait or run now, the oldest first. @param children Filters of the screen */
export function ActiveRequests({ children }: { readonly children: ComponentChildren }) {
  const seen = useSignal<ReadonlyMap<string, Seen>>(new Map())
  const problem = useSignal('')
  const refresh = async (signal?: AbortSignal) => {
    try {
      const page = await fetchJson<ActivePage>('/v1/admin/requests/active', signal ? { signal } : {})
      seen.value = merged(seen.value, page, Date.now())
      problem.value = ''
    } catch (error) {
      if (!signal?.aborted) problem.value = messageOf(error)
    }
  }
  usePoll(REFRESH_INTERVAL_MS, refresh, [])
  const pages = [...seen.value.values()].map(({ page }) => page)
  const shown = pages.length > 0
  const calls = pages
    .flatMap(({ data, ingress }) => data.map((request) => ({ request, ingress })))
    .toSorted((a, b) => a.request.started_at - b.request.started_at)
  const total = pages.reduce((sum, page) => sum + page.total, 0)
  return (
    <section class="requests">
      <div class="title">
        <h1>Requests</h1>
        {shown && (
          <p class="dim" aria-live="polite">
            {total === 1 ? '1 call' : `${total.toLocaleString('en')} calls`} running or queued
          </p>
        )}
      </div>
      <p class="dim">
        Synchronous calls that wait or run now, the oldest first. Durable jobs are listed in Jobs:{' '}
        <a href={`${BASE}/jobs?status=in_progress`}>running</a>, <a href={`${BASE}/jobs?status=queued`}>queued</a>.
        {shown && ` Answered by ${pages.map(({ ingress }) => ingress).join(', ')}.`}
      </p>
      {children}
      <LoadState problem={problem.value} isLoaded={shown} />
      {shown && calls.length === 0 && (
        <Empty
          title="No call waits or runs"
          action={
            <a class="button" href={`${BASE}/requests`}>
              Show ended requests
            </a>
          }
        >
          Calls appear here until they have ended.
        </Empty>
      )}
      {calls.length > 0 && (
        <Table
          label="Running and queued calls"
          columns={COLUMNS}
          numbers={['Age', 'Position']}
          main={['Reason']}
          card={{ end: 'Age' }}
        >
          {calls.map(({ request, ingress }) => (
            <Row key={request.id} request={request} {...(pages.length > 1 && { ingress })} onCancel={refresh} />
          ))}
        </Table>
      )}
      {total > calls.length && <p class="dim">The oldest {calls.length} calls are shown.</p>}
    </section>
  )
}

/**
 * Cancels a call. Only the ingress that runs the call can cancel it, and any other ingress returns 404. After a 404,
 * several concurrent requests open new connections, one of which may reach the right ingress.
 */
async function cancelCall(id: string): Promise<void> {
  const cancel = () => fetchJson(`/v1/admin/requests/${id}/cancel`, { method: 'POST' })
  await cancel().catch(async (error: unknown) => {
    if (!(error instanceof ApiFailure && error.status === 404)) throw error
    await Promise.any(Array.from({ length: CANCEL_ATTEMPTS }, cancel)).catch(() => {
      throw error
    })
  })
}

interface RowProps {
  readonly request: ActiveRequest
  /** Ingress of the call. Undefined if only one ingress has answered, because the column would then have one value. */
  readonly ingress?: string
  onCancel(): Promise<void>
}

function Row({ request, ingress, onCancel }: RowProps) {
  const { id, status, model, endpoint, age_ms, position, wait_ms, reason } = request
  const owner = [request.project_name ?? request.project, request.key_name ?? keyName(request.key_id)].filter(Boolean)
  const cancel = async () => {
    await cancelCall(id)
    await onCancel()
  }
  return (
    <tr>
      <Cell column="Status">
        <Status status={status} />
      </Cell>
      <Cell column="Request">
        <ShortId id={id} />
        {ingress && <span class="dim below">{ingress}</span>}
        {isOperator.value && <span class="dim below">{[...new Set(owner)].join(' · ')}</span>}
      </Cell>
      <Cell column="Model">
        {model}
        <span class="dim below">{endpoint.replace('/v1/', '')}</span>
      </Cell>
      <Cell column="Age">{durationText(age_ms / 1_000)}</Cell>
      <Cell column="Position">
        {position === null ? '–' : `#${position}`}
        {wait_ms !== null && <span class="dim below">about {durationText(wait_ms / 1_000)}</span>}
      </Cell>
      <Cell column="Reason">{reason ?? '–'}</Cell>
      <Cell>
        <Confirm
          isDestructive
          verb="Stop"
          what="this request"
          id={id}
          keep="Keep running"
          done="Request stopped."
          confirm="Stop request"
          action={cancel}
        >
          <p>The work stops, and its caller receives the error job_cancelled.</p>
        </Confirm>
      </Cell>
    </tr>
  )
}
