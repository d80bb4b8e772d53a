import type { IncomingMessage, ServerResponse } from 'node:http'
import { setImmediate as turn } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { Arrivals } from '#services/ingress/arrivals.ts'

/** A request that is known by its number, as far as arrivals look at it. */
function request(nth: number) {
  return [{ nth } as unknown as IncomingMessage, { destroyed: false } as ServerResponse] as const
}

function open() {
  const begun: number[] = []
  return { begun, arrivals: new Arrivals((req) => void begun.push((req as unknown as { nth: number }).nth)) }
}

it('begins a request at once while few come together, and the others a few in each turn, in their order', async () => {
  const { begun, arrivals } = open()
  for (let nth = 0; nth < 20; nth++) arrivals.add(...request(nth))
  expect(begun).toEqual([0, 1, 2, 3, 4, 5, 6, 7])
  await turn()
  expect(begun).toHaveLength(16)
  // It came later than those that wait.
  arrivals.add(...request(20))
  expect(begun).toHaveLength(16)
  await turn()
  expect(begun).toEqual(Array.from({ length: 21 }, (_, nth) => nth))
  await turn()
  arrivals.add(...request(21))
  expect(begun.at(-1)).toBe(21)
})

it('lets no more than a thousand wait, and begins what comes beyond them at once', () => {
  const { begun, arrivals } = open()
  for (let nth = 0; nth < 5_000; nth++) arrivals.add(...request(nth))
  expect(begun).toHaveLength(4_000)
  expect(begun.slice(0, 9)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 1_008])
})

it('begins none whose caller has left while it waited', async () => {
  const { begun, arrivals } = open()
  const left = request(8)
  for (let nth = 0; nth < 8; nth++) arrivals.add(...request(nth))
  arrivals.add(...left)
  arrivals.add(...request(9))
  left[1].destroyed = true
  await turn()
  expect(begun).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 9])
})
