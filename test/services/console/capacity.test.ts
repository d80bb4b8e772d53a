import { expect, it } from 'vitest'
import { cachedStats, capacityOf } from '#services/console/screens/models/capacity.ts'

type Worker = Parameters<typeof capacityOf>[2][number]

const worker = (id: string, more: Partial<Worker> = {}): Worker => ({
  ...{
    id,
    object: 'worker',
    role: 'inference',
    version: '1',
    slots: 8,
    capacity: 8,
    running: 0,
    draining: false,
    suspected: false,
  },
  ...{
    parked_calls: 0,
    host: 'a',
    pid: 1,
    last_seen_at: 1,
    models: ['m', 'other'],
    concurrency_limits: [],
    backlog: [],
    adaptive_limits: [],
    open_circuits: [],
  },
  ...more,
})

it('the capacity of a model is the sum of its limits on all workers, or of all slots for workers without a limit', () => {
  const bounds = [
    { kind: 'generate', model: 'm', capacity: 3 },
    { kind: 'count_tokens', model: 'm', capacity: 2 },
    { kind: 'generate', model: 'other', capacity: 1 },
  ]
  const capacity = capacityOf('m', 'inference', [
    worker('wrk_1', { concurrency_limits: bounds }),
    worker('wrk_2', { models: null }),
  ])
  expect(capacity).toMatchObject({ workers: 2, concurrency: 3 + 8, slots: 16 })
})

it('the capacity of a model excludes suspected and drained workers, other pools and other models', () => {
  const others = [{ suspected: true }, { draining: true }, { role: 'code' }, { models: ['other'] }]
  const all = others.map((more, nth) => worker(`wrk_${nth}`, more))
  expect(capacityOf('m', 'inference', all)).toEqual({ workers: 0, concurrency: 0, slots: 0, limits: [] })
})

it('the console shows the share of cached prompt tokens of a model and of each server', () => {
  const server = { server: 0, host: 'a:1', weight: 1, input_tokens: 100, cached_tokens: 76, cached_share: 0.76 }
  const unused = { ...server, server: 1, input_tokens: 0, cached_tokens: 0, cached_share: null }
  const model = { id: 'm', object: 'model.state', pool: 'inference', affinity: 'auto' } as const
  expect(cachedStats({ ...model, ...server, servers: [server, unused] })).toEqual([
    ['Cached prompt tokens', '76 %'],
    ['Cached on server 1', '76 %'],
    ['Cached on server 2', '–'],
  ])
  expect(cachedStats({ ...model, ...server, servers: [server] })).toHaveLength(1)
  expect(cachedStats({ ...model, ...unused, servers: [unused] })).toEqual([])
})

it('the capacity of a model includes the newest adaptive limit of each server of the model', () => {
  const old = { model: 'm', server: 0, generation: 2, limit: 40 }
  const found = [
    { ...old, server: 1, limit: 9 },
    { ...old, generation: 3, limit: 20 },
    { ...old, model: 'other' },
  ]
  const { limits } = capacityOf('m', 'inference', [
    worker('wrk_1', { adaptive_limits: [old] }),
    worker('wrk_2', { adaptive_limits: found }),
  ])
  expect(limits.map(({ server, limit }) => [server, limit])).toEqual([
    [0, 20],
    [1, 9],
  ])
})
