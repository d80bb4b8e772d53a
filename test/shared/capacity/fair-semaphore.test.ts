import { expect, it } from 'vitest'
import { FairSemaphore } from '#shared/capacity/semaphore.ts'
import { ServiceError } from '#shared/lib/error.ts'

const never = new AbortController().signal
const refusal = () => new ServiceError('overloaded', 'Too many wait.')
const settled = () => new Promise((resolve) => setImmediate(resolve))

/** A semaphore, and the keys in the order of their permits. */
function open(options: { permits: number; permitsPerKey?: number; waitingPerKeyMax?: number }) {
  const semaphore = new FairSemaphore({ waitingPerKeyMax: 1_000, refusal, ...options })
  const granted: string[] = []
  const take = (key: string, signal = never) => semaphore.take(key, signal).then(() => void granted.push(key))
  return { semaphore, granted, take }
}

it('a fair semaphore grants permits to keys round robin, however many callers each key has', async () => {
  const { semaphore, granted, take } = open({ permits: 1 })
  for (let nth = 0; nth < 200; nth++) void take('many')
  void take('few')
  void take('other')
  for (let nth = 1; nth < 5; nth++) {
    await settled()
    semaphore.release(granted.at(-1) ?? '')
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
  semaphore.release('other')
  await settled()
  expect(granted.at(-1)).toBe('third')
})

it('a fair semaphore refuses a key with a full queue with overloaded, and accepts other keys', async () => {
  const { granted, semaphore, take } = open({ permits: 1, waitingPerKeyMax: 2 })
  for (let nth = 0; nth < 3; nth++) void take('many')
  await expect(take('many')).rejects.toMatchObject({ code: 'overloaded' })
  void take('other')
  semaphore.release('many')
  semaphore.release('many')
  await settled()
  expect(granted).toContain('other')
})

it('a fair semaphore grants the permit of a disconnected caller to the next caller', async () => {
  const { semaphore, granted, take } = open({ permits: 1 })
  const [waiting, late] = [new AbortController(), new AbortController()]
  await take('a')
  const left = [take('b', waiting.signal), take('c', late.signal)]
  void take('d')
  waiting.abort(new Error('disconnected'))
  await expect(left[0]).rejects.toThrow('disconnected')
  // The permit is granted to c, which disconnects at that moment.
  late.abort(new Error('disconnected'))
  semaphore.release('a')
  await Promise.allSettled(left)
  await settled()
  expect(granted.at(-1)).toBe('d')
})
