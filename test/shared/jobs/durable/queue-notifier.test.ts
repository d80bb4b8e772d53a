import { describe, expect, it } from 'vitest'
import type { ControlRecord } from '#schemas/event.ts'
import { type NotifierPresence, QueueNotifier } from '#shared/jobs/durable/dispatch.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import { until } from '../../../support/stack.ts'

const JOB = { pool: 'inference', kind: 'generate', model: 'echo-1', priority: 'normal' } as const
const LANE = { kind: 'generate', model: 'echo-1', priority: 'normal' } as const

/** Opens a notifier. One simulated worker reports free slots in its heartbeats. `sent` contains the records that the notifier sends. */
function channel(free: number, more: Partial<NotifierPresence> = {}) {
  const sent: ControlRecord[] = []
  const presence: NotifierPresence = {
    heartbeatMs: 500,
    silenceMs: 0,
    ingresses: () => 1,
    freeSlots: () => free,
    workersWithModel: () => [worker([])],
    workers: () => [worker([])],
    send: (record) => sent.push(record),
    ...more,
  }
  return { hints: new QueueNotifier(() => presence), sent }
}

function worker(waiting: NonNullable<Peer['capacity']>['backlog']): Peer {
  const capacity = {
    models: undefined,
    concurrencyLimits: new Map(),
    backlog: waiting,
    parkedCalls: 0,
    host: undefined,
    pid: undefined,
  }
  const more = { slots: 4, running: 0, draining: false, lastSeenMs: 0, isSuspected: false }
  return { boot: 'wrk_1', role: 'inference', version: 'test', capacity, heartbeatInterval: undefined, ...more }
}

/** Returns how many records the notifier would publish for `count` new jobs. */
function published(hints: QueueNotifier, count = 1_500): number {
  return Array.from({ length: count }, () => hints.mayPublish(JOB)).filter(Boolean).length
}

describe('a queue record for a new durable job', () => {
  it('is published only while free slots outnumber the records already published', () => {
    expect(published(channel(12).hints)).toBe(12)
    expect(published(channel(0).hints)).toBe(0)
    expect(published(channel(12, { ingresses: () => 3 }).hints)).toBe(4)
  })

  it('is published as soon as a job with a published record has ended, if the limit of records was reached', () => {
    const { hints } = channel(2)
    const ids = ['job_1', 'job_2', 'job_3', 'job_4']
    const asked = () => ids.map((id) => hints.mayPublish({ ...JOB, id })).filter(Boolean).length
    expect(asked()).toBe(2)
    for (const id of ['job_1', 'job_1', 'job_4']) hints.ended({ pool: 'inference', id })
    expect(asked()).toBe(1)
  })

  it('is not published while a worker reports waiting jobs of the same model and priority', () => {
    const { hints } = channel(12, { workers: () => [worker([LANE])] })
    expect(published(hints)).toBe(0)
    expect(hints.mayPublish({ ...JOB, priority: 'low' })).toBe(true)
  })

  it('is always published if the control channel is silent or no worker reports the model', () => {
    expect(published(channel(0, { silenceMs: 10_000 }).hints)).toBe(1_500)
    expect(published(channel(0, { workersWithModel: () => [] }).hints)).toBe(1_500)
    // The worker `untold` has published no capacity: its first heartbeat has not arrived, or its version is older and ignores
    // announcements. A queue record is therefore necessary, unless an announcement reaches another worker.
    const untold = { ...worker([]), capacity: undefined }
    expect(published(channel(0, { workersWithModel: () => [untold] }).hints)).toBe(1_500)
    expect(published(channel(0, { workersWithModel: () => [untold, worker([])] }).hints)).toBe(0)
  })

  it('is published for at most 16 jobs if there are no workers', () => {
    expect(published(channel(0, { workers: () => [] }).hints)).toBe(16)
  })
})

it('the queue notifier announces 1,500 unpublished jobs in one message, with one entry per kind, model and priority', async () => {
  const { hints, sent } = channel(0)
  for (let i = 0; i < 1_500; i++) hints.notify(i % 2 ? JOB : { ...JOB, priority: 'low' })
  await until(() => sent.length > 0)
  expect(sent).toEqual([{ type: 'jobs_waiting', pool: 'inference', backlog: [{ ...LANE, priority: 'low' }, LANE] }])
  hints.notify(JOB)
  await until(() => sent.length > 1)
  expect(sent[1]).toEqual({ type: 'jobs_waiting', pool: 'inference', backlog: [LANE] })
})
