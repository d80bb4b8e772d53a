import { useMemo } from 'preact/hooks'
import { type Batch, isOperator, ownKey, Pages } from '#services/console/api/client.ts'
import { clockText, costText, serviceNow } from '#services/console/api/clock.ts'
import { projectName } from '#services/console/api/names.ts'
import { batchPath } from '#services/console/parts/details.tsx'
import { CopyButton, LoadMore, ShortId, usePoll } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { CountsBar, Empty, LoadState, Status } from '#services/console/parts/states.tsx'
import { Age, Cell, Table } from '#services/console/parts/table.tsx'
import { endedAtOf } from '#services/console/screens/jobs/list.ts'
import { durationRangeText, durationText } from '#shared/lib/duration.ts'
import { FORM_KEY, formIn } from '#shared/tables/answers.ts'
import { NewBatch } from './new-batch.tsx'
import { COMMAND, countsOf } from './table.ts'

const REFRESH_INTERVAL_MS = 2_000
const COLUMNS = ['Status', 'Batch', 'Progress', 'Rate', 'Cost', 'Created', 'Ended']
const NUMBERS = ['Rate', 'Cost', 'Created', 'Ended']

/** Lists the batches of the project of the key, or of all projects if the key has the scope `admin`. */
export function Batches() {
  const isAll = isOperator.value
  const list = useMemo(() => new Pages<Batch>(isAll ? '/v1/admin/batches' : '/v1/batches', {}), [isAll])
  // The scopes of the key decide which list is read. Until they are loaded, nothing is requested.
  const isKnown = ownKey.value !== undefined
  const refresh = async (signal: AbortSignal) => {
    if (isKnown) await list.refresh(signal)
  }
  usePoll(REFRESH_INTERVAL_MS, refresh, [list, isKnown])
  const { items, isLoaded, problem } = list
  return (
    <section class="batches">
      <div class="title">
        <h1>Batches</h1>
        <NewBatch />
      </div>
      <p class="dim">Batches of {isAll ? 'all projects' : 'your project'}, newest first.</p>
      <LoadState problem={problem.value} isLoaded={isLoaded.value} />
      {isLoaded.value && items.value.length === 0 && <NoBatches />}
      {items.value.length > 0 && (
        <Table
          label="Batches"
          columns={COLUMNS}
          numbers={NUMBERS}
          main={['Batch']}
          card={{ end: 'Created', hidden: ['Ended'] }}
        >
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
  const { id, endpoint, model, created_at, metadata } = batch
  const project = batch.project_name ?? (batch.project && projectName(batch.project))
  const ended = endedAtOf(batch)
  const { prompt } = formIn(metadata[FORM_KEY])
  const path = batchPath(id)
  return (
    <tr>
      <Cell column="Status">
        <Status status={batch.status} counts={countsOf(batch)} />
      </Cell>
      <Cell column="Batch">
        {metadata.name ? (
          <>
            <a class="row-link" href={`${BASE}/${path}`}>
              <strong>{metadata.name}</strong>
            </a>
            <span class="below dim wide-only">
              <ShortId id={id} />
            </span>
          </>
        ) : (
          <ShortId id={id} href={`${BASE}/${path}`} />
        )}
        <span class="below dim">
          {[project, endpoint.replace('/v1/', ''), model, prompt && `prompt: ${prompt.join(', ')}`]
            .filter(Boolean)
            .join(' · ')}
        </span>
      </Cell>
      <Cell column="Progress">
        <BatchBar batch={batch} />
      </Cell>
      <Cell column="Rate">{rateText(batch) || '–'}</Cell>
      <Cell column="Cost">{batch.cost_usd == null ? '–' : costText(batch.cost_usd)}</Cell>
      <Cell column="Created">
        <Age at={created_at} />
      </Cell>
      <Cell column="Ended">
        {ended === null ? endText(batch) || (batch.waiting_for ? 'waiting' : '–') : <Age at={ended} />}
      </Cell>
    </tr>
  )
}

/** The number of ended requests, such as `290 of 500, 1 failed`, with a progress bar below. */
export function BatchBar({ batch }: { readonly batch: Batch }) {
  const { total, completed, failed, invalid } = countsOf(batch)
  if (total === 0) return <span class="dim">{batch.status === 'validating' ? 'validating' : 'no requests'}</span>
  return (
    <span class="batch-bar">
      <span>
        {(completed + failed).toLocaleString('en')} of {total.toLocaleString('en')}
        {failed > 0 && <span class="bad">, {failed.toLocaleString('en')} failed</span>}
        {invalid > 0 && <span class="bad">, {invalid.toLocaleString('en')} invalid</span>}
      </span>
      <CountsBar label={`Ended requests of ${batch.id}`} counts={countsOf(batch)} />
    </span>
  )
}

export function rateText({ progress }: Batch): string {
  const rate = progress?.requests_per_second
  return typeof rate === 'number' ? `${Number(rate.toPrecision(2)).toLocaleString('en')} requests/s` : ''
}

/** Remaining time in seconds below which the estimated end is shown to the second instead of the minute. */
const NEAR_SECONDS = 120

/** Returns the estimated end of a running batch. Empty without an estimate. */
export function endText({ progress }: Batch): string {
  const [estimate, range] = [progress?.estimated_end_at, progress?.estimated_end_range]
  if (range) return `in ${durationRangeText(range.earliest - serviceNow(), range.latest - serviceNow())}`
  if (typeof estimate !== 'number') return ''
  const left = Math.max(0, estimate - serviceNow())
  return `in about ${durationText(left)} (${clockText(estimate, left < NEAR_SECONDS)})`
}
