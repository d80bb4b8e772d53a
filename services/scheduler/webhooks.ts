import { createHmac } from 'node:crypto'
import { DELIVERY_TRIES_MAX, type DeliveryTry, type WebhookDelivery } from '#schemas/durable-job.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Metrics } from '#shared/lib/metrics.ts'
import type { Log } from '#shared/log/log.ts'
import type { OutboundPolicy, Resolve } from '#shared/outbound/guard.ts'
import { type OutboundAnswer, postOutbound } from '#shared/outbound/outbound.ts'
import type { DeliveryOutcome } from '#shared/store/jobs.ts'
import { ALL_TENANTS, type StoreView } from '#shared/store/store.ts'
import { outgoingHeaders } from '#shared/telemetry/context.ts'
import { type Span, tracing } from '#shared/telemetry/tracing.ts'
import { DeliveryQueue, type Taken } from './delivery-queue.ts'
import type { SigningKeys } from './webhook-secret.ts'

const SECOND_MS = 1_000
const MINUTE_MS = 60 * SECOND_MS
const HOUR_MS = 60 * MINUTE_MS

/**
 * Delays in ms between the attempts to deliver one message (docs/guides/webhooks.md). The message fails if the attempt after the last delay fails.
 */
export const RETRIES_MS: readonly number[] = [
  5 * SECOND_MS,
  MINUTE_MS,
  5 * MINUTE_MS,
  30 * MINUTE_MS,
  2 * HOUR_MS,
  5 * HOUR_MS,
  10 * HOUR_MS,
]
const JITTER = 0.1
const RETRY_AFTER_MS_MAX = 10 * HOUR_MS
const GONE = 410

/** Statuses for which the Retry-After of the receiver is honoured. */
const BUSY = new Set([429, 503])

const TIMEOUT_MS = 15_000
const ANSWER_BYTES_MAX = 64 * 1024
const TAKE_MAX = 200
const WAIT_MS_MAX = 30_000
/**
 * Duration of a message's lease, in ms: its wait in the queue, one attempt, and recording the result. After the lease has expired, any scheduler may
 * take the message.
 */
const LEASE_MS = WAIT_MS_MAX + 2 * TIMEOUT_MS
/** Minimum and maximum delay in ms of a message that cannot be signed. Between these bounds, the delay equals the age of the message. */
const UNSIGNED_MS_MIN = 1_000
const UNSIGNED_MS_MAX = 60_000

export interface WebhookOptions {
  readonly store: StoreView
  readonly log: Log
  readonly metrics: Metrics
  readonly version: string
  readonly keysOf: SigningKeys
  readonly policy: OutboundPolicy
  readonly retriesMs?: readonly number[]
  readonly resolve?: Resolve
}

type Result = DeliveryOutcome & { readonly isUntried?: true }

/**
 * Delivers webhook messages, each at least once, and those of one job in order (docs/guides/webhooks.md).
 *
 * Several schedulers may run concurrently. A message is taken under a lease and waits in a {@link DeliveryQueue} for a permit. Only a message that
 * was sent counts as an attempt.
 *
 * If the lease expired during an attempt and another scheduler repeated the attempt, then the result of the first attempt is dropped.
 */
export class WebhookSender {
  readonly #options: WebhookOptions
  readonly #queue = new DeliveryQueue()
  readonly #running = new Set<Promise<void>>()
  readonly #puttingBack = new Set<Promise<void>>()
  readonly #cancelled = new AbortController()

  constructor(options: WebhookOptions) {
    this.#options = options
  }

  /**
   * Takes messages that are due and starts to send them.
   *
   * @returns Whether more messages may be due
   */
  async sendDue(stopped: AbortSignal): Promise<boolean> {
    const deliveries = await this.#options.store.takeDeliveries(TAKE_MAX, LEASE_MS)
    const takenAt = performance.now()
    for (const delivery of deliveries) {
      const unplaced = this.#queue.add({ delivery, host: URL.parse(delivery.url)?.host ?? '', takenAt })
      if (unplaced) this.#putBack(unplaced, this.#queue.delayMs(unplaced, Math.random()))
    }
    if (!stopped.aborted) this.#sendNext()
    // The writes that return messages to the store are awaited. Otherwise, these writes would accumulate.
    await Promise.all(this.#puttingBack)
    return deliveries.length === TAKE_MAX
  }

  /**
   * Returns waiting messages to the store and waits for attempts in flight. If `signal` aborts, then these attempts are aborted and
   * repeated soon.
   */
  async drain(signal: AbortSignal): Promise<void> {
    const onAbort = () => this.#cancelled.abort()
    if (signal.aborted) onAbort()
    signal.addEventListener('abort', onAbort, { once: true })
    for (const taken of this.#queue.clear()) this.#putBack(taken, 0)
    await Promise.all([...this.#running, ...this.#puttingBack])
    signal.removeEventListener('abort', onAbort)
  }

  #sendNext(): void {
    for (let taken = this.#queue.next(); taken; taken = this.#queue.next()) {
      if (performance.now() - taken.takenAt < WAIT_MS_MAX) this.#start(taken)
      else {
        this.#queue.release(taken)
        this.#putBack(taken, this.#queue.delayMs(taken, Math.random()))
      }
    }
  }

  #start(taken: Taken): void {
    this.#track(this.#running, taken, this.#try(taken))
  }

  #putBack(taken: Taken, retryInMs: number): void {
    this.#track(this.#puttingBack, taken, this.#record(taken, { state: 'pending', retryInMs, isUntried: true }))
  }

  #track(all: Set<Promise<void>>, { delivery }: Taken, work: Promise<void>): void {
    const tracked = work.catch((error: unknown) => {
      this.#options.log.warn(
        { err: error, delivery_id: delivery.id },
        'webhook result could not be recorded; the webhook will be sent again',
      )
    })
    all.add(tracked)
    void tracked.then(() => all.delete(tracked))
  }

  async #try(taken: Taken): Promise<void> {
    let answerMs: number | undefined
    try {
      const [atMs, startedAt] = [Date.now(), performance.now()]
      const result = await this.#deliver(taken.delivery)
      const { status = null, error = null } = { error: null, ...result }
      const durationMs = performance.now() - startedAt
      if (!result.isUntried) answerMs = durationMs
      await this.#record(taken, result, { at_ms: atMs, duration_ms: Math.round(durationMs), status, error })
    } finally {
      this.#queue.release(taken, answerMs)
      this.#sendNext()
    }
  }

  async #deliver(delivery: WebhookDelivery): Promise<Result> {
    const { data, traceparent } = delivery.data ? { data: delivery.data } : await this.#dataOfJob(delivery)
    if (!data) return { state: 'failed', error: 'The job was deleted.', isUntried: true }
    const keys = await this.#keysOf(delivery)
    if (!keys) return unsigned(delivery)
    const span = this.#startSpan(delivery, traceparent)
    const answer = await this.#post(delivery, messageOf(delivery, data), keys, span?.traceparent ?? traceparent)
    const status = answer instanceof ServiceError ? undefined : answer?.status
    span?.end({ 'http.response.status_code': status }, failureOf(answer))
    if (!answer) return { state: 'pending', retryInMs: 0, error: 'The delivery attempt was aborted.' }
    return outcomeOf(answer, triesOf(delivery) + 1, this.#options.retriesMs ?? RETRIES_MS, Math.random())
  }

  #startSpan({ id, job_id, tenant, url, tries }: WebhookDelivery, parent: string | undefined): Span | undefined {
    // Only the host is recorded, because the rest of the URL may contain a secret.
    const host = URL.parse(url)?.hostname
    const ids = { 'sluice.delivery.id': id, 'sluice.job.id': job_id, 'sluice.project': tenant }
    const attributes = { ...ids, 'server.address': host, 'http.request.method': 'POST', 'sluice.delivery.tries': tries }
    if (parent === undefined) return undefined
    return tracing.tracer?.start({ name: 'webhook', kind: 'client', parent, attributes })
  }

  async #dataOfJob({ job_id, type }: WebhookDelivery): Promise<{ data?: object; traceparent?: string }> {
    const job = await this.#options.store.find(ALL_TENANTS, job_id)
    if (!job || job.erased_at_ms !== null) return {}
    const data = { id: job.id, status: statusOf(type), endpoint: job.endpoint, metadata: job.metadata }
    return { data, ...(job.traceparent !== null && { traceparent: job.traceparent }) }
  }

  /**
   * Returns the keys that sign the message. Undefined if the keys cannot be read at the moment. An unsigned message is
   * never sent.
   */
  async #keysOf({ id, tenant }: WebhookDelivery): Promise<readonly Buffer[] | undefined> {
    try {
      return await this.#options.keysOf(tenant)
    } catch (error) {
      this.#options.log.warn(
        { err: error, delivery_id: id },
        'webhook secret could not be read; the webhook will be retried',
      )
      return undefined
    }
  }

  /** Sends the message. Returns the answer, or an error if there is no answer. Undefined if the attempt was aborted. */
  async #post(
    { id, url }: WebhookDelivery,
    body: string,
    keys: readonly Buffer[],
    traceparent: string | undefined,
  ): Promise<OutboundAnswer | ServiceError | undefined> {
    const { policy, version, resolve } = this.#options
    const { signal } = this.#cancelled
    // The webhook has the whole trace context, including its baggage. The project itself sent the baggage and chose the
    // address, so no data reaches a third party.
    const trace = outgoingHeaders(traceparent, true)
    const headers = { ...signedHeaders(id, body, keys, Date.now()), 'user-agent': `sluice/${version}`, ...trace }
    const limits = { policy, timeoutMs: TIMEOUT_MS, bytesMax: ANSWER_BYTES_MAX }
    try {
      return await postOutbound(url, { headers, body, signal, ...limits, ...(resolve && { resolve }) })
    } catch (error) {
      if (signal.aborted) return undefined
      if (error instanceof ServiceError) return error
      throw error
    }
  }

  async #record({ delivery, host }: Taken, { isUntried, ...outcome }: Result, one?: DeliveryTry): Promise<void> {
    const { store, log, metrics } = this.#options
    const history = one && !isUntried ? [...delivery.history, one].slice(-DELIVERY_TRIES_MAX) : undefined
    const isOurs = await store.recordDelivery(delivery, outcome, history)
    if (!isOurs || (isUntried && outcome.state === 'pending')) return
    metrics.webhooks.inc({ outcome: outcome.state === 'pending' ? 'retried' : outcome.state })
    // The URL is not logged, because it may contain a secret.
    const ids = { delivery_id: delivery.id, job_id: delivery.job_id, host }
    const fields = { ...ids, tries: delivery.tries + (isUntried ? 0 : 1), ...fieldsOf(outcome) }
    if (outcome.state === 'delivered') log.debug(fields, 'webhook delivered')
    else
      log.info(
        fields,
        outcome.state === 'failed' ? 'webhook not delivered; no further retry' : 'webhook not delivered; retrying',
      )
  }
}

/** Error of a delivery attempt, for the trace span of the attempt. Undefined if the receiver accepted the message. */
function failureOf(answer: OutboundAnswer | ServiceError | undefined): string | undefined {
  if (!answer) return 'cancelled'
  if (answer instanceof ServiceError) return answer.code
  return answer.status >= 200 && answer.status < 300 ? undefined : String(answer.status)
}

function unsigned({ next_at_ms, created_at_ms }: WebhookDelivery): Result {
  // The message was taken at the time `next_at_ms - LEASE_MS`, because `next_at_ms` is the end of its lease. All these
  // times come from the database, so the age does not depend on the clock of this process.
  const ageMs = next_at_ms - LEASE_MS - created_at_ms
  const retryInMs = Math.min(Math.max(ageMs, UNSIGNED_MS_MIN), UNSIGNED_MS_MAX)
  return { state: 'pending', retryInMs, error: 'The signing secret cannot be read now.', isUntried: true }
}

/**
 * Returns the number of attempts. In messages of versions before 2026-12, `tries` also counts each time that the message was returned to
 * the store unsent. The smaller length of `history`, which contains only attempts, is then used.
 */
function triesOf({ tries, history }: WebhookDelivery): number {
  return Math.min(tries, history.length)
}

function fieldsOf(outcome: DeliveryOutcome): object {
  if (outcome.state !== 'pending') return outcome
  const { retryInMs, ...rest } = outcome
  return { ...rest, retry_in_ms: Math.round(retryInMs) }
}

/**
 * Returns the body of a message (docs/guides/webhooks.md, What arrives). The body is equal in every attempt, because it has the status that the event
 * reports instead of the job's current status.
 */
function messageOf({ id, type, created_at_ms }: WebhookDelivery, data: unknown): string {
  return JSON.stringify({ id, object: 'event', type, created_at: Math.floor(created_at_ms / 1_000), data })
}

/**
 * Returns the headers of one attempt, according to Standard Webhooks 1.0.
 *
 * The signature is `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`. There is one signature per key, separated by spaces, so that a key
 * can be rotated without rejected messages.
 *
 * @param nowMs Time of this attempt. Receivers reject messages older than five minutes.
 */
function signedHeaders(id: string, body: string, keys: readonly Buffer[], nowMs: number): Record<string, string> {
  const timestamp = String(Math.floor(nowMs / 1_000))
  const sign = (key: Buffer) => createHmac('sha256', key).update(`${id}.${timestamp}.${body}`).digest('base64')
  return {
    'content-type': 'application/json',
    'webhook-id': id,
    'webhook-timestamp': timestamp,
    'webhook-signature': keys.map((key) => `v1,${sign(key)}`).join(' '),
  }
}

/** Job status that an event reports. Events are named after this status, except `job.started`. */
function statusOf(type: WebhookDelivery['type']): string {
  return type === 'job.started' ? 'in_progress' : type.replace(/^job\./, '')
}

/**
 * Returns the outcome of an attempt. A 2xx status means delivered. A 410 means failed, because this status ends the deliveries. After any other
 * answer or error, the next attempt follows after a delay. If all delays are used up, then the message has failed.
 *
 * @param result The answer, or the error if there is no answer.
 * @param tries Attempts of the message, including this one.
 * @param random In [0, 1).
 */
export function outcomeOf(
  result: OutboundAnswer | ServiceError,
  tries: number,
  waitsMs: readonly number[],
  random: number,
): DeliveryOutcome {
  const status = result instanceof ServiceError ? undefined : result.status
  if (status !== undefined && status >= 200 && status < 300) return { state: 'delivered', status }
  const error = result instanceof ServiceError ? result.message : `The receiver responded with status ${result.status}.`
  const failure = { error, ...(status !== undefined && { status }) }
  const waitMs = waitsMs[tries - 1]
  if (waitMs === undefined || status === GONE) return { state: 'failed', ...failure }
  const jittered = waitMs * (1 - JITTER + 2 * JITTER * random)
  return { state: 'pending', retryInMs: Math.max(jittered, askedMs(result)), ...failure }
}

/**
 * Returns the delay in ms that the receiver requests: `Retry-After` in seconds or as an HTTP date (RFC 9110 §10.2.3). 0 if there is none to honour.
 */
function askedMs(result: OutboundAnswer | ServiceError): number {
  if (result instanceof ServiceError || !BUSY.has(result.status)) return 0
  const value = result.headers['retry-after'] ?? ''
  const seconds = Number(value)
  const ms = Number.isFinite(seconds) ? seconds * SECOND_MS : Date.parse(value) - Date.now()
  return Number.isFinite(ms) ? Math.min(Math.max(ms, 0), RETRY_AFTER_MS_MAX) : 0
}
