import { expect, it } from 'vitest'
import { capacityOf } from '#services/ingress/admin/fleet.ts'

const NAMES: Readonly<Record<string, string>> = { small: 'small', tiny: 'small', large: 'large', echo: 'echo' }
const idOf = (name: string) => NAMES[name]

const worker = (models: readonly string[] | undefined, bounds: Readonly<Record<string, number>> = {}) => ({
  slots: 256,
  capacity: { models: models && new Set(models), concurrencyLimits: new Map(Object.entries(bounds)), backlog: [] },
})

const of = (...[models, bounds]: Parameters<typeof worker>) => {
  const { slots, capacity } = worker(models, bounds)
  return capacityOf({ slots, capacity: { ...capacity, parkedCalls: 0, host: undefined, pid: undefined } }, idOf)
}

it('the capacity of a worker is the sum of the limits of its models', () => {
  expect(of(['small'], { 'generate small': 2, 'count_tokens small': 2 })).toBe(2)
  expect(of(['small', 'large'], { 'generate small': 2, 'generate large': 32 })).toBe(34)
})

it('the capacity of a worker counts a model with aliases once, and no model outside the catalogue', () => {
  expect(of(['small', 'tiny', 'word-list'], { 'generate small': 2 })).toBe(2)
})

it('the capacity of a worker is all slots if a model has no limit, or if the limits exceed the slots', () => {
  expect(of(['small', 'echo'], { 'generate small': 2 })).toBe(256)
  expect(of(['small', 'large'], { 'generate small': 200, 'generate large': 200 })).toBe(256)
})

it('the capacity of a worker is all slots if the worker has reported no models', () => {
  expect(of(undefined)).toBe(256)
  expect(of([])).toBe(256)
  expect(capacityOf({ slots: 4, capacity: undefined }, idOf)).toBe(4)
})
