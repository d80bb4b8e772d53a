import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import {
  ApiFailure,
  type Batch,
  fetchApi,
  fetchJson,
  isOperator,
  messageOf,
  ownKey,
} from '#services/console/api/client.ts'
import { dateTimeText } from '#services/console/api/clock.ts'
import { Back, Confirm, download, ErrorText, Status, useAction, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, navigate } from '#services/console/parts/router.ts'
import { LoadState } from '#services/console/parts/states.tsx'
import { BatchBar, endText, rateText } from './batches.tsx'

const REFRESH_INTERVAL_MS = 2_000
const ENDED: ReadonlySet<string> = new Set(['completed', 'failed', 'expired', 'cancelled'])
/** Maximum failed requests that are read to count their error codes. */
const FAILURES_MAX = 5_000
const PROBLEMS_MAX = 10

export function BatchScreen({ id }: { readonly id: string }) {
  const { batch: shown, problem, refresh } = useBatch(id, !isOperator.value)
  const isOwn = !isOperator.value || shown?.project === ownKey.value?.project
  return (
    <section class="job">
      <Back path="batches" name="Batches" />
      <div class="title">
        <h1>
          <code>{id}</code>
        </h1>
        {shown?.metadata.name && <p class="dim">{shown.metadata.name}</p>}
        {shown && <Status status={shown.status} />}
      </div>
      <LoadState problem={problem} isLoaded={shown !== undefined} />
      {shown && (
        <>
          <Actions batch={shown} isOwn={isOwn} refresh={refresh} />
          <div class="columns">
            <div>
              <Overview batch={shown} isOwn={isOwn} />
            </div>
            <Details batch={shown} />
          </div>
        </>
      )}
    </section>
  )
}

/** Reads a batch until it has ended. @param isOwn False: the batch may be of another project, so that only the admin API returns it */
function useBatch(id: string, isOwn: boolean) {
  const batch = useSignal<Batch | undefined>(undefined)
  const problem = useSignal('')
  // The scopes of the key decide which API is used.
  const isKnown = ownKey.value !== undefined
  const refresh = async (signal?: AbortSignal) => {
    if (!isKnown) return
    if (ENDED.has(batch.peek()?.status ?? '')) return
    await fetchJson<Batch>(`${isOwn ? '/v1' : '/v1/admin'}/batches/${id}`, signal ? { signal } : {}).then(
      (now) => {
        batch.value = now
        problem.value = ''
      },
      (error: unknown) => {
        if ((error as Error).name !== 'AbortError') problem.value = messageOf(error)
      },
    )
  }
  usePoll(REFRESH_INTERVAL_MS, refresh, [id, isOwn, isKnown])
  return { batch: batch.value, problem: problem.value, refresh }
}

interface OverviewProps {
  readonly batch: Batch
  /** False: the key may not read the results, which have the reasons of failures. */
  readonly isOwn: boolean
}

function Overview({ batch, isOwn }: OverviewProps) {
  return (
    <>
      <Progress batch={batch} isOwn={isOwn} />
      <Problems batch={batch} />
      {isOwn && batch.request_counts.failed > 0 && <Failures batch={batch} />}
    </>
  )
}

/** The progress and the failures of a batch on the page of its job. */
export function BatchOverview({ id, isOwn }: { readonly id: string; readonly isOwn: boolean }) {
  const { batch, problem } = useBatch(id, isOwn)
  return batch ? <Overview batch={batch} isOwn={isOwn} /> : <ErrorText text={problem} />
}

interface ActionsProps extends OverviewProps {
  readonly refresh: () => Promise<void>
}

function Actions({ batch, isOwn, refresh }: ActionsProps) {
  const { id, status, request_counts } = batch
  const { isBusy, problem, run } = useAction()
  const save = (query: string, name: string) => () =>
    void run(async () => {
      const response = await fetchApi(`/v1/batches/${id}/results?${query}`)
      download(`${id}${name}`, await response.blob())
    })
  const isNone = request_counts.completed + request_counts.failed === 0
  const isRunning = !ENDED.has(status)
  return (
    <div class="actions">
      {isOwn ? (
        <>
          <button type="button" disabled={isBusy.value || isNone} onClick={save('format=csv', '.csv')}>
            Download CSV
          </button>
          <button type="button" disabled={isBusy.value || isNone} onClick={save('format=jsonl', '.jsonl')}>
            Download results (JSONL)
          </button>
          <button
            type="button"
            disabled={isBusy.value || request_counts.failed === 0}
            onClick={save('status=failed', '-errors.jsonl')}
          >
            Download errors (JSONL)
          </button>
        </>
      ) : (
        <p class="dim">Only keys of the project {batch.project_name ?? batch.project} can read the results.</p>
      )}
      {isOwn && !isRunning && request_counts.failed > 0 && batch.input_file_id && (
        <button
          type="button"
          disabled={isBusy.value}
          onClick={() =>
            void run(async () => {
              navigate(`${BASE}/batches/${(await retryFailed(batch)).id}`)
            })
          }
        >
          Retry failed rows
        </button>
      )}
      {isRunning && (
        <Confirm
          verb="Cancel"
          what={id}
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

const RETRY_BYTES_MAX = 20_000_000
const METADATA_PAIRS_MAX = 16

/** Creates a batch of the failed requests of an ended batch, read from its input file. @throws Error for a large file */
async function retryFailed({ id, input_file_id, endpoint, metadata }: Batch): Promise<Batch> {
  const { bytes } = await fetchJson<{ bytes: number }>(`/v1/files/${input_file_id}`)
  if (bytes > RETRY_BYTES_MAX) {
    const size = `${Math.ceil(bytes / 1e6).toLocaleString()} MB`
    throw new Error(`The input file has ${size}, too much for a browser. Run: npx sluice batch ${id} --retry-failed`)
  }
  const ids = new Set<string>()
  for await (const line of linesOf(`/v1/batches/${id}/results?status=failed`)) ids.add(customIdIn(line))
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
  const { sluice_input: _, sluice_retry_of: __, ...rest } = metadata
  const isFull = Object.keys(rest).length >= METADATA_PAIRS_MAX
  const body = {
    input_file_id: file.id,
    endpoint,
    completion_window: '24h',
    metadata: { ...rest, ...(!isFull && { sluice_retry_of: id }) },
  }
  return await fetchJson<Batch>('/v1/batches', { method: 'POST', body })
}

/** Yields the lines of a response while they arrive, without blank lines. */
async function* linesOf(path: string, signal?: AbortSignal): AsyncGenerator<string> {
  const { body } = await fetchApi(path, signal ? { signal } : {})
  if (!body) throw new ApiFailure(502, 'The service returned no content.')
  const reader = body
    .pipeThrough(new TextDecoderStream() as never as ReadableWritablePair<string, Uint8Array>)
    .getReader()
  let rest: string[] = []
  try {
    for (;;) {
      const { done, value = '' } = await reader.read()
      const [first = '', ...others] = value.split('\n')
      rest.push(first)
      const last = others.pop()
      if (last !== undefined || done) {
        for (const line of [rest.join(''), ...others]) if (line.trim() !== '') yield line
        rest = [last ?? '']
      }
      if (done) return
    }
  } finally {
    await reader.cancel()
  }
}

function customIdIn(line: string): string {
  return (JSON.parse(line) as { custom_id: string }).custom_id
}

function Progress({ batch, isOwn }: OverviewProps) {
  const { id, waiting_for, request_counts } = batch
  const isRunning = !ENDED.has(batch.status)
  const texts = [rateText(batch), isRunning && endText(batch) && `ends ${endText(batch)}`].filter(Boolean)
  return (
    <section class="card child-jobs" aria-label="Progress">
      <h2>Progress</h2>
      <BatchBar batch={batch} />
      <p class="dim" aria-live="polite">
        {texts.join(', ') || (batch.progress ? 'Estimating…' : !isRunning && `Ended ${endText(batch)}`)}
      </p>
      {waiting_for && <p class="note">{waiting_for}</p>}
      <p>
        <a href={`${BASE}/jobs?group=${id}${isOwn && isOperator.value ? '&of=mine' : ''}`}>Show the requests</a>
        {request_counts.failed > 0 && (
          <>
            {' · '}
            <a href={`${BASE}/requests?batch_id=${id}&status=failed`}>Show the failed requests</a>
          </>
        )}
      </p>
    </section>
  )
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

/** Table of failed requests by error code, most frequent first. */
function Failures({ batch: { id, request_counts, status } }: { readonly batch: Batch }) {
  const counts = useSignal<readonly FailureCount[]>([])
  const problem = useSignal('')
  const { failed } = request_counts
  useEffect(() => {
    const abort = new AbortController()
    countFailures(id, abort.signal).then(
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
      <ul class="failures">
        {counts.value.map(({ code, count, customId, message }) => (
          <li key={code}>
            <code>{code}</code> <span class="dim">{count.toLocaleString()}</span>
            <span class="below dim">
              {customId}: {message.slice(0, MESSAGE_CHARS)}
            </span>
          </li>
        ))}
      </ul>
      {failed > FAILURES_MAX && <p class="dim">Of the first {FAILURES_MAX.toLocaleString()} failed requests.</p>}
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

async function countFailures(id: string, signal: AbortSignal): Promise<FailureCount[]> {
  const counts = new Map<string, FailureCount>()
  let lines = 0
  for await (const line of linesOf(`/v1/batches/${id}/results?status=failed`, signal)) {
    const failure = failureOf(JSON.parse(line))
    const first = counts.get(failure.code) ?? failure
    counts.set(first.code, { ...first, count: first.count + 1 })
    if (++lines === FAILURES_MAX) break
  }
  return [...counts.values()].toSorted((a, b) => b.count - a.count)
}

interface Problem {
  readonly code?: string | null
  readonly type?: string
  readonly message?: string
}

interface FailedLine {
  readonly custom_id: string
  readonly error: Problem | null
  readonly response: { readonly body: { readonly error?: Problem } } | null
}

function failureOf({ custom_id: customId, error, response }: FailedLine): FailureCount {
  const { code, type, message = '' } = error ?? response?.body.error ?? {}
  return { code: code ?? type ?? 'unknown', count: 0, customId, message }
}

function Details({ batch }: { readonly batch: Batch }) {
  return (
    <aside class="card details" aria-label="Details">
      <h2>Details</h2>
      <dl>
        {detailsOf(batch).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </aside>
  )
}

function detailsOf(batch: Batch): [string, string][] {
  const { model, endpoint, completion_window, created_at, expires_at, usage, metadata } = batch
  const ended = batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at
  const project = batch.project_name ?? batch.project
  return [
    ...(project ? ([['Project', project]] as [string, string][]) : []),
    ...(model ? ([['Model', model]] as [string, string][]) : []),
    ['Endpoint', endpoint],
    ['Created', dateTimeText(created_at)],
    ended === null
      ? ['Time limit', `${completion_window}, until ${dateTimeText(expires_at)}`]
      : ['Ended', dateTimeText(ended)],
    ...(usage
      ? ([
          ['Input tokens', usage.input_tokens.toLocaleString()],
          ['Output tokens', usage.output_tokens.toLocaleString()],
        ] as [string, string][])
      : []),
    ...Object.entries(metadata)
      .filter(([name]) => name !== 'name' && !name.startsWith('sluice_'))
      .map(([name, value]): [string, string] => [`metadata.${name}`, value]),
    ...(metadata.sluice_retry_of ? ([['Retry of', metadata.sluice_retry_of]] as [string, string][]) : []),
  ]
}
