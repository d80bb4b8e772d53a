import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { type Batch, fetchApi, fetchJson, isOperator, messageOf, ownKey } from '#services/console/api/client.ts'
import { costText, dateTimeText } from '#services/console/api/clock.ts'
import {
  DetailHead,
  DetailState,
  Details,
  type Field,
  linked,
  modelLink,
  projectLink,
} from '#services/console/parts/details.tsx'
import { Confirm, download, ErrorText, fileNameOf, report, useAction, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, navigate } from '#services/console/parts/router.ts'
import { Status } from '#services/console/parts/states.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { endedAtOf } from '#services/console/screens/jobs/list.ts'
import { Failures } from '#services/console/screens/requests/failures.tsx'
import { durationText } from '#shared/lib/duration.ts'
import { FORM_KEY, formIn, RETRY_OF_KEY, TABLE_FILE_KEY, usedBy } from '#shared/tables/answers.ts'
import { MARK } from '#shared/tables/output.ts'
import { BatchBar, endText, rateText } from './batches.tsx'
import { customIdIn, linesOf, Preview } from './preview.tsx'
import { cellsByIdOf, countsOf, ENDED, failedRowsOf, failuresOf, joined, tableOf } from './table.ts'

const REFRESH_INTERVAL_MS = 2_000
/** Maximum failed requests that are read to count their error codes. */
const FAILURES_MAX = 5_000
const PROBLEMS_MAX = 10
/** Maximum earlier batches whose results the service includes. */
const EARLIER_MAX = 20
/** Maximum requests of a batch and its earlier runs whose results are read to count the rows. More results would block the page. */
const ALL_ROWS_MAX = 10_000

export function BatchScreen({ id }: { readonly id: string }) {
  const { batch: shown, error, refresh } = useBatch(id, !isOperator.value)
  const isOwn = !isOperator.value || shown?.project === ownKey.value?.project
  return (
    <section class="job">
      <DetailHead
        list="batches"
        what="Batch"
        id={id}
        title={shown?.metadata.name}
        state={shown && <Status status={shown.status} counts={countsOf(shown)} />}
      >
        {shown && <Actions batch={shown} isOwn={isOwn} refresh={refresh} />}
      </DetailHead>
      <DetailState
        list="batches"
        what="batch"
        why="The batches of other projects are visible to keys with the admin scope only."
        error={error}
        isLoaded={shown !== undefined}
      />
      {shown && (
        <div class="columns">
          <div>
            <Overview batch={shown} isOwn={isOwn} />
          </div>
          <Details fields={fieldsOf(shown)} />
        </div>
      )}
    </section>
  )
}

/** Reads a batch until it has ended. @param isOwn If false, then the batch may belong to another project, so the admin API is used */
function useBatch(id: string, isOwn: boolean) {
  const batch = useSignal<Batch | undefined>(undefined)
  const error = useSignal<unknown>(undefined)
  // The scopes of the key decide which API is read. Until they are loaded, nothing is requested.
  const isKnown = ownKey.value !== undefined
  const refresh = async (signal?: AbortSignal) => {
    if (!isKnown) return
    if (ENDED.has(batch.peek()?.status ?? '')) return
    await fetchJson<Batch>(`${isOwn ? '/v1' : '/v1/admin'}/batches/${id}`, signal ? { signal } : {}).then(
      (now) => {
        batch.value = now
        error.value = undefined
      },
      (cause: unknown) => {
        if ((cause as Error).name !== 'AbortError') error.value = cause
      },
    )
  }
  usePoll(REFRESH_INTERVAL_MS, refresh, [id, isOwn, isKnown])
  return { batch: batch.value, error: error.value, refresh }
}

interface OverviewProps {
  readonly batch: Batch
  /**
   * Whether the batch belongs to the project of the key. If false, then the key may not read the results, so the reasons of failed requests
   * are not shown.
   */
  readonly isOwn: boolean
}

function Overview({ batch, isOwn }: OverviewProps) {
  return (
    <>
      <Progress batch={batch} isOwn={isOwn} />
      {isOwn && batch.id.startsWith('batch_') && <Preview batch={batch} />}
      <Problems batch={batch} />
      {failuresOf(batch) > 0 && isOwn && <OwnFailures batch={batch} />}
      {batch.request_counts.failed > 0 && !isOwn && (
        <section class="card" aria-label="Failures">
          <h2>Failures by error code</h2>
          <Failures
            query={{ batch_id: batch.id }}
            filters={{ batch_id: batch.id }}
            inputs={[batch.request_counts.failed, batch.status]}
            none="The request log has no failures of this batch."
          />
        </section>
      )}
    </>
  )
}

/** The progress and the failures of a batch on the page of its job. */
export function BatchOverview({ id, isOwn }: { readonly id: string; readonly isOwn: boolean }) {
  const { batch, error } = useBatch(id, isOwn)
  if (batch) return <Overview batch={batch} isOwn={isOwn} />
  return <ErrorText text={error === undefined ? '' : messageOf(error)} />
}

interface ActionsProps extends OverviewProps {
  readonly refresh: () => Promise<void>
}

function Actions({ batch, isOwn, refresh }: ActionsProps) {
  const { id, status, request_counts } = batch
  const { isBusy, problem, run } = useAction()
  const isTableGone = useSignal(false)
  const save = (query: string) => () =>
    void run(async () => {
      const response = await fetchApi(`/v1/batches/${id}/results?${query}&include=earlier`)
      download(fileNameOf(response), await response.blob())
    })
  const isNone = request_counts.completed + request_counts.failed === 0
  const isRunning = !ENDED.has(status)
  return (
    <div class="actions">
      {isOwn ? (
        <>
          <button
            type="button"
            disabled={isBusy.value || isNone}
            onClick={() =>
              void run(async () => {
                const csv = await csvOf(batch)
                isTableGone.value = csv.isTableGone
                download(csv.name, csv.content)
              })
            }
          >
            Download CSV
          </button>
          <button type="button" disabled={isBusy.value || isNone} onClick={save('format=jsonl')}>
            Download results (JSONL)
          </button>
          <button type="button" disabled={isBusy.value || request_counts.failed === 0} onClick={save('status=failed')}>
            Download errors (JSONL)
          </button>
          {isTableGone.value && (
            <p class="note">
              The table of this batch was deleted or has expired, so the CSV has only the results. To add its columns:{' '}
              <code>npx sluice results {id} --csv --input FILE</code>
            </p>
          )}
        </>
      ) : (
        <p class="dim">Only keys of the project {batch.project_name ?? batch.project} can read the results.</p>
      )}
      {isOwn && !isRunning && failuresOf(batch) > 0 && batch.input_file_id && (
        <button
          type="button"
          disabled={isBusy.value}
          onClick={() =>
            void run(async () => {
              navigate(`${BASE}/batches/${(await retryFailed(batch)).id}`)
              report('A new batch runs the failed rows.', [`batches/${id}`, 'Show the earlier batch'])
            })
          }
        >
          Retry failed rows
        </button>
      )}
      {isRunning && (
        <Confirm
          isDestructive
          verb="Cancel"
          what={batch.metadata.name ?? 'this batch'}
          id={id}
          keep="Keep running"
          confirm="Cancel batch"
          done="Cancel of the batch requested."
          action={async () => {
            await fetchJson(`${isOwn ? '/v1' : '/v1/admin'}/batches/${id}/cancel`, { method: 'POST' })
            await refresh()
          }}
        >
          <p>Requests that have not ended are cancelled. The results so far are kept. This cannot be undone.</p>
        </Confirm>
      )}
      <ErrorText text={problem.value} />
    </div>
  )
}

interface Csv {
  readonly name: string
  readonly content: Blob
  /**
   * True if the batch was made from a table whose file no longer exists. The CSV then has the custom ids
   * of the requests instead of the columns of the table.
   */
  readonly isTableGone: boolean
}

/**
 * Returns the results as CSV. The byte order mark at the start makes Excel read the file as UTF-8. If the batch was made from a table, then the CSV
 * also has the columns of this table.
 */
async function csvOf({ id, metadata }: Batch): Promise<Csv> {
  const response = await fetchApi(`/v1/batches/${id}/results?format=csv&include=earlier`)
  const name = fileNameOf(response)
  const tableId = metadata[TABLE_FILE_KEY]
  const results = await response.blob()
  if (!tableId) return { name, content: new Blob([MARK, results]), isTableGone: false }
  const path = `/v1/files/${encodeURIComponent(tableId)}`
  const [file, content] = await Promise.all([path, `${path}/content`].map((one) => fetchApi(one, { expects: [404] })))
  if (!file?.ok || !content?.ok) return { name, content: new Blob([MARK, results]), isTableGone: true }
  const { filename } = (await file.json()) as { readonly filename: string }
  const table = await tableOf(await content.blob(), filename, `npx sluice results ${id} --csv`)
  const text = joined(table, await results.text(), formIn(metadata[FORM_KEY]))
  return { name, content: new Blob([MARK, text]), isTableGone: false }
}

const RETRY_BYTES_MAX = 20_000_000
const METADATA_PAIRS_MAX = 16

/** Creates a batch of the failed requests of an ended batch, read from its input file. @throws Error for a large file */
async function retryFailed(batch: Batch): Promise<Batch> {
  const { id, input_file_id, endpoint, metadata } = batch
  const { bytes } = await fetchJson<{ bytes: number }>(`/v1/files/${input_file_id}`)
  if (bytes > RETRY_BYTES_MAX) {
    const size = `${Math.ceil(bytes / 1e6).toLocaleString('en')} MB`
    throw new Error(`The input file has ${size}, too much for a browser. Run: npx sluice batch ${id} --retry-failed`)
  }
  const ids = new Set((await failedRowsOf(batch)).keys())
  const lines: string[] = []
  for await (const line of linesOf(`/v1/files/${input_file_id}/content`)) {
    if (ids.has(customIdIn(line))) lines.push(`${line}\n`)
  }
  const form = new FormData()
  form.append('purpose', 'batch')
  form.append('file', new File(lines, 'retry.jsonl'))
  const file = await fetchJson<{ id: string }>('/v1/files', { method: 'POST', body: form })
  // `sluice_input` is the hash of all requests of the original batch. The new batch contains only some of them, so the
  // hash is not copied.
  const { sluice_input: _, [RETRY_OF_KEY]: __, ...rest } = metadata
  const isFull = Object.keys(rest).length >= METADATA_PAIRS_MAX
  const body = {
    input_file_id: file.id,
    endpoint,
    completion_window: '24h',
    metadata: { ...rest, ...(!isFull && { [RETRY_OF_KEY]: id }) },
  }
  return await fetchJson<Batch>('/v1/batches', { method: 'POST', body })
}

function Progress({ batch, isOwn }: OverviewProps) {
  const { id, waiting_for, request_counts } = batch
  const isRunning = !ENDED.has(batch.status)
  const ofOwn = isOwn && isOperator.value ? '&of=mine' : ''
  const texts = [rateText(batch), isRunning && endText(batch) && `ends ${endText(batch)}`].filter(Boolean)
  return (
    <section class="card" aria-label="Progress">
      <h2>Progress</h2>
      <BatchBar batch={batch} />
      <p class="dim" aria-live="polite">
        {isRunning
          ? texts.join(', ') || (batch.progress && !waiting_for && 'Estimating…')
          : summaryOf(batch, tookText(batch))}
      </p>
      {isOwn && !isRunning && batch.metadata[RETRY_OF_KEY] && <AllRows batch={batch} />}
      {waiting_for && <p class="note">{waiting_for}</p>}
      <p>
        <a href={`${BASE}/requests?batch_id=${id}`}>Show the requests</a>
        {request_counts.failed > 0 && (
          <>
            {' · '}
            <a href={`${BASE}/requests?batch_id=${id}&status=failed`}>Show the failed requests</a>
          </>
        )}
        {' · '}
        <a href={`${BASE}/jobs?group=${id}${ofOwn}`}>Show their jobs</a>
      </p>
    </section>
  )
}

/** Time from the creation to the end of a batch, to the second. Empty while the batch runs. */
function tookText(batch: Batch): string {
  const ended = endedAtOf(batch)
  return ended === null ? '' : durationText(Math.max(1, ended - batch.created_at))
}

/** Result of an ended batch, such as `36 completed, 4 failed in 12 s, 1,020 → 720 tokens, $0.0011`. */
function summaryOf(batch: Pick<Batch, 'request_counts' | 'usage' | 'cost_usd' | 'invalid_answers'>, took = ''): string {
  const { request_counts, invalid_answers } = batch
  return [
    `${request_counts.completed.toLocaleString('en')} completed`,
    `${request_counts.failed.toLocaleString('en')} failed${took && ` in ${took}`}`,
    invalid_answers && `${invalid_answers.toLocaleString('en')} with an invalid answer`,
    usageText(batch),
  ]
    .filter(Boolean)
    .join(', ')
}

function usageText({ usage, cost_usd }: Pick<Batch, 'usage' | 'cost_usd'>): string {
  return [
    usage && `${usage.input_tokens.toLocaleString('en')} → ${usage.output_tokens.toLocaleString('en')} tokens`,
    cost_usd != null && costText(cost_usd),
  ]
    .filter(Boolean)
    .join(', ')
}

/** Result of all rows after a retry or a trial: the newest result of each row, with the tokens and the cost of all batches. */
function AllRows({ batch }: { readonly batch: Batch }) {
  const sum = useSignal('')
  const problem = useSignal('')
  useEffect(() => {
    const abort = new AbortController()
    allRowsOf(batch, abort.signal).then(
      (text) => {
        sum.value = text
      },
      (error: unknown) => {
        if (!abort.signal.aborted) problem.value = messageOf(error)
      },
    )
    return () => abort.abort()
  }, [batch.id])
  return (
    <>
      {sum.value && <p aria-live="polite">{sum.value}</p>}
      <ErrorText text={problem.value} />
    </>
  )
}

async function allRowsOf(batch: Batch, signal: AbortSignal): Promise<string> {
  const batches = [batch]
  for (let id = batch.metadata[RETRY_OF_KEY]; id && batches.length <= EARLIER_MAX; ) {
    const response = await fetchApi(`/v1/batches/${encodeURIComponent(id)}`, { signal, expects: [404] })
    if (!response.ok) break
    const earlier = (await response.json()) as Batch
    batches.push(earlier)
    id = earlier.metadata[RETRY_OF_KEY]
  }
  const used = usedBy(batches) as Pick<Batch, 'usage' | 'cost_usd'>
  if (batches.reduce((sum, { request_counts }) => sum + request_counts.total, 0) > ALL_ROWS_MAX) {
    return [`In total, with earlier runs: ${batches.length} batches`, usageText(used)].filter(Boolean).join(', ')
  }
  const cells = await cellsByIdOf(batch, '&include=earlier', signal)
  const errors = [...cells.values()].filter(({ error }) => error !== '')
  const invalid = errors.filter(({ invalidAnswer }) => invalidAnswer !== undefined).length
  const failed = errors.length - invalid
  const request_counts = { total: cells.size, completed: cells.size - failed, failed }
  const text = summaryOf({ ...used, request_counts, invalid_answers: invalid })
  return `In total, with earlier runs: ${cells.size.toLocaleString('en')} rows from ${batches.length} batches, ${text}`
}

function Problems({ batch }: { readonly batch: Batch }) {
  const problems = batch.errors?.data ?? []
  if (problems.length === 0) return null
  return (
    <div class="note bad">
      <strong>No request ran</strong>
      <ul>
        {problems.slice(0, PROBLEMS_MAX).map(({ line, code, message }, nth) => (
          <li key={`${nth}-${code}`}>{line === null ? message : `Line ${line}: ${message}`}</li>
        ))}
      </ul>
    </div>
  )
}

/** Table of failed requests and invalid answers by error code, most frequent first. */
function OwnFailures({ batch }: { readonly batch: Batch }) {
  const counts = useSignal<readonly FailureCount[]>([])
  const problem = useSignal('')
  const { id, status } = batch
  const failed = failuresOf(batch)
  useEffect(() => {
    const abort = new AbortController()
    countFailures(batch, abort.signal).then(
      (found) => {
        counts.value = found
        problem.value = ''
      },
      (error: unknown) => {
        if (!abort.signal.aborted) problem.value = messageOf(error)
      },
    )
    return () => abort.abort()
  }, [id, failed, status])
  return (
    <section class="card" aria-label="Failures">
      <h2>Failures by error code</h2>
      <ErrorText text={problem.value} />
      <Table label="Failures" columns={['Error', 'Requests']} numbers={['Requests']} card={{ end: 'Requests' }}>
        {counts.value.map(({ code, count, customId, message }) => (
          <tr key={code}>
            <Cell column="Error">
              <code>{code}</code>
              <span class="below dim">
                {customId}: {message.slice(0, MESSAGE_CHARS)}
              </span>
            </Cell>
            <Cell column="Requests">{count.toLocaleString('en')}</Cell>
          </tr>
        ))}
      </Table>
      {failed > FAILURES_MAX && !batch.invalid_answers && (
        <p class="dim">Of the first {FAILURES_MAX.toLocaleString('en')} failed requests.</p>
      )}
    </section>
  )
}

const MESSAGE_CHARS = 200

interface FailureCount {
  readonly code: string
  readonly count: number
  /** The first request with this code, and its message. */
  readonly customId: string
  readonly message: string
}

async function countFailures(batch: Batch, signal: AbortSignal): Promise<FailureCount[]> {
  const counts = new Map<string, FailureCount>()
  for (const [customId, error] of await failedRowsOf(batch, { signal, limit: FAILURES_MAX })) {
    const [code = '', ...message] = error.split(': ')
    const first = counts.get(code) ?? { code, count: 0, customId, message: message.join(': ') }
    counts.set(code, { ...first, count: first.count + 1 })
  }
  return [...counts.values()].toSorted((a, b) => b.count - a.count)
}

function fieldsOf(batch: Batch): Field[] {
  const { project, model, endpoint, completion_window, created_at, expires_at, usage, metadata } = batch
  const ended = endedAtOf(batch)
  return [
    ['Project', project && projectLink(project, batch.project_name ?? undefined)],
    ['Model', model && modelLink(model)],
    ['Endpoint', endpoint],
    ['Created', dateTimeText(created_at)],
    ended === null
      ? ['Time limit', `${completion_window}, until ${dateTimeText(expires_at)}`]
      : ['Ended', dateTimeText(ended)],
    ['Duration', tookText(batch)],
    ['Input tokens', usage?.input_tokens.toLocaleString('en')],
    ['Output tokens', usage?.output_tokens.toLocaleString('en')],
    ['Cost', batch.cost_usd != null && costText(batch.cost_usd)],
    ...Object.entries(metadata)
      .filter(([name]) => name !== 'name' && !name.startsWith('sluice_'))
      .map(([name, value]): Field => [`metadata.${name}`, value]),
    ['Retry of', metadata[RETRY_OF_KEY] && linked(metadata[RETRY_OF_KEY], `batches/${metadata[RETRY_OF_KEY]}`)],
  ]
}
