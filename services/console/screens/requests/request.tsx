import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect } from 'preact/hooks'
import type { RequestAnswer } from '#schemas/admin/requests.ts'
import { fetchApi, fetchJson, isOperator, messageOf } from '#services/console/api/client.ts'
import { costText, dateTimeText, latencyText } from '#services/console/api/clock.ts'
import { keyName } from '#services/console/api/names.ts'
import { Back, CopyButton, Icon } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { LoadState } from '#services/console/parts/states.tsx'

export const PATH = '/v1/admin/requests'
/** Page of the guide with a table of all error codes. */
const ERRORS_PAGE = '/docs/guide/errors'
const CANCELLED = 499

/** @param id Id of a request, durable job or answer from the URL, unchecked */
export function RequestScreen({ id }: { readonly id: string }) {
  const request = useSignal<RequestAnswer | undefined>(undefined)
  const problem = useSignal('')
  useEffect(() => {
    const abort = new AbortController()
    fetchJson<RequestAnswer>(`${PATH}/${encodeURIComponent(id)}`, { signal: abort.signal }).then(
      (found) => {
        request.value = found
      },
      (error: unknown) => {
        if (!abort.signal.aborted) problem.value = messageOf(error)
      },
    )
    return () => abort.abort()
  }, [id])
  const shown = request.value
  return (
    <section class="request">
      <Back path="requests" name="Requests" />
      <div class="title">
        <h1>Request</h1>
        {shown && <Outcome request={shown} />}
      </div>
      <div class="actions">
        <code class="breaks">{shown?.id ?? id}</code>
        <CopyButton text={shown?.id ?? id} label="Copy ID" />
      </div>
      <LoadState problem={problem.value} isLoaded={shown !== undefined} retry={() => location.reload()} />
      {shown && (
        <>
          <Failure request={shown} />
          <Times request={shown} />
          <Details request={shown} />
          <Bodies request={shown} />
        </>
      )}
    </section>
  )
}

export function Outcome({ request: { status, error_code, error_message } }: { readonly request: RequestAnswer }) {
  const style = status < 400 ? 'completed' : status === CANCELLED ? 'cancelled' : 'failed'
  return (
    <>
      <span class={`status ${style}`}>{status === CANCELLED ? 'cancelled' : status}</span>
      {error_code && status !== CANCELLED && (
        <span class="short" title={error_message ?? ''}>
          {error_code}
        </span>
      )}
    </>
  )
}

interface Explanation {
  readonly cause: string
  readonly remedy: string
  readonly href: string
}

/** Shows the error of a failed request, with the cause and the remedy that the guide lists for the error code. */
function Failure({ request: { status, error_code, error_message, error_param } }: { readonly request: RequestAnswer }) {
  const explanation = useSignal<Explanation | undefined>(undefined)
  const code = status >= 400 && status !== CANCELLED ? (error_code ?? 'invalid_request') : ''
  useEffect(() => {
    if (!code) return
    const abort = new AbortController()
    // If the guide cannot be loaded, then only the message of the error is shown.
    explain(code, abort.signal).then(
      (found) => {
        explanation.value = found
      },
      () => {},
    )
    return () => abort.abort()
  }, [code])
  if (!code) return null
  const { cause, remedy, href } = explanation.value ?? {}
  return (
    <section class="note bad failure" aria-label="Error">
      <Icon name="warn" />
      <div>
        <strong>{error_message ?? code}</strong>
        {error_param && (
          <p>
            Field <code>{error_param}</code>
          </p>
        )}
        {cause && <p>{cause}</p>}
        {remedy && (
          <p>
            <b>Next step:</b> {remedy}
          </p>
        )}
        <p>
          <a href={href ?? ERRORS_PAGE} target="_blank" rel="noopener">
            Guide: <code>{code}</code>
          </a>
        </p>
      </div>
    </section>
  )
}

/**
 * Returns the row of an error code in the guide: code, status, cause and remedy. Undefined if the guide does not list
 * the code.
 */
async function explain(code: string, signal: AbortSignal): Promise<Explanation | undefined> {
  const response = await fetchApi(ERRORS_PAGE, { signal: AbortSignal.any([signal, AbortSignal.timeout(15_000)]) })
  const guide = new DOMParser().parseFromString(await response.text(), 'text/html')
  const name = [...guide.querySelectorAll('td:first-child code')].find(({ textContent }) => textContent === code)
  const [, , cause, remedy] = [...(name?.closest('tr')?.cells ?? [])].map(({ textContent }) => textContent ?? '')
  if (!name || !cause || !remedy) return undefined
  const headings = [...guide.querySelectorAll('main h2[id]')]
  const above = headings.findLast((one) => one.compareDocumentPosition(name) & Node.DOCUMENT_POSITION_FOLLOWING)
  return { cause, remedy, href: `${ERRORS_PAGE}${above ? `#${above.id}` : ''}` }
}

/** A bar with the parts of the duration: the queue, the time until the first output, and the time of the remaining output. */
function Times({ request: { queue_ms, first_output_ms, duration_ms } }: { readonly request: RequestAnswer }) {
  const queue = Math.min(queue_ms ?? 0, duration_ms)
  const first = first_output_ms === null ? undefined : Math.min(Math.max(first_output_ms, queue), duration_ms)
  const parts = [
    { name: 'Queue', style: 'waiting', ms: queue },
    ...(first === undefined
      ? [{ name: 'Run', style: 'running', ms: duration_ms - queue }]
      : [
          { name: 'Until first output', style: 'first', ms: first - queue },
          { name: 'Output', style: 'running', ms: duration_ms - first },
        ]),
  ]
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

function Details({ request }: { readonly request: RequestAnswer }) {
  return (
    <div class="card details">
      <h2>Details</h2>
      <dl>
        {fieldsOf(request).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </div>
  )
}

/** Fields that have a value, in the order of the page. */
function fieldsOf(request: RequestAnswer): [string, ComponentChildren][] {
  const { model, project, key_id, worker, job_id, batch_id, attempts, cost_usd } = request
  const { input_tokens, cached_input_tokens, output_tokens } = request
  const keys = (query: string) => (isOperator.value ? `${BASE}/keys?${query}` : undefined)
  const fields: [string, ComponentChildren][] = [
    ['Model', model && linked(model, `${BASE}/requests?model=${encodeURIComponent(model)}`)],
    ['Endpoint', request.endpoint],
    ['Project', project && linked(request.project_name ?? project, keys(`project=${project}`))],
    ['API key', key_id && linked(request.key_name ?? keyName(key_id), keys(`state=all&project=${project ?? ''}`))],
    ['Durable job', job_id && linked(job_id, `${BASE}/jobs/${job_id}`)],
    ['Batch', batch_id && linked(batch_id, `${BASE}/requests?batch_id=${batch_id}`)],
    ['Started', dateTimeText(request.started_at)],
    ['Ended', dateTimeText(request.ended_at)],
    ['Input tokens', input_tokens > 0 && input_tokens.toLocaleString()],
    ['Cached input', cached_input_tokens > 0 && `${cached_input_tokens.toLocaleString()} of the input tokens`],
    ['Output tokens', output_tokens > 0 && output_tokens.toLocaleString()],
    ['Cost', cost_usd > 0 && costText(cost_usd)],
    ['Attempts', attempts > 1 && String(attempts)],
    ['Worker', worker && linked(worker, isOperator.value ? `${BASE}/workers` : undefined)],
    ['Upstream server', request.server],
    ['Trace ID', request.trace_id],
    ['User agent', request.user_agent],
  ]
  return fields.filter(([, value]) => Boolean(value))
}

/** @param href Undefined if the key of this tab may not open the page */
function linked(text: string, href: string | undefined): ComponentChildren {
  return href ? <a href={href}>{text}</a> : text
}

/** Shows the recorded bodies. A complete body is indented. */
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
