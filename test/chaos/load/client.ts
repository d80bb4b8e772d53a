import { createHash } from 'node:crypto'
import { Agent, request } from 'undici'
import { TEST_KEY } from '../../support/stack.ts'
import type { End, Expectation, History } from '../check/history.ts'

/** Timeout for the response headers. After a timeout, it is unknown whether the request was executed. */
const ANSWER_MS = 8_000
const RETRY_DELAY_MS = 300
/** Time for which `GET /v1/jobs/:id?wait=` waits for the end of the job before it responds. */
const WAIT_SECONDS = 10

const TERMINAL = new Set(['completed', 'failed', 'cancelled', 'expired'])
const agent = new Agent({ connections: null, keepAliveTimeout: 5_000 })

/** Values that all clients of a run share. */
export interface Clients {
  readonly history: History
  readonly ingresses: readonly string[]
  /** Aborted at the end of the run. */
  readonly signal: AbortSignal
}

/** The fields of the job object that clients use. */
export interface WireJob {
  readonly id: string
  readonly status: string
  readonly attempt: number
  readonly result: unknown
  /** Present for a composed job with steps. */
  readonly steps?: readonly { readonly kind: string }[]
  readonly children?: readonly unknown[]
}

/** A request for a job. All repetitions send exactly the same values. */
export interface Submission {
  readonly key: string
  readonly body: string
  readonly expect: Expectation
}

/**
 * Submits a job through one ingress. After a failure, submits it through the next ingress with the same idempotency key, until the outcome is
 * certain.
 *
 * @returns Id of the job; undefined if the service refused it or the run ended first.
 */
export async function submit(clients: Clients, job: Submission, first: number): Promise<string | undefined> {
  for (let turn = first; !clients.signal.aborted; turn++) {
    const ingress = ingressOf(clients, turn)
    const base = { type: 'submit', key: job.key, ingress } as const
    clients.history.add('submitters', { ...base, phase: 'invoke', expect: job.expect })
    const answer = await call(clients, 'POST', turn, '/v1/jobs', { 'idempotency-key': job.key }, job.body)
    const job_id = answer.job?.id
    if ((answer.status === 202 || answer.status === 200) && job_id !== undefined) {
      clients.history.add('submitters', { ...base, phase: 'ok', job_id, status: answer.status })
      return job_id
    }
    clients.history.add('submitters', { ...base, phase: phaseOf(answer), ...problemOf(answer) })
    if (isFinal(answer)) return undefined
    await sleep(RETRY_DELAY_MS, clients.signal)
  }
  return undefined
}

/** Cancels a job and retries until the answer is final: 200, or 409 if the job finished first. */
export async function cancel(clients: Clients, jobId: string, first: number): Promise<void> {
  for (let turn = first; !clients.signal.aborted; turn++) {
    const base = { type: 'cancel', job_id: jobId, ingress: ingressOf(clients, turn) } as const
    clients.history.add('cancellers', { ...base, phase: 'invoke' })
    const answer = await call(clients, 'POST', turn, `/v1/jobs/${jobId}/cancel`)
    if (answer.status === 200 && answer.job) {
      clients.history.add('cancellers', { ...base, phase: 'ok', status: 200, state: answer.job.status })
      return
    }
    clients.history.add('cancellers', { ...base, phase: phaseOf(answer), ...problemOf(answer) })
    if (isFinal(answer)) return
    await sleep(RETRY_DELAY_MS, clients.signal)
  }
}

/** Reads a job with `?wait=` until it is terminal, alternating between the ingresses. */
export async function waitForEnd(clients: Clients, jobId: string, first: number): Promise<void> {
  for (let turn = first; !clients.signal.aborted; turn++) {
    const answer = await call(clients, 'GET', turn, `/v1/jobs/${jobId}?wait=${WAIT_SECONDS}`)
    if (answer.job && TERMINAL.has(answer.job.status)) {
      const end = endOf(answer.job)
      clients.history.add('readers', { type: 'read', job_id: jobId, ingress: ingressOf(clients, turn), end })
      return
    }
    if (answer.status === 404) {
      const base = { type: 'follow', job_id: jobId, follower: `reader-${jobId}`, after: 0 } as const
      clients.history.add('readers', { ...base, phase: 'missing', ingress: ingressOf(clients, turn) })
      return
    }
    if (answer.status !== 200) await sleep(RETRY_DELAY_MS, clients.signal)
  }
}

/**
 * Runs one job before the faults begin, and does not record it in the history that the checker reads. Returns undefined if the job is refused, or
 * does not end before the signal is aborted.
 */
export async function runQuietly(clients: Clients, body: object): Promise<WireJob | undefined> {
  const accepted = await call(clients, 'POST', 0, '/v1/jobs', {}, JSON.stringify(body))
  while (accepted.job && !clients.signal.aborted) {
    const { job } = await call(clients, 'GET', 0, `/v1/jobs/${accepted.job.id}?wait=${WAIT_SECONDS}`)
    if (job && TERMINAL.has(job.status)) return job
    await sleep(RETRY_DELAY_MS, clients.signal)
  }
  return undefined
}

/** Returns the final state of an ended job, as the history records it. */
export function endOf(job: WireJob): End {
  const hash =
    job.result === null ? null : createHash('sha256').update(canonical(job.result)).digest('hex').slice(0, 16)
  return { status: job.status, attempt: job.attempt, hash }
}

export function ingressOf({ ingresses }: Clients, turn: number): string {
  return ingresses[turn % ingresses.length] ?? ''
}

/** Waits for `ms` milliseconds, or until the signal is aborted. */
export function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done, { once: true })
  })
}

interface Answer {
  /** HTTP status; 0 if there was no response. */
  readonly status: number
  readonly job?: WireJob
  readonly problem?: string
}

async function call(
  clients: Clients,
  method: 'GET' | 'POST',
  turn: number,
  path: string,
  headers: Record<string, string> = {},
  body: string | null = method === 'POST' ? '{}' : null,
): Promise<Answer> {
  const waitMs = method === 'GET' ? WAIT_SECONDS * 1_000 : 0
  try {
    const answer = await request(ingressOf(clients, turn) + path, {
      dispatcher: agent,
      method,
      headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json', ...headers },
      body,
      headersTimeout: ANSWER_MS + waitMs,
      bodyTimeout: ANSWER_MS,
      signal: clients.signal,
    })
    const text = await answer.body.text()
    if (answer.statusCode >= 400) return { status: answer.statusCode, problem: text.slice(0, 300) }
    return { status: answer.statusCode, job: JSON.parse(text) }
  } catch (error) {
    return { status: 0, problem: error instanceof Error ? error.message : String(error) }
  }
}

/**
 * Returns the phase of a write that was not accepted. After a 4xx response, the write was certainly not executed. After a 5xx response, it may
 * have been.
 */
function phaseOf({ status }: Answer): 'fail' | 'unknown' {
  return status >= 400 && status < 500 ? 'fail' : 'unknown'
}

/**
 * Whether a repetition of the request cannot succeed. Two 4xx responses are temporary: 409 idempotency_key_in_use (a duplicate is being
 * processed) and 429 (a quota is used up at the moment).
 */
function isFinal({ status, problem = '' }: Answer): boolean {
  return status >= 400 && status < 500 && status !== 429 && !problem.includes('idempotency_key_in_use')
}

function problemOf({ status, problem }: Answer): { status: number; problem: string } {
  return { status, problem: problem ?? 'an answer without a job' }
}

/** Returns JSON with sorted keys, because two ingresses may write the fields of an object in different orders. */
function canonical(value: unknown): string {
  return JSON.stringify(value, (_key, inner) =>
    inner !== null && typeof inner === 'object' && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).toSorted(([a], [b]) => (a < b ? -1 : 1)))
      : inner,
  )
}
