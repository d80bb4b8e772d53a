import { afterEach, beforeEach, describe, expect, it, test, vi } from 'vitest'
import { type ControlRecord, type JobEvent, ReplyRecord } from '#schemas/event.ts'
import type { JobEnvelope } from '#schemas/job.ts'
import type { Broker, Delivery, QueueConsumer } from '#shared/broker/broker.ts'
import { recordOf as packRecord } from '#shared/jobs/body.ts'
import { CONTROL, DEAD_LETTERS, REPLIES } from '#shared/jobs/records.ts'
import { Worker } from '#shared/jobs/worker/worker.ts'
import type { AttemptContext, Handler } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import {
  answerAsIs,
  envelopeOf,
  openBroker,
  type Said,
  sayKind,
  silentLog,
  textOfEvents,
} from '../../../support/jobs/jobs.ts'
import { until } from '../../../support/stack.ts'

const QUEUE = 'jobs.inference'

let broker: Broker
let events: JobEvent[]
let dead: Buffer[]
let pools: Worker[]
let work: Work
beforeEach(async () => {
  broker = await openBroker()
  events = []
  dead = []
  pools = []
  work = new Work()
  await broker.receive(REPLIES, [0], (record) => {
    events.push(...ReplyRecord.parse(JSON.parse(record.value.toString())).events)
  })
  await broker.receive(DEAD_LETTERS, [0], (record) => dead.push(record.value))
})
afterEach(async () => {
  work.endAll()
  for (const pool of pools) await pool.close()
  await broker.close()
})

/** The jobs of a test. Each one runs until the test ends it, and returns the output that the test sends. */
class Work {
  readonly running = new Map<string, { say: (said: Said) => void; end: (error?: Error) => void }>()
  readonly started: string[] = []
  most = 0
  /** If true, then jobs ignore their abort signal. */
  isDeaf = false

  async *run(body: unknown, { signal, idempotencyKey }: AttemptContext): AsyncGenerator<Said> {
    const said: Said[] = []
    let wake: () => void = () => {}
    let end: { error?: Error } | undefined
    this.started.push(idempotencyKey)
    this.running.set(idempotencyKey, {
      say: (more) => {
        said.push(more)
        wake()
      },
      end: (error) => {
        end = error ? { error } : {}
        wake()
      },
    })
    this.most = Math.max(this.most, this.running.size)
    signal.addEventListener('abort', () => wake())
    try {
      if ((body as { text?: string }).text) yield body as Said
      while (!end && (this.isDeaf || !signal.aborted)) {
        yield* said.splice(0)
        if (said.length > 0 || end || (signal.aborted && !this.isDeaf)) continue
        await new Promise<void>((resolve) => {
          wake = resolve
        })
      }
      yield* said.splice(0)
      if (end?.error) throw end.error
    } finally {
      this.running.delete(idempotencyKey)
    }
  }

  endAll(): void {
    for (const { end } of [...this.running.values()]) end()
  }
}

const noBlobs = memoryBlobs()

interface PoolOptions {
  readonly slots?: number
  readonly broker?: Broker
  readonly requeueForMs?: number
  readonly run?: Handler['run']
}

async function openPool(options: PoolOptions = {}): Promise<Worker> {
  const say: Handler = {
    ...sayKind,
    parse: (body) => body,
    run: options.run ?? ((body, context) => work.run(body, context)),
    isOutput: (delta) => (delta as Said).text !== '',
    answer: () => answerAsIs((events) => events),
  }
  const pool = await Worker.open(
    { name: 'inference', slots: options.slots ?? 4, kinds: { say } },
    {
      broker: options.broker ?? broker,
      blobs: noBlobs,
      log: silentLog,
      version: 'test',
      observer: { onEnd: () => {} },
      store: undefined,
      leaseMs: 9_000,
      requeueForMs: options.requeueForMs ?? 100,
      bodyBudgetBytes: 1024 * 1024,
      onFatal: (error) => {
        throw error
      },
    },
  )
  pools.push(pool)
  return pool
}

async function submit(id: string, more: Partial<JobEnvelope> = {}): Promise<void> {
  await broker.submit(QUEUE, recordOf(id, more))
}

function control(record: ControlRecord): Promise<void> {
  return broker.send(CONTROL, 0, '', Buffer.from(JSON.stringify(record)))
}

/** Returns the messages about a job in short form. */
function said(id: string): string[] {
  return events
    .filter((event) => event.job_id === `job_${id}`)
    .map((event) => (event.type === 'failed' ? `failed ${event.error.code}` : event.type))
}

/** A queue that delivers the given records, in place of the broker's queue. */
function queueOf(...values: { value: Buffer; deliveryCount?: number }[]) {
  const settled: string[] = []
  const waiting = values.map(({ value, deliveryCount = 1 }, index): Delivery => {
    const position = `${QUEUE}/0@${index}`
    return {
      value,
      deliveryCount,
      position,
      acknowledge: () => settled.push(`acknowledged ${index}`),
      release: () => settled.push(`released ${index}`),
    }
  })
  const queue: QueueConsumer = {
    async take(max, signal) {
      if (waiting.length > 0) return waiting.splice(0, max)
      await new Promise((resolve) => signal.addEventListener('abort', resolve))
      return []
    },
    close: async () => {},
  }
  const proxied = new Proxy(broker, {
    get: (target, name) => {
      const value = name === 'openQueue' ? async () => queue : (Reflect.get(target, name) as unknown)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  return { broker: proxied, settled }
}

function recordOf(id: string, more: Partial<JobEnvelope> = {}): Buffer {
  const { body, ...envelope } = envelopeOf({ id: `job_${id}`, ...more })
  return packRecord(envelope, { json: JSON.stringify(body) })
}

describe('a worker', () => {
  it('runs a job and sends its events from started to completed', async () => {
    await openPool()
    await submit('a', { body: { text: 'hello' } })
    await until(() => work.running.has('job_a:1'))
    work.running.get('job_a:1')?.say({ text: ' you' })
    work.endAll()
    await until(() => said('a').includes('completed'))
    expect(said('a')[0]).toBe('started')
    expect(textOfEvents(events)).toBe('hello you')
    expect(await broker.lag(QUEUE)).toBe(0)
  })

  it('sends no output of a job without streaming before its end', async () => {
    await openPool()
    await submit('a', { stream: false, body: { text: 'hello' } })
    await until(() => said('a').length > 0)
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(said('a')).toEqual(['started'])
    work.endAll()
    await until(() => said('a').includes('completed'))
    expect(textOfEvents(events)).toBe('hello')
  })

  it('sends the usage, but not the output, of a failed job without streaming', async () => {
    const start = { type: 'start', input_tokens: 7, duration: 3, apart: true }
    const run = async function* () {
      yield start
      yield { text: 'word'.repeat(10), apart: true }
      throw new ServiceError('upstream_refused', 'No.')
    }
    await openPool({ run })
    await submit('a', { stream: false })
    await until(() => said('a').includes('failed upstream_refused'))
    const deltas = events.flatMap((event) => ('deltas' in event ? event.deltas : []))
    expect(deltas).toEqual([start, { type: 'usage', usage: { input_tokens: 7, output_tokens: 10 } }])
  })

  it('acknowledges a record as soon as the started event of its job is published', async () => {
    await openPool()
    await submit('a')
    await until(async () => (await broker.lag(QUEUE)) === 0)
    expect(said('a')).toEqual(['started'])
    expect(work.running.size).toBe(1)
  })

  it('runs at most as many jobs as it has slots, and starts the next job when a job ends', async () => {
    const pool = await openPool({ slots: 3 })
    for (let i = 0; i < 20; i++) await submit(`${i}`)
    await until(() => pool.running === 3)
    await until(async () => (await broker.lag(QUEUE)) === 17)
    for (let ended = 0; ended < 20; ended++) {
      const [first] = await until(() => [...work.running.values()].slice(0, 1))
      await until(() => pool.running === Math.min(3, 20 - ended))
      first?.end()
      await until(() => events.filter((event) => event.type === 'completed').length > ended)
    }
    expect(work.most).toBe(3)
    expect(new Set(work.started).size).toBe(20)
  })

  it('shares the queue with another worker, so that each job runs once', async () => {
    await Promise.all([openPool({ slots: 2 }), openPool({ slots: 2 })])
    for (let i = 0; i < 4; i++) await submit(`${i}`)
    await until(() => work.running.size === 4)
    expect(pools.map((pool) => pool.running)).toEqual([2, 2])
  })

  test.each([
    ['overloaded', new ServiceError('overloaded', 'busy')],
    ['internal_error', new Error('secret detail')],
  ] as const)('reports a failure as %s without internal details', async (code, error) => {
    await openPool()
    await submit('a')
    await until(() => work.running.size === 1)
    work.running.get('job_a:1')?.end(error)
    await until(() => said('a').includes(`failed ${code}`))
    expect(JSON.stringify(events)).not.toContain('secret')
  })

  it('fails a job with timeout if its deadline passes before or while it runs', async () => {
    await openPool()
    await submit('running', { deadline_ms: Date.now() + 50 })
    await submit('late', { deadline_ms: Date.now() - 1 })
    for (const id of ['running', 'late']) await until(() => said(id).includes('failed timeout'))
    expect(work.running.size).toBe(0)
  })

  it('fails a job with internal_error if its body blob is missing', async () => {
    await openPool()
    const { body: _, ...rest } = envelopeOf({ id: 'job_a' })
    await broker.submit(QUEUE, Buffer.from(JSON.stringify({ ...rest, blob: 'job_a' })))
    await until(() => said('a').includes('failed internal_error'))
  })
})

describe('a cancel message', () => {
  it('stops a running job at once, and no further event is published', async () => {
    const pool = await openPool()
    await submit('a')
    await until(() => work.running.size === 1)
    await control({ type: 'cancel', job_id: 'job_a' })
    await until(() => pool.running === 0)
    expect(work.running.size).toBe(0)
    expect(said('a')).toEqual(['started'])
  })

  it.each([{ job_id: 'job_a' }, { job_id: 'job_a', attempt: 1 }])(
    'that arrives before the job prevents the job from running: %j',
    async (which) => {
      await openPool()
      await control({ type: 'cancel', ...which })
      await submit('a')
      await submit('b')
      await until(() => work.running.has('job_b:1'))
      await until(async () => (await broker.lag(QUEUE)) === 0)
      expect(work.started).toEqual(['job_b:1'])
      expect(said('a')).toEqual([])
    },
  )

  it('has no effect if it names another attempt or another worker', async () => {
    const pool = await openPool()
    await submit('a', { attempt: 2 })
    await until(() => work.running.size === 1)
    await control({ type: 'cancel', job_id: 'job_a', attempt: 1 })
    await control({ type: 'cancel', job_id: 'job_a', worker: 'wrk_other' })
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(pool.running).toBe(1)
    await control({ type: 'cancel', job_id: 'job_a', worker: pool.boot })
    await until(() => pool.running === 0)
  })

  it('is not needed for the jobs of an ingress that deregisters', async () => {
    const pool = await openPool()
    const beat = { type: 'heartbeat', role: 'ingress', slots: 0, running: 0, draining: false, version: 'x' } as const
    await control({ ...beat, boot: 'ing_1' })
    await submit('a')
    await submit('b', { reply: { boot: 'ing_2', shard: 0 } })
    await until(() => work.running.size === 2)
    await control({ type: 'leave', boot: 'ing_1' })
    await until(() => pool.running === 1)
    expect([...work.running.keys()]).toEqual(['job_b:1'])
  })
})

describe('a pause message from an ingress', () => {
  it('holds back output until a resume message arrives', async () => {
    await openPool()
    await submit('a')
    const job = await until(() => work.running.get('job_a:1'))
    await control({ type: 'pause', job_id: 'job_a', attempt: 1 })
    // The first delta is already on its way when the pause arrives, so it is still sent.
    for (const text of ['1', '2', '3']) job.say({ text })
    await until(() => textOfEvents(events) === '1')
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(textOfEvents(events)).toBe('1')
    await control({ type: 'resume', job_id: 'job_a', attempt: 1 })
    await until(() => textOfEvents(events) === '123')
  })

  it.each(['before', 'after'])('that arrives %s a cancel message does not delay the end of the job', async (order) => {
    const pool = await openPool()
    await submit('a')
    const job = await until(() => work.running.get('job_a:1'))
    const pause: ControlRecord = { type: 'pause', job_id: 'job_a', attempt: 1 }
    const cancel: ControlRecord = { type: 'cancel', job_id: 'job_a' }
    job.say({ text: '1' })
    job.say({ text: '2' })
    await Promise.all((order === 'before' ? [pause, cancel] : [cancel, pause]).map((record) => control(record)))
    await until(() => pool.running === 0)
  })
})

describe('a queue record of a job', () => {
  it.each([
    ['random bytes', Buffer.from([0xff, 0x00, 0x7b])],
    ['no bytes', Buffer.alloc(0)],
    ['JSON without the fields of a job', Buffer.from('{"id":"job_1"}')],
    ['an unknown kind', Buffer.from(JSON.stringify(envelopeOf({ kind: 'dance' })))],
    ['a kind named like an inherited property', Buffer.from(JSON.stringify(envelopeOf({ kind: 'constructor' })))],
    ['__proto__ as its kind', Buffer.from(JSON.stringify(envelopeOf({ kind: '__proto__' })))],
    ['a megabyte of zeros', Buffer.alloc(1_000_000)],
  ])('becomes a dead letter if it cannot be parsed: %s', async (_name, value) => {
    await openPool()
    await broker.submit(QUEUE, value)
    await submit('next')
    await until(() => said('next').includes('started'))
    const [buried] = await until(() => (dead.length > 0 ? dead : undefined))
    expect(buried?.equals(value)).toBe(true)
    await until(async () => (await broker.lag(QUEUE)) === 0)
    expect(work.started).toEqual(['job_next:1'])
  })

  it('is not acknowledged while the dead-letter topic refuses it', async () => {
    const queue = queueOf({ value: Buffer.from('garbage') }, { value: await recordOf('next') })
    const inner = queue.broker
    const failing = new Proxy(inner, {
      get: (target, name) => {
        if (name !== 'send') return Reflect.get(target, name) as unknown
        return (channel: string, ...rest: [number, string, Buffer]) =>
          channel === DEAD_LETTERS ? Promise.reject(new Error('no')) : target.send(channel, ...rest)
      },
    })
    await openPool({ broker: failing })
    await until(() => said('next').includes('started'))
    await until(() => queue.settled.includes('acknowledged 1'))
    expect(queue.settled).toEqual(['acknowledged 1'])
  })

  it('is dropped if it is redelivered while its job runs', async () => {
    const value = await recordOf('a')
    const queue = queueOf({ value }, { value, deliveryCount: 2 }, { value: await recordOf('b') })
    await openPool({ broker: queue.broker })
    await until(() => queue.settled.length === 3)
    expect(work.started).toEqual(['job_a:1', 'job_b:1'])
    expect(said('a')).toEqual(['started'])
  })

  it('fails its job with internal_error at the fourth delivery', async () => {
    const queue = queueOf(
      { value: await recordOf('a'), deliveryCount: 4 },
      { value: await recordOf('b'), deliveryCount: 3 },
    )
    await openPool({ broker: queue.broker })
    await until(() => said('a').includes('failed internal_error'))
    await until(() => queue.settled.length === 2)
    expect(work.started).toEqual(['job_b:1'])
  })
})

describe('the drain of a worker', () => {
  it('starts no job, and ends when the running jobs have ended', async () => {
    const pool = await openPool()
    await submit('a')
    await until(() => work.running.size === 1)
    const patient = new AbortController().signal
    const ended: string[] = []
    const drains = ['first', 'second'].map((name) => pool.drain(patient).then(() => ended.push(name)))
    await submit('b')
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect([work.started, ended]).toEqual([['job_a:1'], []])
    work.endAll()
    await Promise.all(drains)
    expect(said('a')).toContain('completed')
    expect(await broker.lag(QUEUE)).toBe(1)
  })

  it('ends at its timeout: jobs that have sent output fail, and other jobs are requeued', async () => {
    const pool = await openPool()
    await submit('silent')
    await submit('spoken', { body: { text: 'word' } })
    await submit('whole', { stream: false, body: { text: 'word' } })
    await until(() => work.running.size === 3)
    await until(() => textOfEvents(events) === 'word')
    await pool.drain(AbortSignal.timeout(10))
    expect(pool.running).toBe(0)
    expect(said('silent').at(-1)).toBe('handed_back')
    expect(said('whole').at(-1)).toBe('handed_back')
    expect(said('spoken').at(-1)).toBe('failed worker_lost')
  })

  it('ends at the earlier timeout of two concurrent drain requests', async () => {
    const pool = await openPool()
    await submit('a')
    await until(() => work.running.size === 1)
    const patient = pool.drain(new AbortController().signal)
    await pool.drain(AbortSignal.abort())
    await patient
    expect(said('a').at(-1)).toBe('handed_back')
  })

  it('starts when the worker is closed, and requeues the running jobs', async () => {
    const pool = await openPool()
    await submit('a')
    await until(() => work.running.size === 1)
    await pool.close()
    await pool.close()
    expect(said('a').at(-1)).toBe('handed_back')
    await submit('b')
    await openPool()
    await until(() => said('b').includes('started'))
  })
})

describe('the queued jobs of an ingress', () => {
  const later = Date.now() + 30_000
  const old = { created_at_ms: later - 10_000, deadline_ms: later + 60_000 }

  it('are dropped if the ingress sends no heartbeats', async () => {
    const pool = await openPool()
    vi.spyOn(Date, 'now').mockReturnValue(later)
    // Missing heartbeats count only if the channel works. The test therefore waits until a heartbeat of its own process has arrived.
    await until(() => pool.presence.silenceMs === 0)
    await control({
      type: 'heartbeat',
      boot: 'ing_alive',
      role: 'ingress',
      slots: 0,
      running: 0,
      draining: false,
      version: '1',
    })
    await submit('orphan', { ...old, reply: { boot: 'ing_dead', shard: 0 } })
    await submit('wanted', { ...old, reply: { boot: 'ing_alive', shard: 0 } })
    await until(() => said('wanted').includes('started'))
    vi.restoreAllMocks()
    expect(work.started).toEqual(['job_wanted:1'])
    work.endAll()
    await until(async () => (await broker.lag(QUEUE)) === 0)
  })
})
