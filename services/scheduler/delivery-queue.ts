import type { WebhookDelivery } from '#schemas/durable-job.ts'

/**
 * A fair queue of webhook messages in front of a semaphore with three limits: permits in all, per tenant and per host.
 *
 * Tenants take turns, and within a tenant its hosts. A message whose tenant or host has no permit left is passed over, so that a slow
 * receiver delays its own messages only.
 *
 * The queue of one host is bounded by time. A host of 4 permits that answers in 0.2 s may have 400 messages here, since they are sent
 * within 20 s. A host that never answers within 15 s may have 6.
 *
 * If the queue is full, then the tenant with the most messages loses the last message of its longest queue, as RFC 8290 does with packets.
 * A message without a place goes back to the store until about its turn. A backlog of 10,000 messages therefore costs few store writes per
 * sent message.
 */

const PERMITS = 32
const PERMITS_PER_TENANT = 16
const PERMITS_PER_HOST = 4

const WAITING_MAX = 2_048
const WAITING_PER_HOST_MAX = 512
/** Time within which the waiting messages of one host are expected to be sent. */
const WAITING_MS = 20_000

/** Assumed response time before the first answer, and the weight of each answer in the moving average. */
const ANSWER_MS_DEFAULT = 200
const ANSWER_WEIGHT = 0.2

/** Bounds of the time for which a message goes back to the store. */
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
  /** Moving average of the response time. */
  answerMs: number
  /** Expected time at which the last message that went back to the store finds a permit. */
  lastTurnAt: number
}

interface Tenant {
  sending: number
  waiting: number
  /** Queue of each host; the host of the next turn first. */
  readonly queues: Map<string, Taken[]>
}

export class DeliveryQueue {
  readonly #hosts = new Map<string, Host>()
  /** Tenants, the one of the next turn first. */
  readonly #tenants = new Map<string, Tenant>()
  #waiting = 0
  #sending = 0

  /** Adds a message to the queue of its host. @returns The message that has no place, this one or another */
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

  /** The next message to send, which holds a permit until {@link release}; undefined if none may be sent now. */
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

  /** Releases the permit of a message. @param answerMs Duration of the request; undefined if nothing was sent */
  release(taken: Taken, answerMs?: number): void {
    const host = this.#hostOf(taken.host)
    if (answerMs !== undefined) host.answerMs += ANSWER_WEIGHT * (Math.max(1, answerMs) - host.answerMs)
    host.sending--
    this.#tenantOf(taken).sending--
    this.#sending--
    this.#forgetIdle(taken)
  }

  /** Time until a message without a place is expected to find a permit. @param random In [0, 1) */
  delayMs(taken: Taken, random: number, now = performance.now()): number {
    const host = this.#hostOf(taken.host)
    const stepMs = host.answerMs / PERMITS_PER_HOST
    // Half of the queue's time, so that the message arrives before the queue is empty.
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

  /** Removes the last message of the longest queue of the tenant with the most messages. */
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
