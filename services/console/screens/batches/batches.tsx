import { useMemo } from 'preact/hooks'
import { type Batch, isOperator, ownKey, Pages } from '#services/console/api/client.ts'
import { ageText, dateTimeText, durationText, minuteText, serviceNow } from '#services/console/api/clock.ts'
import { Cell, CopyButton, LoadMore, Status, Table, usePoll } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { Empty, LoadState } from '#services/console/parts/states.tsx'
import { COMMAND, NewBatch } from './new-batch.tsx'

const REFRESH_INTERVAL_MS = 2_000
const COLUMNS = ['Status', 'Batch', 'Progress', 'Rate', 'End', 'Created'] as const

/** Batches of the own project. With the scope `admin`: of all projects. */
export function Batches() {
  const isAll = isOperator.value
  const list = useMemo(() => new Pages<Batch>(isAll ? '/v1/admin/batches' : '/v1/batches', {}), [isAll])
  // The scopes of the key decide which list is read.
  const isKnown = ownKey.value !== undefined
  const refresh = async (signal: AbortSignal) => {
    if (isKnown) await list.refresh(signal)
  }
  usePoll(REFRESH_INTERVAL_MS, refresh, [list, isKnown])
  const { items, isLoaded, problem } = list
  return (
    <section>
      <div class="title">
        <h1>Batches</h1>
        <p class="dim">Batches of {isAll ? 'all projects' : 'your project'}</p>
        <NewBatch />
      </div>
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {isLoaded.value && items.value.length === 0 && <NoBatches />}
      {items.value.length > 0 && (
        <Table label="Batches" columns={COLUMNS}>
          {items.value.map((batch) => (
            <Row key={batch.id} batch={batch} />
          ))}
        </Table>
      )}
      <LoadMore list={list} />
    </section>
  )
}

function NoBatches() {
  return (
    <Empty
      title="No batches yet"
      action={
        <>
          <code>{COMMAND}</code> <CopyButton text={COMMAND} label="Copy command" />
        </>
      }
    >
      A batch runs up to 50,000 requests when capacity is free. Create one from a CSV file here, or with one command:
    </Empty>
  )
}

function Row({ batch }: { readonly batch: Batch }) {
  const { id, status, endpoint, model, created_at, metadata } = batch
  const project = batch.project_name ?? batch.project
  // A batch of messages has no page of its own, so the page of its job is linked.
  const path = id.startsWith('batch_') ? `batches/${id}` : `jobs/${id.replace('msgbatch_', 'job_')}`
  return (
    <tr>
      <Cell column="Status">
        <Status status={status} />
      </Cell>
      <Cell column="Batch">
        <a href={`${BASE}/${path}`}>
          <code>{id}</code>
        </a>
        <span class="below dim">
          {[project, metadata.name, endpoint.replace('/v1/', ''), model].filter(Boolean).join(' · ')}
        </span>
      </Cell>
      <Cell column="Progress">
        <BatchBar batch={batch} />
      </Cell>
      <Cell column="Rate">{rateText(batch) || <span class="dim">–</span>}</Cell>
      <Cell column="End">{endText(batch) || <span class="dim">–</span>}</Cell>
      <Cell column="Created">
        <span class="dim" title={dateTimeText(created_at)}>
          {ageText(created_at)}
        </span>
      </Cell>
    </tr>
  )
}

/** Progress bar with the ended requests, such as `290 of 500, 1 failed`. */
export function BatchBar({ batch }: { readonly batch: Batch }) {
  const { total, completed, failed } = batch.request_counts
  if (total === 0) return <span class="dim">{batch.status === 'validating' ? 'validating' : 'no requests'}</span>
  return (
    <span class="batch-bar">
      <progress value={completed + failed} max={total} aria-label={`Ended requests of ${batch.id}`} />
      <span>
        {(completed + failed).toLocaleString()} of {total.toLocaleString()}
        {failed > 0 && <span class="bad">, {failed.toLocaleString()} failed</span>}
      </span>
    </span>
  )
}

export function rateText({ progress }: Batch): string {
  const rate = progress?.requests_per_second
  return typeof rate === 'number' ? `${rate.toLocaleString()} requests/s` : ''
}

/** Remaining seconds below which the estimated end is shown with its seconds. */
const NEAR_SECONDS = 120

/** Returns the estimated end of a running batch, or the time at which a batch ended. */
export function endText({ progress, ...batch }: Batch): string {
  const estimate = progress?.estimated_end_at
  if (typeof estimate === 'number') {
    const left = Math.max(0, estimate - serviceNow())
    const at = new Date(estimate * 1_000).toLocaleTimeString(undefined, {
      timeStyle: left < NEAR_SECONDS ? 'medium' : 'short',
    })
    return `in about ${durationText(left)} (${at})`
  }
  const ended = batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at
  return ended === null ? '' : minuteText(ended)
}
