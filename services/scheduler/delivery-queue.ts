import type { WebhookDelivery } from '#schemas/durable-job.ts'

/**
 * A fair queue of webhook messages in front of a semaphore with three limits: permits in all, per tenant and per host.
 *
 * Tenants are served round robin, and within a tenant its hosts. A message whose tenant or host has no permit left is skipped, so that a slow
 * receiver delays only its own messages.
 *
 * The queue of one host contains at most the messages that are expected to be sent within 20 s. A host with 4 permits that answers in 0.2 s may have
 * 400 messages in the queue. A host that exceeds the timeout of 15 s each time may have 6 messages in the queue.
 *
 * If the whole queue is full, then the tenant with the most messages loses the last message of its longest queue. RFC 8290 likewise drops packets of
 * the longest queue. A message that does not fit, or was removed, is returned to the store until shortly before it can be sent. A backlog of 10,000
 * messages therefore costs few store writes per sent message.
 */

const PERMITS = 32
const PERMITS_PER_TENANT = 16
const PERMITS_PER_HOST = 4

const WAITING_MAX = 2_048
const WAITING_PER_HOST_MAX = 512
const WAITING_MS = 20_000

/**
 * Assumed response time of a host before its first answer, in ms, and the weight of each answer in the moving average.
 */
const ANSWER_MS_DEFAULT = 200
const ANSWER_WEIGHT = 0.2

/** Minimum and maximum time in ms for which a message is returned to the store. */
const DELAY_MS_MIN = 250
const DELAY_MS_MAX = 300_000

export interface Taken {
  readonly delivery: WebhookDelivery
  readonly host: string
  readonly takenAt: number
}

interface Host {
  sending: number
  waiting: number
  answerMs: number
  /** Time at which the message that was last returned to the store is expected to be sent, by `performance.now()`. */
  lastTurnAt: number
}

interface Tenant {
  sending: number
  waiting: number
  /** Queue of each host, in the order in which the hosts are served. */
  readonly queues: Map<string, Taken[]>
}

export class DeliveryQueue {
  readonly #hosts = new Map<string, Host>()
  readonly #tenants = new Map<string, Tenant>()
  #waiting = 0
  #sending = 0

  /**
   * Adds a message to the queue of its host. If a queue is full, then one message does not fit: the new message, or the last message of the longest
   * queue.
   *
   * @returns The message that does not fit. Undefined if all fit
   */
  add(taken: Taken): Taken | undefined {
    const tenant = this.#tenantOf(taken)
    const host = this.#hostOf(taken.host)
    const queue = tenant.queues.get(taken.host) ?? []
    const lengthMax = Math.min(WAITING_PER_HOST_MAX, Math.ceil((WAITING_MS * PERMITS_PER_HOST) / host.answerMs))
    if (queue.length >= lengthMax) return taken
    tenant.queues.set(taken.host, queue)
    queue.push(taken)
    this.#count(tenant, host, 1)
    return this.#waiting > WAITING_MAX ? this.#evict() : undefined
  }

  /** Removes the next message to send, with a permit until {@link release}. Undefined if no message may be sent now. */
  next(): Taken | undefined {
    if (this.#sending >= PERMITS) return undefined
    for (const [name, tenant] of this.#tenants) {
      const taken = tenant.sending < PERMITS_PER_TENANT ? this.#nextOf(tenant) : undefined
      if (!taken) continue
      this.#tenants.delete(name)
      this.#tenants.set(name, tenant)
      return taken
    }
    return undefined
  }

  /** @param answerMs Duration of the request. Undefined if no request was sent */
  release(taken: Taken, answerMs?: number): void {
    const host = this.#hostOf(taken.host)
    if (answerMs !== undefined) host.answerMs += ANSWER_WEIGHT * (Math.max(1, answerMs) - host.answerMs)
    host.sending--
    this.#tenantOf(taken).sending--
    this.#sending--
    this.#forgetIdle(taken)
  }

  /**
   * Returns the time in ms after which a permit is expected to be free. A message that does not fit is returned to the store for this time.
   *
   * @param random In [0, 1)
   */
  delayMs(taken: Taken, random: number, now = performance.now()): number {
    const host = this.#hostOf(taken.host)
    const stepMs = host.answerMs / PERMITS_PER_HOST
    // The message returns at the time at which half of the host's waiting messages are expected to have been sent. The other half is then
    // still waiting, so the host never idles.
    host.lastTurnAt = Math.max(host.lastTurnAt, now + (host.waiting * stepMs) / 2) + stepMs
    const delayMs = host.lastTurnAt - now
    this.#forgetIdle(taken)
    return delayMs < DELAY_MS_MAX ? Math.max(DELAY_MS_MIN, delayMs) : (DELAY_MS_MAX * (1 + random)) / 2
  }

  clear(): Taken[] {
    const removed: Taken[] = []
    for (const tenant of this.#tenants.values()) {
      for (const name of [...tenant.queues.keys()])
        while (tenant.queues.has(name)) removed.push(this.#pop(tenant, name))
    }
    for (const taken of removed) this.#forgetIdle(taken)
    return removed
  }

  #nextOf(tenant: Tenant): Taken | undefined {
    for (const [name, queue] of tenant.queues) {
      const host = this.#hostOf(name)
      const taken = host.sending < PERMITS_PER_HOST ? queue.shift() : undefined
      if (!taken) continue
      tenant.queues.delete(name)
      if (queue.length > 0) tenant.queues.set(name, queue)
      this.#count(tenant, host, -1)
      tenant.sending++
      host.sending++
      this.#sending++
      return taken
    }
    return undefined
  }

  #evict(): Taken {
    const tenant = [...this.#tenants.values()].reduce((most, one) => (one.waiting > most.waiting ? one : most))
    const [name] = [...tenant.queues].reduce((longest, one) => (one[1].length > longest[1].length ? one : longest))
    return this.#pop(tenant, name)
  }

  #pop(tenant: Tenant, name: string): Taken {
    const queue = tenant.queues.get(name)
    const taken = queue?.pop()
    if (!taken) throw new Error('delivery queue of a host is empty, although its tenant was chosen')
    if (queue?.length === 0) tenant.queues.delete(name)
    this.#count(tenant, this.#hostOf(name), -1)
    return taken
  }

  #count(tenant: Tenant, host: Host, by: 1 | -1): void {
    tenant.waiting += by
    host.waiting += by
    this.#waiting += by
  }

  #tenantOf({ delivery }: Taken): Tenant {
    const tenant = this.#tenants.get(delivery.tenant) ?? { sending: 0, waiting: 0, queues: new Map() }
    if (!this.#tenants.has(delivery.tenant)) this.#tenants.set(delivery.tenant, tenant)
    return tenant
  }

  #hostOf(name: string): Host {
    const host = this.#hosts.get(name) ?? { sending: 0, waiting: 0, answerMs: ANSWER_MS_DEFAULT, lastTurnAt: 0 }
    this.#hosts.set(name, host)
    return host
  }

  #forgetIdle({ delivery, host: name }: Taken): void {
    const host = this.#hosts.get(name)
    if (host?.sending === 0 && host.waiting === 0) this.#hosts.delete(name)
    const tenant = this.#tenants.get(delivery.tenant)
    if (tenant?.sending === 0 && tenant.waiting === 0) this.#tenants.delete(delivery.tenant)
  }
}
