/** Tests that workers in different processes divide the concurrency limit of a server among them. */
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { Broker } from '#shared/broker/broker.ts'
import { AdaptiveLimit } from '#shared/capacity/adaptive-limit.ts'
import { UpstreamFleet } from '#shared/engines/upstream/limit-partition.ts'
import { Worker } from '#shared/jobs/worker/worker.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { openBroker, sayKind, silentLog } from '../../../support/jobs/jobs.ts'
import { until } from '../../../support/stack.ts'

/** A simulated process: a worker, and its part of the limit for the server of the model `m`. */
interface Process {
  readonly worker: Worker
  readonly limit: AdaptiveLimit
  readonly upstreams: UpstreamFleet
}

let broker: Broker
let processes: Process[]
beforeEach(async () => {
  broker = await openBroker()
  processes = []
})
afterEach(async () => {
  for (const { worker } of processes) await worker.close()
  await broker.close()
})

async function openProcess(concurrency: number, models = ['m']): Promise<Process> {
  const upstreams = new UpstreamFleet()
  const share = upstreams.open({ id: 'm', pool: 'inference' })
  const limit = new AdaptiveLimit(concurrency, undefined, share)
  share.use([limit], () => {})
  const concurrencyLimits = [{ kind: 'say', model: 'm', capacity: concurrency, currentLimit: () => limit.permits }]
  const kinds = { say: { ...sayKind, parse: (body: unknown) => body, async *run() {} } }
  const worker = await Worker.open(
    { name: 'inference', slots: 16, kinds, models, concurrencyLimits },
    {
      ...{ broker, blobs: memoryBlobs(), log: silentLog, version: 'test', observer: { onEnd: () => {} }, upstreams },
      ...{ store: undefined, leaseMs: 9_000, bodyBudgetBytes: 1024 * 1024 },
      onFatal: (error) => {
        throw error
      },
    },
  )
  const process = { worker, limit, upstreams }
  processes.push(process)
  return process
}

const places = () => processes.map(({ limit }) => limit.permits)
const sum = () => places().reduce((total, one) => total + one, 0)

test("workers that serve a model divide the model's limit equally, even after a worker joins or leaves", async () => {
  await openProcess(8)
  await until(() => sum() === 8)
  await openProcess(8)
  await until(() => places().join() === '4,4')
  await openProcess(8, ['other'])
  await openProcess(8)
  const knowing = () => [0, 1, 3].map((nth) => places()[nth] ?? 0)
  await until(() => knowing().toSorted().join() === '2,3,3')
  const [first] = processes.splice(0, 1)
  await first?.worker.close()
  await until(() => [0, 2].every((nth) => places()[nth] === 4))
})

test('a model limit of two calls leaves one of three workers without a permit', async () => {
  for (let nth = 0; nth < 3; nth++) await openProcess(2)
  await until(() => places().toSorted().join() === '0,1,1')
})

test('an overload response to one worker reduces the limit of all workers', async () => {
  for (let nth = 0; nth < 2; nth++) await openProcess(16)
  await until(() => places().join() === '8,8')
  const { limit, worker } = processes[0] as Process
  const calls = Array.from({ length: 8 }, () => limit.begin(true))
  await until(() => performance.now() > (calls[0]?.startedAtMs ?? 0) + 5)
  for (const call of calls) limit.overloaded(call)
  for (const call of calls) limit.end(call)
  worker.presence.publishCapacity()
  await until(() => places().join() === '4,4')
})

test('the exported limit of a server without a configured limit does not exceed the slots of the worker', async () => {
  const { upstreams, limit } = await openProcess(8_192)
  const exported = new Map<string, number[]>()
  upstreams.showIn({
    rows: async (name, read) =>
      void exported.set(
        name,
        [...(await read())].map(([, value]) => value),
      ),
  })
  expect(limit.permits).toBe(8_192)
  await until(() => exported.has('sluice_server_concurrency_limit'))
  expect(exported.get('sluice_server_concurrency_limit')).toEqual([16])
})
