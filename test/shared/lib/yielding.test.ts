import { setImmediate as turn } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { openTickThrottle, runYielding } from '#shared/lib/yielding.ts'

/** Opens a throttle. Each task is identified by a number, and records when it begins. */
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

it('the yielding throttle starts eight tasks at once, and then eight tasks per event-loop tick, in order', async () => {
  const { begun, add } = open()
  for (let nth = 0; nth < 20; nth++) add(nth)
  expect(begun).toEqual([0, 1, 2, 3, 4, 5, 6, 7])
  await turn()
  expect(begun).toHaveLength(16)
  // A new task must start after the tasks that already wait.
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

it('computations of two projects run slices in turn, however many computations each project has', async () => {
  const slices = { large: 0, small: 0 }
  function* work(project: keyof typeof slices) {
    for (let slice = 0; slice < 10; slice++) {
      const until = performance.now() + 3
      while (performance.now() < until);
      slices[project]++
      yield
    }
  }
  const large = Array.from({ length: 10 }, () => runYielding(work('large'), undefined, 'prj_large'))
  await runYielding(work('small'), undefined, 'prj_small')
  // Each computation runs its first slice at once. After that, the two projects run slices in turn, so the small computation ends early.
  expect(slices.small).toBe(10)
  expect(slices.large).toBeLessThanOrEqual(20)
  await Promise.all(large)
  expect(slices.large).toBe(100)
})
