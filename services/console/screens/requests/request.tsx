import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import type { RequestAnswer } from '#schemas/admin/requests.ts'
import { fetchJson, isOperator } from '#services/console/api/client.ts'
import { clockText, costText, dateTimeText, latencyText } from '#services/console/api/clock.ts'
import { keyName } from '#services/console/api/names.ts'
import {
  batchPath,
  DetailHead,
  DetailState,
  Details,
  type Field,
  linked,
  modelLink,
  projectLink,
  workerLink,
} from '#services/console/parts/details.tsx'
import { Icon, usePoll } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { Status } from '#services/console/parts/states.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { Remedy } from '#services/console/screens/home/problems.tsx'
import { refusedUntilOf } from '#shared/lib/error.ts'

export const PATH = '/v1/admin/requests'
/** Page of the guide with a table row per error code. The HTML id of each row is its error code. */
const ERRORS_PAGE = '/docs/guide/errors'
const CANCELLED = 499

/** Delay in ms of another read of a request that is not in the log yet. */
const LOG_DELAY_MS = 2_000
const LOG_READS_MAX = 5

/**
 * The cause of a failed request: the error, the upstream server's own message, the next steps, and the attempts. The request is read from the log.
 *
 * @param id Id of a request, a durable job or an answer
 */
export function Cause({ id, isLinked = false, children }: CauseProps) {
  const request = useSignal<RequestAnswer | undefined>(undefined)
  const reads = useRef(0)
  const load = async (signal: AbortSignal) => {
    if (request.peek() || reads.current >= LOG_READS_MAX) return
    reads.current += 1
    request.value = await fetchJson<RequestAnswer>(`${PATH}/${encodeURIComponent(id)}`, { signal }).catch(
      () => undefined,
    )
  }
  usePoll(LOG_DELAY_MS, load, [id])
  if (!request.value) return <>{children}</>
  return (
    <>
      <Failure request={request.value} isLinked={isLinked} />
      <Attempts request={request.value} />
    </>
  )
}

interface CauseProps {
  readonly id: string
  /** Whether the cause has a link to the page of the request; default: false. */
  readonly isLinked?: boolean
  /** Shown until the request is in the log, or if the key may not read the request. */
  readonly children?: ComponentChildren
}

/** @param id Id of a request, a durable job or an answer. The id comes from the URL and is not validated */
export function RequestScreen({ id }: { readonly id: string }) {
  const request = useSignal<RequestAnswer | undefined>(undefined)
  const error = useSignal<unknown>(undefined)
  useEffect(() => {
    const abort = new AbortController()
    fetchJson<RequestAnswer>(`${PATH}/${encodeURIComponent(id)}`, { signal: abort.signal }).then(
      (found) => {
        request.value = found
      },
      (cause: unknown) => {
        if (!abort.signal.aborted) error.value = cause
      },
    )
    return () => abort.abort()
  }, [id])
  const shown = request.value
  return (
    <section class="job">
      <DetailHead
        list="requests"
        what="Request"
        id={shown?.id ?? id}
        title={shown && titleOf(shown)}
        state={shown && <Outcome request={shown} />}
      />
      <DetailState
        list="requests"
        what="request"
        error={error.value}
        isLoaded={shown !== undefined}
        retry={() => location.reload()}
      />
      {shown && <p>{factsOf(shown)}</p>}
      {shown && (
        <>
          <Failure request={shown} />
          <div class="columns">
            <div>
              <Times request={shown} />
              <Attempts request={shown} />
              <Bodies request={shown} />
            </div>
            <Details fields={fieldsOf(shown)} />
          </div>
        </>
      )}
    </section>
  )
}

/** Model and endpoint, such as `qwen3-8b, chat/completions`. */
function titleOf({ model, endpoint }: RequestAnswer): string {
  return [model, endpoint.replace('/v1/', '')].filter(Boolean).join(', ')
}

/** Time, duration, cost and tokens in one line. */
function factsOf(request: RequestAnswer): string {
  const { started_at, duration_ms, cost_usd, input_tokens, output_tokens } = request
  const tokens = `${input_tokens.toLocaleString('en')} → ${output_tokens.toLocaleString('en')} tokens`
  return [
    dateTimeText(started_at),
    latencyText(duration_ms / 1_000),
    cost_usd > 0 ? costText(cost_usd) : 'no cost',
    input_tokens + output_tokens > 0 && tokens,
  ]
    .filter(Boolean)
    .join(' · ')
}

export function Outcome({ request }: { readonly request: RequestAnswer }) {
  const { status, error_code, error_message, sdk_retry, request_counts: counts } = request
  if (counts && status < 400) return <BatchOutcome {...counts} />
  const style = status < 400 ? 'completed' : status === CANCELLED ? 'cancelled' : 'failed'
  return (
    <>
      <Status status={style} text={status === CANCELLED ? undefined : String(status)} />
      {error_code && status !== CANCELLED && (
        <code class="error-code" title={error_message ?? ''}>
          {error_code}
        </code>
      )}
      {notSentText(request) && (
        <span class="dim below" title={notSentText(request)}>
          {request.attempts > 1 ? 'last attempt not sent' : 'not sent'}
        </span>
      )}
      {sdk_retry && <span class="dim below">SDK retry {sdk_retry}</span>}
    </>
  )
}

type FailedCall = Pick<RequestAnswer, 'server' | 'error_message' | 'ended_at'>

/** States that an open circuit breaker refused a request or attempt. Empty if the request was sent. */
function notSentText({ server, error_message, ended_at }: FailedCall): string {
  const until = server === null ? refusedUntilOf(error_message, ended_at) : undefined
  if (until === undefined) return ''
  return `not sent: the server is paused after failures until ${clockText(until, true)}`
}

function BatchOutcome({ total, failed }: { readonly total: number; readonly failed: number }) {
  if (total === 0) return <Status status="failed" text="no call ran" />
  const style = failed === 0 ? 'completed' : failed === total ? 'failed' : 'partial'
  return (
    <Status
      status={style}
      text={`${total === 1 ? '1 call' : `${total.toLocaleString('en')} calls`}${failed > 0 ? `, ${failed.toLocaleString('en')} failed` : ''}`}
    />
  )
}

function Failure({ request, isLinked = false }: { readonly request: RequestAnswer; readonly isLinked?: boolean }) {
  const { id, status, error_code, error_message, error_param, upstream_message, next_step } = request
  if (status < 400 || status === CANCELLED) return null
  const code = error_code ?? 'invalid_request'
  const notSent = notSentText(request)
  const isSentBefore = request.failed_attempts?.some(({ server }) => server !== null)
  return (
    <section class="note bad failure" aria-label="Error">
      <Icon name="warn" />
      <div>
        <strong>{error_message ?? code}</strong>
        {notSent && (
          <p>
            {isSentBefore ? 'The last attempt' : 'This request'} was {notSent}.
          </p>
        )}
        {upstream_message && upstream_message !== error_message && (
          <p>
            {notSent ? 'Last answer of the upstream server' : 'The upstream server answered'}: <q>{upstream_message}</q>
          </p>
        )}
        {error_param && (
          <p>
            Field <code>{error_param}</code>
          </p>
        )}
        {next_step && (
          <p>
            <b>Next step:</b> <Remedy text={next_step} />
          </p>
        )}
        <p>
          <a href={`${ERRORS_PAGE}#${code}`} target="_blank" rel="noopener">
            Guide: <code>{code}</code>
          </a>{' '}
          {isLinked && <a href={`${BASE}/requests/${id}`}>Open the request</a>}
        </p>
      </div>
    </section>
  )
}

const ATTEMPT_COLUMNS = ['Attempt', 'Error', 'Started', 'Duration', 'Next attempt']

/** Table of the attempts of a request, if at least one failed. If the last attempt succeeded, then it has a row too. */
function Attempts({ request }: { readonly request: RequestAnswer }) {
  const { failed_attempts = [], attempts, status, worker, server, server_url } = request
  if (failed_attempts.length === 0) return null
  // The address belongs to the server of the last attempt or, if that attempt was not sent, to the only server of the model.
  const placeOf = (one: string | null) =>
    server_url && one !== null && (one === server || server === null) ? server_url : one && `server ${one}`
  return (
    <div class="card">
      <h2>Attempts</h2>
      <Table
        label="Attempts"
        columns={ATTEMPT_COLUMNS}
        numbers={['Started', 'Duration', 'Next attempt']}
        main={['Error']}
      >
        {failed_attempts.map((one) => {
          const notSent = notSentText({ ...one, ended_at: one.started_at + one.duration_ms / 1_000 })
          return (
            <tr key={one.attempt}>
              <Cell column="Attempt">{one.attempt}</Cell>
              <Cell column="Error">
                <code>{one.error_code}</code>
                <span class="dim below">{notSent || (one.upstream_message ?? one.error_message)}</span>
                {!notSent && <RanOn place={placeOf(one.server) ?? one.worker} />}
              </Cell>
              <Cell column="Started">{clockText(one.started_at, true)}</Cell>
              <Cell column="Duration">{latencyText(one.duration_ms / 1_000)}</Cell>
              <Cell column="Next attempt">
                {one.retry_delay_ms === null ? 'none' : `after ${latencyText(one.retry_delay_ms / 1_000)}`}
              </Cell>
            </tr>
          )
        })}
        {status < 400 && (
          <tr>
            <Cell column="Attempt">{attempts}</Cell>
            <Cell column="Error">
              succeeded
              <RanOn place={placeOf(server) ?? worker} />
            </Cell>
            <Cell column="Started">–</Cell>
            <Cell column="Duration">–</Cell>
            <Cell column="Next attempt">none</Cell>
          </tr>
        )}
      </Table>
    </div>
  )
}

/** @param place URL of the server that ran the attempt, or the id of the worker if there is no URL */
function RanOn({ place }: { readonly place: string | null }) {
  if (!place) return null
  return (
    <span class="dim below">
      on <code>{place}</code>
    </span>
  )
}

/**
 * A bar with the parts of the duration: the queue, the time until the first output, and the time of the remaining output. A request that no worker
 * started has only the time until its end.
 */
function Times({
  request: { status, queue_ms, first_output_ms, duration_ms, attempts },
}: {
  readonly request: RequestAnswer
}) {
  const queue = Math.min(queue_ms ?? 0, duration_ms)
  const first = first_output_ms === null ? undefined : Math.min(Math.max(first_output_ms, queue), duration_ms)
  const started = [
    { name: 'Queue', style: 'waiting', ms: queue },
    ...(first === undefined
      ? [{ name: 'Run', style: 'running', ms: duration_ms - queue }]
      : [
          { name: 'Until first output', style: 'first', ms: first - queue },
          { name: 'Output', style: 'running', ms: duration_ms - first },
        ]),
  ]
  const unrun = { name: status < 400 ? 'Answered directly' : 'Not run', style: 'neutral', ms: duration_ms }
  const parts = attempts === 0 ? [unrun] : started
  return (
    <div class="card times">
      <div class="title">
        <h2>Duration</h2>
        <strong>{latencyText(duration_ms / 1_000)}</strong>
      </div>
      <div class="bar" aria-hidden="true">
        {parts.map(({ name, style, ms }) => (
          <span key={name} class={`mark ${style}`} style={{ flexGrow: ms }} />
        ))}
      </div>
      <ul>
        {parts.map(({ name, style, ms }) => (
          <li key={name}>
            <span class={`mark ${style}`} />
            {name} <b>{latencyText(ms / 1_000)}</b>
          </li>
        ))}
      </ul>
    </div>
  )
}

const FORMAT_IGNORED = {
  json: 'ignored by the model: the answer is not JSON',
  tool_call: 'ignored by the model: the answer has no tool call',
}

function fieldsOf(request: RequestAnswer): Field[] {
  const { model, project, key_id, worker, job_id, batch_id, attempts, cost_usd } = request
  const { input_tokens, cached_input_tokens, output_tokens, sdk_retry, retry_of } = request
  const isShort = request.duration_ms < 60_000
  const keys = isOperator.value ? `keys?state=all&project=${project ?? ''}` : undefined
  return [
    ['Model', model && modelLink(model)],
    ['Endpoint', request.endpoint],
    ['Project', project && projectLink(project, request.project_name ?? undefined)],
    ['API key', key_id && linked(request.key_name ?? keyName(key_id), keys)],
    ['Durable job', job_id && linked(job_id, `jobs/${job_id}`)],
    ['Batch', batch_id && linked(batch_id, batchPath(batch_id))],
    ['Started', dateTimeText(request.started_at, isShort)],
    ['Ended', dateTimeText(request.ended_at, isShort)],
    ['Input tokens', input_tokens > 0 && input_tokens.toLocaleString('en')],
    ['Cached input', cached_input_tokens > 0 && `${cached_input_tokens.toLocaleString('en')} of the input tokens`],
    ['Output tokens', output_tokens > 0 && output_tokens.toLocaleString('en')],
    ['Cost', cost_usd > 0 && costText(cost_usd)],
    ['Cancelled', request.status === CANCELLED && request.error_message],
    ['Attempts', attempts > 0 ? String(attempts) : `none: ${request.status < 400 ? 'answered directly' : 'not run'}`],
    ['SDK retry', sdk_retry && `retry ${sdk_retry} by the SDK of the caller`],
    ['Retry of', retry_of && linked(retry_of, `requests/${retry_of}`)],
    ['Retried by', request.retried_by && <Retries retries={request.retried_by} />],
    ['Unknown parameters', request.unknown_parameters],
    ['Format', request.format_ignored && FORMAT_IGNORED[request.format_ignored]],
    ['Worker', worker && workerLink(worker)],
    ['Upstream server', request.server_url ?? request.server],
    ['Trace ID', request.trace_id],
    ['User agent', request.user_agent],
  ]
}

function Retries({ retries }: { readonly retries: NonNullable<RequestAnswer['retried_by']> }) {
  if (retries.length === 0) return <>no retry by an SDK seen</>
  return (
    <>
      {retries.map(({ id, status }) => (
        <span key={id} class="below">
          {linked(id, `requests/${id}`)} → {status}
        </span>
      ))}
    </>
  )
}

/** Shows the recorded bodies of the request and of its answer. A complete body is shown as indented JSON. */
function Bodies({ request: { request_body, answer_body } }: { readonly request: RequestAnswer }) {
  const texts = { Request: request_body, Answer: answer_body }
  return (
    <>
      {Object.entries(texts).map(
        ([name, text]) =>
          text && (
            <div key={name} class="card">
              <h2>{name}</h2>
              <pre class="output">{indented(text)}</pre>
            </div>
          ),
      )}
    </>
  )
}

function indented(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    // A truncated body is not valid JSON, so its text is shown unchanged.
    return text
  }
}
