import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import type { z } from 'zod'
import type { ActiveRequest, ActiveRequestListAnswer } from '#schemas/admin/requests.ts'
import { fetchJson, isOperator, messageOf } from '#services/console/api/client.ts'
import { durationText } from '#services/console/api/clock.ts'
import { Cell, Confirm, ErrorText, Table, usePoll } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'

const REFRESH_INTERVAL_MS = 2_000
const COLUMNS = ['Status', 'Request', 'Model', 'Age', 'Position', 'Reason', '']

/** Synchronous calls that wait or run now, the oldest first. @param children Filters of the screen */
export function ActiveRequests({ children }: { readonly children: ComponentChildren }) {
  const page = useSignal<z.infer<typeof ActiveRequestListAnswer> | undefined>(undefined)
  const problem = useSignal('')
  const refresh = async (signal?: AbortSignal) => {
    try {
      page.value = await fetchJson('/v1/admin/requests/active', signal ? { signal } : {})
      problem.value = ''
    } catch (error) {
      if (!signal?.aborted) problem.value = messageOf(error)
    }
  }
  usePoll(REFRESH_INTERVAL_MS, refresh, [])
  const shown = page.value
  return (
    <section class="requests">
      <div class="title">
        <h1>Requests</h1>
        {shown && (
          <p class="dim" aria-live="polite">
            {shown.total.toLocaleString()} running or waiting
          </p>
        )}
      </div>
      <p class="dim">
        Synchronous calls that wait or run now at this ingress, the oldest first. Durable jobs are listed in{' '}
        <a href={`${BASE}/jobs`}>Jobs</a>.
      </p>
      {children}
      <ErrorText text={problem.value} />
      {shown?.data.length === 0 && (
        <div class="empty card">
          <h2>No call waits or runs</h2>
        </div>
      )}
      {shown && shown.data.length > 0 && (
        <Table label="Running and waiting calls" columns={COLUMNS}>
          {shown.data.map((request) => (
            <Row key={request.id} request={request} onCancel={refresh} />
          ))}
        </Table>
      )}
      {shown?.has_more && <p class="dim">The oldest {shown.data.length} calls are shown.</p>}
    </section>
  )
}

interface RowProps {
  readonly request: ActiveRequest
  onCancel(): Promise<void>
}

function Row({ request, onCancel }: RowProps) {
  const { id, status, model, endpoint, age_ms, position, wait_ms, reason } = request
  const owner = [request.project_name ?? request.project, request.key_name ?? request.key_id].filter(Boolean)
  const cancel = async () => {
    await fetchJson(`/v1/admin/requests/${id}/cancel`, { method: 'POST' })
    await onCancel()
  }
  return (
    <tr>
      <Cell column="Status">
        <span class={`status ${status === 'running' ? 'in_progress' : 'queued'}`}>{status}</span>
      </Cell>
      <Cell column="Request">
        <code class="breaks">{id}</code>
        {isOperator.value && <span class="dim below">{[...new Set(owner)].join(' · ')}</span>}
      </Cell>
      <Cell column="Model">
        {model}
        <span class="dim below">{endpoint.replace('/v1/', '')}</span>
      </Cell>
      <Cell column="Age">{durationText(age_ms / 1_000)}</Cell>
      <Cell column="Position">
        {position === null ? <span class="dim">–</span> : `#${position}`}
        {wait_ms !== null && <span class="dim below">about {durationText(wait_ms / 1_000)}</span>}
      </Cell>
      <Cell column="Reason">{reason ?? <span class="dim">–</span>}</Cell>
      <Cell>
        <Confirm verb="Stop" what={id} action={cancel} isDestructive>
          <p>The work stops, and its caller receives the error job_cancelled.</p>
        </Confirm>
      </Cell>
    </tr>
  )
}
