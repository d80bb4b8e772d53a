import { describe, expect, it } from 'vitest'
import type { WebhookDelivery } from '#schemas/durable-job.ts'
import { DeliveryQueue, type Taken } from '#services/scheduler/delivery-queue.ts'

let count = 0

function taken(tenant: string, host: string): Taken {
  const delivery = { id: `evt_${count++}`, tenant } as WebhookDelivery
  return { delivery, host, takenAt: 0 }
}

function added(queue: DeliveryQueue, number: number, tenant: string, host: string): Taken[] {
  const all = Array.from({ length: number }, () => taken(tenant, host))
  return all.filter((one) => queue.add(one) !== one)
}

/** Takes all deliveries from the queue that its limits permit to send now. */
function sendable(queue: DeliveryQueue): Taken[] {
  const all: Taken[] = []
  for (let one = queue.next(); one; one = queue.next()) all.push(one)
  return all
}

const of = (all: readonly Taken[], name: string) =>
  all.filter(({ delivery, host }) => delivery.tenant === name || host === name).length

describe('the queue of webhook deliveries', () => {
  it('has at most four deliveries to one host in flight, sixteen of one tenant and thirty-two in total', () => {
    const queue = new DeliveryQueue()
    added(queue, 10, 'a', 'a.example')
    expect(sendable(queue)).toHaveLength(4)
    for (let i = 0; i < 10; i++) added(queue, 10, 'a', `a${i}.example`)
    expect(sendable(queue)).toHaveLength(12)
    for (let i = 0; i < 10; i++) for (const tenant of ['b', 'c']) added(queue, 10, tenant, `${tenant}${i}.example`)
    const rest = sendable(queue)
    expect([rest.length, of(rest, 'b'), of(rest, 'c')]).toEqual([16, 8, 8])
  })

  it('sends the next delivery to a host for each released permit, in order of arrival', () => {
    const queue = new DeliveryQueue()
    const all = added(queue, 10, 'a', 'a.example')
    const sent = sendable(queue)
    while (sent.length < 10) {
      queue.release(sent.at(-4) as Taken, 5)
      sent.push(...sendable(queue))
    }
    expect(sent).toEqual(all)
  })

  it('alternates between two tenants that use the same host', () => {
    const queue = new DeliveryQueue()
    added(queue, 400, 'a', 'shared.example')
    added(queue, 3, 'b', 'shared.example')
    const sent = sendable(queue)
    expect([of(sent, 'a'), of(sent, 'b')]).toEqual([2, 2])
  })

  it('limits the queued deliveries to a slow host, and delays further deliveries by increasing times', () => {
    const queue = new DeliveryQueue()
    added(queue, 4, 'a', 'slow.example')
    for (const one of sendable(queue)) {
      added(queue, 1, 'a', 'slow.example')
      for (let i = 0; i < 10; i++) {
        queue.release(one, 15_000)
        queue.next()
      }
    }
    expect(added(queue, 100, 'a', 'slow.example').length).toBeLessThan(10)
    const delays = Array.from({ length: 200 }, () => queue.delayMs(taken('a', 'slow.example'), 0.5, 0))
    expect(delays.slice(0, 20)).toEqual(delays.slice(0, 20).toSorted((a, b) => a - b))
    expect((delays[10] ?? 0) - (delays[9] ?? 0)).toBeCloseTo(15_000 / 4, -3)
    expect(Math.max(...delays)).toBeLessThanOrEqual(300_000)
    expect(added(queue, 100, 'a', 'quick.example')).toHaveLength(100)
  })

  it('if full, drops a delivery of the tenant with the most queued deliveries', () => {
    const queue = new DeliveryQueue()
    for (let i = 0; i < 8; i++) added(queue, 400, 'a', `a${i}.example`)
    const other = taken('b', 'b.example')
    expect(queue.add(other)?.delivery.tenant).toBe('a')
    expect(sendable(queue)).toContain(other)
  })

  it('is empty after clear()', () => {
    const queue = new DeliveryQueue()
    const all = [...added(queue, 3, 'a', 'a.example'), ...added(queue, 3, 'b', 'b.example')]
    expect(new Set(queue.clear())).toEqual(new Set(all))
    expect(queue.next()).toBeUndefined()
  })
})
