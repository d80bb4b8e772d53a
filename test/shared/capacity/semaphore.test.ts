import { expect, test } from 'vitest'
import { Slots } from '#shared/capacity/semaphore.ts'

const never = new AbortController().signal

test('slots are granted in order of arrival, and none is lost if a waiting caller disconnects', async () => {
  const slots = new Slots(1)
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

test('a request for more slots than exist runs alone, and later requests wait until it has ended', async () => {
  const slots = new Slots(10)
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
