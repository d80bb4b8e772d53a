import { expect, it } from 'vitest'
import { Semaphore } from '#shared/capacity/semaphore.ts'
import { ServiceError } from '#shared/lib/error.ts'

const never = new AbortController().signal
const refusal = () => new ServiceError('overloaded', 'Too many wait.')
const settled = () => new Promise((resolve) => setImmediate(resolve))

/** Opens a semaphore. Also records the keys in the order in which they got their permits. */
function open(options: { permits: number; permitsPerKey?: number; waitingPerKeyMax?: number }) {
  const semaphore = new Semaphore({ waitingPerKeyMax: 1_000, refusal, ...options })
  const granted: string[] = []
  const take = (key: string, signal = never) => semaphore.take(signal, 1, key).then(() => void granted.push(key))
  return { semaphore, granted, take }
}

it('a fair semaphore grants permits to keys round robin, however many callers each key has', async () => {
  const { semaphore, granted, take } = open({ permits: 1 })
  for (let nth = 0; nth < 200; nth++) void take('many')
  void take('few')
  void take('other')
  for (let nth = 1; nth < 5; nth++) {
    await settled()
    semaphore.release(1, granted.at(-1) ?? '')
  }
  await settled()
  expect(granted).toEqual(['many', 'many', 'few', 'other', 'many'])
})

it('a fair semaphore grants a key at most its own maximum of permits, even if no other key waits', async () => {
  const { semaphore, granted, take } = open({ permits: 3, permitsPerKey: 2 })
  for (let nth = 0; nth < 5; nth++) void take('many')
  await settled()
  expect(granted).toEqual(['many', 'many'])
  await take('other')
  void take('third')
  await settled()
  expect(granted).toEqual(['many', 'many', 'other'])
  semaphore.release(1, 'other')
  await settled()
  expect(granted.at(-1)).toBe('third')
})

it('a fair semaphore refuses callers of a key whose queue is full, and accepts callers of other keys', async () => {
  const { granted, semaphore, take } = open({ permits: 1, waitingPerKeyMax: 2 })
  for (let nth = 0; nth < 3; nth++) void take('many')
  await expect(take('many')).rejects.toMatchObject({ code: 'overloaded' })
  void take('other')
  semaphore.release(1, 'many')
  semaphore.release(1, 'many')
  await settled()
  expect(granted).toContain('other')
})

it('a fair semaphore grants a permit to the next caller if the chosen caller disconnects', async () => {
  const { semaphore, granted, take } = open({ permits: 1 })
  const [waiting, late] = [new AbortController(), new AbortController()]
  await take('a')
  const left = [take('b', waiting.signal), take('c', late.signal)]
  void take('d')
  waiting.abort(new Error('disconnected'))
  await expect(left[0]).rejects.toThrow('disconnected')
  // Caller c disconnects in the same event-loop iteration in which it gets the permit, so the permit must pass to the next caller, d.
  late.abort(new Error('disconnected'))
  semaphore.release(1, 'a')
  await Promise.allSettled(left)
  await settled()
  expect(granted.at(-1)).toBe('d')
})

it('a semaphore loses no permit if a waiting caller disconnects', async () => {
  const slots = new Semaphore({ permits: 1 })
  await slots.take(never)
  const leaving = new AbortController()
  const order: string[] = []
  const left = slots.take(leaving.signal)
  const waiting = slots.take(never).then(() => order.push('waited'))
  leaving.abort(new Error('disconnected'))
  await expect(left).rejects.toThrow('disconnected')
  expect([order, slots.taken]).toEqual([[], 1])
  slots.release()
  await waiting
  slots.release()
  expect(slots.taken).toBe(0)
})

it('a request for 20 permits of a semaphore with 10 waits until all permits are free, and then runs alone', async () => {
  const slots = new Semaphore({ permits: 10 })
  await slots.take(never, 4)
  const order: string[] = []
  const large = slots.take(never, 20).then(() => order.push('large'))
  const small = slots.take(never, 1).then(() => order.push('small'))
  await new Promise(setImmediate)
  expect(order).toEqual([])
  slots.release(4)
  await large
  expect([order, slots.taken]).toEqual([['large'], 20])
  slots.release(20)
  await small
  expect([order, slots.taken]).toEqual([['large', 'small'], 1])
})
