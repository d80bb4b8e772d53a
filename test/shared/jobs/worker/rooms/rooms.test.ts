import fc from 'fast-check'
import { expect, test } from 'vitest'
import { type ModelRoom, ModelRooms } from '#shared/jobs/worker/rooms/rooms.ts'

const models = ['a', 'b', 'c', 'd', 'e']
const roomOf = (rooms: ModelRooms, model: string) => rooms.of({ kind: 'say', model })

/** Takes as many slots for a model as it may, one after the other. @returns What is left */
function fill(rooms: ModelRooms, room: ModelRoom, free: number): number {
  let left = free
  while (rooms.shareOf(room, left) > 0) {
    room.enter(undefined)
    left--
  }
  return left
}

test.each([
  [1, [1], 0],
  [2, [1, 1], 0],
  [4, [3, 1], 0],
  [8, [6, 1, 1], 0],
  [256, [192, 48, 12, 3, 1], 0],
])('of %i slots models that hang one after the other hold %j', (slots, held, left) => {
  const rooms = new ModelRooms({ models, modelCount: 5 })
  let free: number = slots
  for (const model of models.slice(0, held.length)) free = fill(rooms, roomOf(rooms, model), free)
  expect(models.slice(0, held.length).map((model) => roomOf(rooms, model).held)).toEqual(held)
  expect(free).toBe(left)
})

test('a worker of one model gives it every slot', () => {
  const rooms = new ModelRooms({ models: ['a'] })
  expect(rooms.shareOf(roomOf(rooms, 'a'), 4)).toBe(4)
})

test('two models that both have some share all slots, and none takes more than half while the other could', () => {
  const rooms = new ModelRooms({ models: ['a', 'b'], modelCount: 2 })
  const [a, b] = [roomOf(rooms, 'a'), roomOf(rooms, 'b')]
  a.enter(undefined, 2)
  expect(fill(rooms, b, 6)).toBe(2)
  expect(b.held).toBe(4)
  expect(fill(rooms, a, 2)).toBe(0)
  a.leave(undefined, 1)
  expect([rooms.shareOf(a, 1), rooms.shareOf(b, 1)]).toEqual([1, 0])
})

test('slots that no other model could fill are kept for none', () => {
  const bounds = [{ kind: 'say', model: 'a', capacity: 2 }]
  const rooms = new ModelRooms({ models: ['a', 'b'], bounds, modelCount: 2 })
  const [a, b] = [roomOf(rooms, 'a'), roomOf(rooms, 'b')]
  a.enter(undefined, 2)
  expect(fill(rooms, b, 6)).toBe(0)
  a.leave(undefined, 1)
  expect([rooms.shareOf(a, 1), rooms.shareOf(b, 1)]).toEqual([1, 0])
})

test('the last free slot is only ever taken by a model that has none, or when each has one', () => {
  const step = fc.record({
    model: fc.constantFrom(...models),
    count: fc.integer({ min: 1, max: 9 }),
    ends: fc.boolean(),
  })
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 300 }), fc.array(step, { maxLength: 200 }), (slots, steps) => {
      const rooms = new ModelRooms({ models, modelCount: 5 })
      let free: number = slots
      for (const { model, count, ends } of steps) {
        const room = roomOf(rooms, model)
        const before = room.held
        if (ends) {
          const left = Math.min(count, before)
          room.leave(undefined, left)
          free += left
          continue
        }
        const taken = Math.min(count, rooms.shareOf(room, free))
        room.enter(undefined, taken)
        free -= taken
        expect(free).toBeGreaterThanOrEqual(0)
        const doAllHold = models.every((name) => roomOf(rooms, name).held > 0)
        if (taken > 0 && room.held > 1 && !doAllHold) expect(free * 3).toBeGreaterThanOrEqual(room.held)
        if (before === 0 && taken === 0) expect(free).toBe(0)
      }
    }),
  )
})

test('attached calls have half of the places of a model that durable jobs fill, and all where there are none', () => {
  const bounds = [{ kind: 'say', model: 'a', capacity: 4 }]
  const room = roomOf(new ModelRooms({ models, bounds }), 'a')
  const attached = () => {
    let count = 0
    for (; room.hasPlace; count++) room.enter(undefined)
    room.leave(undefined, count)
    return count
  }
  expect(attached()).toBe(4)
  room.enter('normal', 1)
  expect(attached()).toBe(3)
  room.enter('low', 4)
  expect(attached()).toBe(2)
})

test('a model has as many places as its servers bear now, at least one, and others are told', () => {
  let places: number | undefined
  const bounds = [{ kind: 'say', model: 'a', capacity: 64, now: () => places }]
  const rooms = new ModelRooms({ slots: 8, models: ['a'], bounds })
  const told = () => rooms.tell()?.bounds.map(({ capacity }) => capacity)
  expect(told()).toEqual([])
  places = 5
  expect(rooms.hasNews).toBe(true)
  expect(told()).toEqual([5])
  expect(rooms.hasNews).toBe(false)
  places = 0
  expect(told()).toEqual([1])
  const room = roomOf(rooms, 'a')
  room.enter(undefined)
  expect(room.hasPlace).toBe(false)
  places = 2
  expect(room.hasPlace).toBe(true)
})

test('a worker whose models change knows the new ones, and counts what runs of the old ones', () => {
  const rooms = new ModelRooms({ slots: 4, models: ['a'], bounds: [{ kind: 'say', model: 'a', capacity: 1 }] })
  roomOf(rooms, 'a').enter(undefined)
  rooms.change({ models: ['b', 'c'], bounds: [{ kind: 'say', model: 'b', capacity: 2 }], modelCount: 2 })
  expect([rooms.knows('a'), rooms.knows('b')]).toEqual([false, true])
  expect(rooms.tell()).toEqual({ models: ['b', 'c'], bounds: [{ kind: 'say', model: 'b', capacity: 2 }], waiting: [] })
  expect(roomOf(rooms, 'a').held).toBe(1)
})

test('that jobs told to wait wait no more is news, which is told once', () => {
  const rooms = new ModelRooms({ slots: 4, models: ['a'] })
  const room = roomOf(rooms, 'a')
  room.wait('normal')
  expect(rooms.tell()?.waiting).toEqual([{ kind: 'say', model: 'a', priority: 'normal' }])
  room.beginPull('normal')
  expect(rooms.hasNews).toBe(false)
  room.endPull('normal', false)
  expect(rooms.hasNews).toBe(true)
  expect(rooms.tell()?.waiting).toEqual([])
  expect(rooms.hasNews).toBe(false)
})
