import { setImmediate as turn } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { openTickThrottle } from '#shared/lib/yielding.ts'

/** Work identified by its number. */
function open() {
  const places = openTickThrottle()
  const begun: number[] = []
  const add = (nth: number) => {
    const place = places()
    if (place) void place.then(() => begun.push(nth))
    else begun.push(nth)
  }
  return { begun, add }
}

it('the yielding throttle starts the first 8 tasks at once and later ones 8 per tick, in order', async () => {
  const { begun, add } = open()
  for (let nth = 0; nth < 20; nth++) add(nth)
  expect(begun).toEqual([0, 1, 2, 3, 4, 5, 6, 7])
  await turn()
  expect(begun).toHaveLength(16)
  // Arrived after the waiting ones.
  add(20)
  expect(begun).toHaveLength(16)
  await turn()
  expect(begun).toEqual(Array.from({ length: 21 }, (_, nth) => nth))
  await turn()
  add(21)
  expect(begun.at(-1)).toBe(21)
})

it('the yielding throttle queues at most 1,000 tasks, and starts any further task at once', () => {
  const { begun, add } = open()
  for (let nth = 0; nth < 5_000; nth++) add(nth)
  expect(begun).toHaveLength(4_000)
  expect(begun.slice(0, 9)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 1_008])
})
