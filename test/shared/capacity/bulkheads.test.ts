import fc from 'fast-check'
import { afterEach, expect, test, vi } from 'vitest'
import { type ModelBulkhead, ModelBulkheads } from '#shared/capacity/bulkheads.ts'
import { BORROWED_MS } from '#shared/capacity/slots.ts'

const models = ['a', 'b', 'c', 'd', 'e']
const roomOf = (rooms: ModelBulkheads, model: string) => rooms.of({ kind: 'say', model })

afterEach(() => {
  vi.useRealTimers()
})

/**
 * Takes slots for one model, one after the other, until the bulkheads refuse.
 * @returns Number of remaining slots of the worker; negative if extra slots were taken
 */
function fill(rooms: ModelBulkheads, room: ModelBulkhead, free: number): number {
  let left = free
  while (rooms.slotsFor(room, left) > 0) {
    room.begin(undefined)
    left--
  }
  return left
}

test.each([
  [1, [1, 1, 0]],
  [4, [4, 1, 0]],
  [8, [8, 1, 1, 0]],
  [256, [256, 48, 12, 3, 1]],
])('with %i slots, models that stop responding one after another occupy %j slots', (slots, held) => {
  vi.useFakeTimers({ toFake: ['performance'] })
  const rooms = new ModelBulkheads({ slots, models, modelCount: 5 })
  let free: number = slots
  for (const model of models.slice(0, held.length)) {
    free = fill(rooms, roomOf(rooms, model), free)
    vi.advanceTimersByTime(BORROWED_MS)
  }
  expect(models.slice(0, held.length).map((model) => roomOf(rooms, model).held)).toEqual(held)
})

test('a worker with one model lets that model use every slot, and adds no extra slots', () => {
  vi.useFakeTimers({ toFake: ['performance'] })
  const rooms = new ModelBulkheads({ slots: 4, models: ['a'] })
  expect(fill(rooms, roomOf(rooms, 'a'), 4)).toBe(0)
  vi.advanceTimersByTime(60_000)
  expect(rooms.extra(0)).toBe(0)
})

test('a worker whose slots one model occupies adds an extra slot for another model after a delay', () => {
  vi.useFakeTimers({ toFake: ['performance'] })
  const rooms = new ModelBulkheads({ slots: 8, models: ['a', 'b'], modelCount: 2 })
  const [a, b] = [roomOf(rooms, 'a'), roomOf(rooms, 'b')]
  expect(fill(rooms, a, 8)).toBe(0)
  vi.advanceTimersByTime(BORROWED_MS - 1)
  expect([rooms.slotsFor(a, 0), rooms.slotsFor(b, 0), rooms.extra(0)]).toEqual([0, 0, 0])
  vi.advanceTimersByTime(1)
  expect([rooms.slotsFor(a, 0), rooms.slotsFor(b, 0), rooms.extra(0)]).toEqual([0, 1, 1])
})

test('a worker adds no extra slots for two models that each occupy half of the slots', () => {
  vi.useFakeTimers({ toFake: ['performance'] })
  const rooms = new ModelBulkheads({ slots: 8, models: ['a', 'b'], modelCount: 2 })
  const [a, b] = [roomOf(rooms, 'a'), roomOf(rooms, 'b')]
  for (let i = 0; i < 4; i++) {
    a.begin(undefined)
    b.begin(undefined)
  }
  vi.advanceTimersByTime(60_000)
  expect([rooms.slotsFor(a, 0), rooms.slotsFor(b, 0)]).toEqual([0, 0])
})

test('extra slots are at most a quarter of the slots of a worker', () => {
  const step = fc.record({
    model: fc.constantFrom(...models),
    count: fc.integer({ min: 1, max: 9 }),
    does: fc.constantFrom('begin', 'begin', 'end', 'wait'),
  })
  vi.useFakeTimers({ toFake: ['performance'] })
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 300 }), fc.array(step, { maxLength: 200 }), (slots, steps) => {
      const rooms = new ModelBulkheads({ slots, models, modelCount: 5 })
      const ends = new Map(models.map((model) => [model, [] as (() => void)[]]))
      let free: number = slots
      for (const { model, count, does } of steps) {
        const [room, own] = [roomOf(rooms, model), ends.get(model) ?? []]
        if (does === 'wait') vi.advanceTimersByTime(100 * count)
        const ended = own.splice(0, does === 'end' ? count : 0)
        for (const end of ended) end()
        free += ended.length
        const taken = Math.min(does === 'begin' ? count : 0, rooms.slotsFor(room, free))
        expect(taken === 0 || free > 0 || room.held < slots / 2, 'extra slots only below an equal share').toBe(true)
        for (let i = 0; i < taken; i++) own.push(room.begin(undefined))
        free -= taken
        expect(free, 'free slots').toBeGreaterThanOrEqual(-Math.ceil(slots / 4))
        expect(rooms.slotsFor(room, Math.max(1, free)), 'slots for a single model').toBe(Math.max(1, free))
      }
    }),
  )
})

test("attached calls can use at least half of a model's slots, even if durable jobs need them all", () => {
  const bounds = [{ kind: 'say', model: 'a', capacity: 4 }]
  const room = roomOf(new ModelBulkheads({ models, concurrencyLimits: bounds }), 'a')
  const attached = () => {
    let count = 0
    for (; room.hasFreePermit; count++) room.enter(undefined)
    room.leave(undefined, count)
    return count
  }
  expect(attached()).toBe(4)
  room.enter('normal', 1)
  expect(attached()).toBe(3)
  room.enter('low', 4)
  expect(attached()).toBe(2)
})

test.each([
  [1, undefined, 1],
  [2, undefined, 1],
  [2, 0, 3],
  [8, undefined, 7],
  [8, 3, 5],
  [8, 20, 1],
])(
  'with %i slots and interactive_slots %s, at most %i jobs of low priority run while no other job runs',
  (capacity, interactive, most) => {
    const bounds = [{ kind: 'say', model: 'a', capacity, ...(interactive !== undefined && { interactive }) }]
    const room = roomOf(new ModelBulkheads({ models, concurrencyLimits: bounds }), 'a')
    expect(room.free('low')).toBe(most)
    room.enter('low', most)
    expect(room.free('low')).toBe(0)
    expect(room.hasFreePermit, 'a call need not wait for a job of low priority').toBe(true)
  },
)

test('the slots of a model follow the current limit of its upstream servers, but are at least one', () => {
  let places: number | undefined
  const bounds = [{ kind: 'say', model: 'a', capacity: 64, currentLimit: () => places }]
  const rooms = new ModelBulkheads({ slots: 8, models: ['a'], concurrencyLimits: bounds })
  const told = () => rooms.capacityToPublish()?.concurrency_limits.map(({ capacity }) => capacity)
  expect(told()).toEqual([])
  places = 5
  expect(rooms.isOutdated).toBe(true)
  expect(told()).toEqual([5])
  expect(rooms.isOutdated).toBe(false)
  places = 0
  expect(told()).toEqual([1])
  const room = roomOf(rooms, 'a')
  room.enter(undefined)
  expect(room.hasFreePermit).toBe(false)
  places = 2
  expect(room.hasFreePermit).toBe(true)
})

test('a worker counts the running jobs of a model even after the model was removed', () => {
  const rooms = new ModelBulkheads({
    slots: 4,
    models: ['a'],
    concurrencyLimits: [{ kind: 'say', model: 'a', capacity: 1 }],
  })
  roomOf(rooms, 'a').enter(undefined)
  rooms.change({ models: ['b', 'c'], concurrencyLimits: [{ kind: 'say', model: 'b', capacity: 2 }], modelCount: 2 })
  expect([rooms.hasModel('a'), rooms.hasModel('b')]).toEqual([false, true])
  expect(rooms.capacityToPublish()).toEqual({
    models: ['b', 'c'],
    concurrency_limits: [{ kind: 'say', model: 'b', capacity: 2 }],
    backlog: [],
  })
  expect(roomOf(rooms, 'a').held).toBe(1)
})

test('a worker with several models publishes the limit of each model, even if each may use all slots', () => {
  const bounds = ['a', 'b'].map((model) => ({ kind: 'say', model, capacity: 4 }))
  expect(
    new ModelBulkheads({ slots: 4, models: ['a', 'b'], concurrencyLimits: bounds, modelCount: 2 }).capacityToPublish()
      ?.concurrency_limits,
  ).toEqual(bounds)
  expect(
    new ModelBulkheads({ slots: 4, models: ['a'], concurrencyLimits: bounds.slice(0, 1) }).capacityToPublish()
      ?.concurrency_limits,
  ).toEqual([])
})

test("a worker publishes the end of a model's backlog once", () => {
  const rooms = new ModelBulkheads({ slots: 4, models: ['a'] })
  const room = roomOf(rooms, 'a')
  room.wait('normal')
  expect(rooms.capacityToPublish()?.backlog).toEqual([{ kind: 'say', model: 'a', priority: 'normal' }])
  room.beginPull('normal')
  expect(rooms.isOutdated).toBe(false)
  room.endPull('normal', false)
  expect(rooms.isOutdated).toBe(true)
  expect(rooms.capacityToPublish()?.backlog).toEqual([])
  expect(rooms.isOutdated).toBe(false)
})
