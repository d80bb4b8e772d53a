import { expect, it } from 'vitest'
import { capacityOf, modelLoads } from '#services/ingress/admin/fleet.ts'
import { Peers } from '#shared/jobs/peers.ts'

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

it('the capacity of a worker counts a model with aliases once, and excludes models outside the catalogue', () => {
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

/**
 * Simulates two workers that report their limits. `small` has a concurrency limit on each worker. The upstream server of `remote` has an
 * adaptive limit, for which the newest report (highest generation) counts.
 */
class TwoWorkers extends Peers {
  constructor() {
    super()
    for (const [nth, boot] of ['wrk_1', 'wrk_2'].entries()) {
      this.setAlive({ boot, role: 'inference', version: 'test', slots: 256, running: 0, draining: false })
      const server = (generation: number, limit: number) => ({ model: 'remote', server: 0, generation, limit })
      this.setCapacity(boot, {
        models: ['small', 'remote', 'echo'],
        concurrency_limits: [{ kind: 'generate', model: 'small', capacity: 2 }],
        backlog: [{ kind: 'generate', model: 'small', priority: 'normal' }],
        adaptive_limits: [server(nth + 1, nth === 0 ? 8 : 5)],
      })
    }
  }
}

it('the load of a model counts calls above the sum of the limits on all workers as queued', () => {
  const catalogue = [
    { id: 'small', pool: 'inference', engine: { type: 'llama' } },
    { id: 'remote', pool: 'inference', engine: { type: 'openai', base_url: 'http://127.0.0.1:1' } },
    { id: 'echo', pool: 'inference', engine: { type: 'echo' } },
    { id: 'other', pool: 'embeddings', engine: { type: 'local' } },
  ]
  const works = new Map([
    ['small', { model: 'small', running: 7, queued: 3, seconds: 1 }],
    ['remote', { model: 'remote', running: 5, queued: 0, seconds: 1 }],
  ])
  const fleetWork = () => ({ calls: { queued: 0, running: 0 }, models: works })
  const context = { models: { models: catalogue }, jobs: { presence: new TwoWorkers(), fleetWork } }
  expect(modelLoads(context as unknown as Parameters<typeof modelLoads>[0], 'inference')).toEqual([
    { id: 'small', limit: 4, running: 4, queued: 6, full: true },
    { id: 'remote', limit: 5, running: 5, queued: 0, full: false },
    { id: 'echo', limit: 512, running: 0, queued: 0, full: false },
  ])
})
