import { DELIVERY_TRIES_MAX, type DeliveryTry, type WebhookDelivery } from '#schemas/durable-job.ts'
import { backoffMs } from '#shared/backoff.ts'
import { ServiceError } from '#shared/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Metrics } from '#shared/metrics.ts'
import type { OutboundPolicy, Resolve } from '#shared/outbound/guard.ts'
import { type OutboundAnswer, postOutbound } from '#shared/outbound/outbound.ts'
import { EVERY_TENANT, type StoreView } from '#shared/store/store.ts'
import type { DeliveryOutcome } from '#shared/store/webhooks.ts'
import { messageOf, signedHeaders } from './webhook-message.ts'
import { outcomeOf, RETRIES_MS, type Try } from './webhook-outcome.ts'
import type { SigningKeys } from './webhook-secret.ts'

/** Messages on their way at once, and of these of one tenant and to one host: slow receivers must not hold up the others. */
const AT_ONCE_MAX = 32
const PER_TENANT_MAX = 16
const PER_HOST_MAX = 4
const TIMEOUT_MS = 15_000
const ANSWER_BYTES_MAX = 64 * 1024
/** How long a message is ours: the try and its record. After that any scheduler takes it again. */
const LEASE_MS = 30_000
const BUSY = 'Waits for other messages of the same project or to the same host.'
/** Wait of a message that is put back: longer each time, so that a long queue for one host costs little. */
const PUT_BACK = { baseMs: 1_000, maxMs: 60_000 }

/** What {@link WebhookSender} needs. */
export interface WebhookOptions {
  readonly store: StoreView
  readonly log: Log
  readonly metrics: Metrics
  readonly version: string
  /** What signs the messages of each tenant; see `webhook-secret.ts`. */
  readonly keysOf: SigningKeys
  readonly policy: OutboundPolicy
  /** Waits between tries; default: those of docs/webhooks.md. */
  readonly retriesMs?: readonly number[]
  /** How host names are resolved; default: the system's way. */
  readonly resolve?: Resolve
}

/** What becomes of a message that was taken; `isBusy`: it is put back, untried. */
type Result = DeliveryOutcome & { readonly isBusy?: true }

/**
 * Delivers webhook messages, at least once each, those of one job in order (docs/webhooks.md).
 *
 * Any number of schedulers may do so: a message is taken under a lease, and a try that somebody else overtook is not
 * recorded.
 */
export class WebhookSender {
  readonly #options: WebhookOptions
  readonly #running = new Set<Promise<void>>()
  /** How many are on their way, by tenant and by host. */
  readonly #places = new Map<string, number>()
  readonly #cancelled = new AbortController()

  constructor(options: WebhookOptions) {
    this.#options = options
  }

  /**
   * Takes as many due messages as there is room for and starts to deliver them; waits for room first.
   *
   * @param stopped Ends that wait.
   * @returns Whether there may be more
   */
  async turn(stopped: AbortSignal): Promise<boolean> {
    if (this.#running.size >= AT_ONCE_MAX) await this.#room(stopped)
    const room = AT_ONCE_MAX - this.#running.size
    if (stopped.aborted || room === 0) return false
    const taken = await this.#options.store.takeDeliveries(room, LEASE_MS)
    for (const delivery of taken) this.#start(delivery)
    return taken.length === room
  }

  /** Waits for what is on its way; at `signal` interrupts it, to be tried again soon. */
  async drain(signal: AbortSignal): Promise<void> {
    const onAbort = () => this.#cancelled.abort()
    if (signal.aborted) onAbort()
    signal.addEventListener('abort', onAbort, { once: true })
    await Promise.all(this.#running)
    signal.removeEventListener('abort', onAbort)
  }

  async #room(stopped: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    const onStop = () => resolve()
    stopped.addEventListener('abort', onStop, { once: true })
    if (stopped.aborted) resolve()
    await Promise.race([promise, ...this.#running])
    stopped.removeEventListener('abort', onStop)
  }

  #start(delivery: WebhookDelivery): void {
    const running = this.#handle(delivery).catch((error: unknown) => {
      this.#options.log.warn({ err: error, delivery_id: delivery.id }, 'webhook not recorded; it is sent again')
    })
    this.#running.add(running)
    void running.then(() => this.#running.delete(running))
  }

  async #handle(delivery: WebhookDelivery): Promise<void> {
    const host = URL.parse(delivery.url)?.host ?? ''
    const [ofTenant, toHost] = [`of ${delivery.tenant}`, `to ${host}`]
    const isFull = this.#count(ofTenant) >= PER_TENANT_MAX || this.#count(toHost) >= PER_HOST_MAX
    if (isFull) return await this.#record(delivery, host, putBack(delivery, BUSY))
    for (const place of [ofTenant, toHost]) this.#places.set(place, this.#count(place) + 1)
    try {
      const [atMs, startedAt] = [Date.now(), performance.now()]
      const result = await this.#deliver(delivery)
      const { status = null, error = null } = { error: null, ...result }
      const one = { at_ms: atMs, duration_ms: Math.round(performance.now() - startedAt), status, error }
      await this.#record(delivery, host, result, one)
    } finally {
      for (const place of [ofTenant, toHost]) this.#leave(place)
    }
  }

  #count(place: string): number {
    return this.#places.get(place) ?? 0
  }

  #leave(place: string): void {
    const left = this.#count(place) - 1
    if (left > 0) this.#places.set(place, left)
    else this.#places.delete(place)
  }

  async #deliver(delivery: WebhookDelivery): Promise<Result> {
    const job = await this.#options.store.find(EVERY_TENANT, delivery.job_id)
    if (!job || job.erased_at_ms !== null) return { state: 'failed', error: 'The job is gone.' }
    const keys = await this.#keysOf(delivery)
    if (!keys) return putBack(delivery, 'The secret that signs it cannot be read now.')
    const answer = await this.#post(delivery, messageOf(delivery, job), keys)
    if (!answer) return { state: 'pending', retryInMs: 0, error: 'The try was interrupted.' }
    return outcomeOf(answer, tryOf(delivery), this.#options.retriesMs ?? RETRIES_MS, Math.random())
  }

  /** What signs the message; undefined while that cannot be read: nothing is sent that nobody could verify. */
  async #keysOf({ id, tenant }: WebhookDelivery): Promise<readonly Buffer[] | undefined> {
    try {
      return await this.#options.keysOf(tenant)
    } catch (error) {
      this.#options.log.warn({ err: error, delivery_id: id }, 'webhook secret not read; trying again')
      return undefined
    }
  }

  /** The answer, or why there is none; undefined when the try was interrupted. */
  async #post(
    { id, url }: WebhookDelivery,
    body: string,
    keys: readonly Buffer[],
  ): Promise<OutboundAnswer | ServiceError | undefined> {
    const { policy, version, resolve } = this.#options
    const { signal } = this.#cancelled
    const headers = { ...signedHeaders(id, body, keys, Date.now()), 'user-agent': `sluice/${version}` }
    const limits = { policy, timeoutMs: TIMEOUT_MS, bytesMax: ANSWER_BYTES_MAX }
    try {
      return await postOutbound(url, { headers, body, signal, ...limits, ...(resolve && { resolve }) })
    } catch (error) {
      if (signal.aborted) return undefined
      if (error instanceof ServiceError) return error
      throw error
    }
  }

  async #record(delivery: WebhookDelivery, host: string, result: Result, one?: DeliveryTry): Promise<void> {
    const { store, log, metrics } = this.#options
    const { isBusy, ...outcome } = result
    // What was put back was not sent.
    const history = one && !isBusy ? [...delivery.history, one].slice(-DELIVERY_TRIES_MAX) : undefined
    const isOurs = await store.recordDelivery(delivery.id, delivery.tries, outcome, history)
    if (isBusy || !isOurs) return
    metrics.webhooks.inc({ end: outcome.state === 'pending' ? 'retried' : outcome.state })
    // The URL itself may hold a secret.
    const fields = {
      delivery_id: delivery.id,
      job_id: delivery.job_id,
      host,
      tries: delivery.tries,
      ...fieldsOf(outcome),
    }
    if (outcome.state === 'delivered') log.debug(fields, 'webhook delivered')
    else log.info(fields, outcome.state === 'failed' ? 'webhook failed' : 'webhook not delivered; trying again')
  }
}

function putBack({ tries }: WebhookDelivery, error: string): Result {
  return { state: 'pending', retryInMs: backoffMs(tries, PUT_BACK, Math.random()), error, isBusy: true }
}

/** An outcome as the log has it. */
function fieldsOf(outcome: DeliveryOutcome): object {
  if (outcome.state !== 'pending') return outcome
  const { retryInMs, ...rest } = outcome
  return { ...rest, retry_in_ms: Math.round(retryInMs) }
}

/** Ages are told by the database's clock alone: it set the lease from the time of the taking. */
function tryOf({ tries, next_at_ms, created_at_ms }: WebhookDelivery): Try {
  return { tries, ageMs: next_at_ms - LEASE_MS - created_at_ms }
}
