import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { DurableEvent } from '#schemas/durable-job.ts'
import type { JobEnvelope } from '#schemas/job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { RetryBudget } from '#shared/jobs/decide.ts'
import { Dispatcher, Family } from '#shared/jobs/durable/dispatch.ts'
import { DurableRun } from '#shared/jobs/worker/durable-run.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newJobId } from '#shared/store/jobs.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import type { HeldAttempt, NewEvent, Store } from '#shared/store/store.ts'
import { VirtualClock } from '../../../simulation/clock.ts'
import { openScratch } from '../../../simulation/scratch.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { openBroker, type Said, sayKind, silentLog, textOf } from '../../../support/jobs/jobs.ts'

const BOOT = 'wrk_1'
const TENANT = 'key_1'
const UPSTREAM = { code: 'upstream_error', message: 'It failed.', param: null } as const

const say: Handler = {
  ...sayKind,
  parse: (body) => body,
  run: () => {
    throw new Error('not run here')
  },
}

/** Outcome of one write to the store. `well`: accepted. `refused`: refused before any change. `unanswered`: executed, but the response was lost. */
type Fate = 'well' | 'refused' | 'unanswered'
/** A write that was sent to the store. `chunk` is the number of the write within its attempt. */
interface Sent {
  readonly chunk: number
  readonly text: string
  readonly isAnswered: boolean
  readonly atMs: number
}

let clock: VirtualClock
let restore: () => void
let scratch: ReturnType<typeof openScratch>
let store: Store
let broker: Broker
beforeEach(async () => {
  clock = new VirtualClock()
  restore = clock.install(Math.random)
  scratch = openScratch()
  store = openSqliteStore({ directory: scratch.path, boot: 'test', now: clock.databaseMs, sync: async () => {} })
  broker = await openBroker()
  await passing(
    store.renew({ boot: BOOT, role: 'inference', slots: 1, version: '', draining: false, leaseMs: 10 ** 9 }),
  )
})
afterEach(async () => {
  await store.close()
  restore()
  scratch[Symbol.dispose]()
})

/** Waits for a promise, and advances the fake time until it settles. */
async function passing<T>(promise: Promise<T>): Promise<T> {
  let isSettled = false
  const settle = () => {
    isSettled = true
  }
  promise.then(settle, settle)
  await clock.run(clock.nowMs + 600_000, () => isSettled)
  return await promise
}

const pass = (ms: number) => clock.run(clock.nowMs + ms)

/** Wraps the store. The writes of a run get the given outcomes, one after the other; later writes succeed. */
function fateful(fates: Fate[], sent: Sent[], writeMs: () => number = () => 0): Store {
  const names = new Set(['append', 'complete', 'fail', 'retry', 'handBack', 'honourCancel'])
  return new Proxy(store, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown
      if (typeof value !== 'function') return value
      if (!names.has(String(name))) return value.bind(target)
      return async (run: HeldAttempt, more: readonly NewEvent[] | { output?: readonly NewEvent[] } = []) => {
        const output = Array.isArray(more) ? more : ((more as { output?: readonly NewEvent[] }).output ?? [])
        const fate = fates.shift() ?? 'well'
        sent.push({ chunk: run.chunk, text: textOfOutput(output), isAnswered: fate === 'well', atMs: clock.nowMs })
        await clock.sleep(writeMs())
        if (fate === 'refused') throw new ServiceError('overloaded', 'refused')
        const moved = await (value as (...args: unknown[]) => Promise<unknown>).call(target, run, more)
        if (fate === 'unanswered') throw new ServiceError('overloaded', 'unanswered')
        return moved
      }
    },
  })
}

function textOfOutput(output: readonly NewEvent[]): string {
  return textOf(
    output.filter(({ type }) => type === 'job.output.delta').map(({ data }) => (data as { chunk: Said }).chunk),
  )
}

/** Creates a job and claims it for a worker. */
async function claim(
  through: Store = store,
  id?: string,
  handler = say,
): Promise<{ run: DurableRun; id: string; lost: string[] }> {
  const jobId = id ?? newJobId()
  if (id === undefined) {
    const more = { pool: 'inference', kind: 'say', endpoint: '/v1', model: 'm', stream: true } as const
    const times = { deadlineInMs: 600_000, retentionMs: 600_000 }
    await passing(store.create({ id: jobId, tenant: TENANT, request: {}, ...more, ...times }))
  }
  const moved = await passing(store.claim(jobId, BOOT))
  if (!moved) throw new Error('not claimed')
  const job: JobEnvelope = {
    id: jobId,
    attempt: moved.job.attempt,
    pool: 'inference',
    kind: 'say',
    tenant: TENANT,
    model: 'm',
    created_at_ms: Date.now(),
    deadline_ms: Date.now() + 600_000,
    stream: true,
    encode: { request_id: 'req_1', call_id: '1', created_at: 0, model: 'm', include_usage: false, version: '' },
  }
  const dispatcher = new Dispatcher(broker, silentLog)
  const budget = new RetryBudget(0.1, 100)
  const { signal } = new AbortController()
  const family = new Family({ store: through, dispatcher, log: silentLog, notifyOwner: () => {} })
  const more = { store: through, blobs: memoryBlobs(), dispatcher, family, log: silentLog, budget, signal }
  const run = new DurableRun(job, handler, moved, BOOT, more)
  const lost: string[] = []
  run.onStop = (reason) => lost.push(reason)
  return { run, id: jobId, lost }
}

async function eventsOf(id: string): Promise<DurableEvent[]> {
  return await passing(store.listEvents(TENANT, id, 0, 1_000))
}

/** Reads all events of a job, page by page. */
async function wholeHistoryOf(id: string): Promise<DurableEvent[]> {
  const all: DurableEvent[] = []
  for (let page = await eventsOf(id); page.length > 0; ) {
    all.push(...page)
    page = await passing(store.listEvents(TENANT, id, all.at(-1)?.seq ?? 0, 1_000))
  }
  return all
}

function outputOf(events: readonly DurableEvent[]): string {
  return textOf(
    events.filter(({ type }) => type === 'job.output.delta').map(({ data }) => (data as { chunk: Said }).chunk),
  )
}

const anySpeech = fc.array(
  fc.record({ text: fc.string({ maxLength: 5 }), afterMs: fc.integer({ min: 0, max: 200 }) }),
  {
    maxLength: 15,
  },
)
const anyFates = fc.array(fc.constantFrom<Fate>('well', 'refused', 'unanswered'), { maxLength: 20 })

describe('the run of a durable job', () => {
  it('stores its output once and in order, whether writes succeed, fail or lose their response', async () => {
    await fc.assert(
      fc.asyncProperty(anySpeech, anyFates, async (speech, fates) => {
        const sent: Sent[] = []
        const { run, id } = await claim(fateful(fates, sent))
        for (const { text, afterMs } of speech) {
          void run.event({ text })
          await pass(afterMs)
        }
        await passing(run.completed())
        const said = textOf(speech)
        expect(outputOf(await eventsOf(id))).toBe(said)
        expect((await store.findContent(TENANT, id))?.result ?? null).toEqual({ text: said })
        expectNumbered(sent)
      }),
      { numRuns: 150 },
    )
  })

  it('fails with internal_error if its output cannot be encoded', async () => {
    const answer = sayKind.answer()
    const push = () => {
      throw new TypeError('a failing encoder')
    }
    const broken = { ...answer, open: () => ({ push, end: () => [] }) }
    const { run, id } = await claim(store, undefined, { ...say, answer: () => broken })
    void run.event({ text: 'a' })
    await pass(1_000)
    void run.event({ text: 'b' })
    await expect(passing(run.completed())).rejects.toThrow('a failing encoder')
    await passing(run.failed({ code: 'internal_error', message: 'It broke.', param: null }))
    expect((await store.find(TENANT, id))?.state).toBe('failed')
  })

  it('publishes the first output at once, and later output in larger writes', async () => {
    const sent: Sent[] = []
    const { run } = await claim(fateful([], sent))
    void run.event({ text: 'a' })
    await pass(0)
    for (const text of 'bcdefghij') {
      void run.event({ text })
      await pass(10)
    }
    await pass(50)
    expect(sent.map(({ text }) => text)).toEqual(['a', 'bcdef', 'ghij'])
  })

  it('publishes output within two seconds after one slow write', async () => {
    const sent: Sent[] = []
    let writeMs = 30_000
    const { run } = await claim(fateful([], sent, () => writeMs))
    void run.event({ text: 'a' })
    await pass(30_000)
    writeMs = 0
    void run.event({ text: 'b' })
    await pass(2_000)
    expect(sent.map(({ text }) => text)).toEqual(['a', 'b'])
  })

  it.each([
    ['completed', (run: DurableRun) => run.completed()],
    ['failed', (run: DurableRun) => run.failed({ ...UPSTREAM, code: 'invalid_request' })],
  ])('splits 2,000 output messages into several writes, and then has state %s', async (state, end) => {
    const sent: Sent[] = []
    const { run, id } = await claim(fateful([], sent))
    const texts = Array.from({ length: 2_000 }, (_, i) => `${i},`)
    for (const text of texts) void run.event({ text, apart: true })
    await passing(end(run))
    expect((await store.find(TENANT, id))?.state).toBe(state)
    const events = [...(await eventsOf(id)), ...(await store.listEvents(TENANT, id, 1_000, 2_000))]
    expect(outputOf(events)).toBe(texts.join(''))
    expect(sent.map(({ text }) => text.split(',').length - 1).filter((messages) => messages > 300)).toEqual([])
    expectNumbered(sent)
  })

  it('starts a new write after 256 KiB, so that no transaction contains a whole response', async () => {
    const sent: Sent[] = []
    const { run, id } = await claim(fateful([], sent))
    const texts = Array.from({ length: 12 }, (_, at) => String.fromCharCode(97 + at).repeat(100 * 1024))
    for (const text of texts) void run.event({ text, apart: true })
    await passing(run.completed())
    expect(outputOf(await wholeHistoryOf(id))).toBe(texts.join(''))
    expect(Math.max(...sent.map(({ text }) => text.length)), 'characters of one write').toBeLessThan(400 * 1024)
    expectNumbered(sent)
  })

  it('applies backpressure to its engine while 256 KiB of output are not written', async () => {
    const { run } = await claim(fateful(['refused', 'refused'], []))
    expect(run.event({ text: 'a'.repeat(200 * 1024) })).toBeUndefined()
    const room = run.event({ text: 'a'.repeat(200 * 1024) })
    expect(room).toBeDefined()
    await passing(room ?? Promise.resolve())
    expect(run.event({ text: 'a' })).toBeUndefined()
  })

  it('stops, and writes nothing more, once its job has been requeued', async () => {
    const sent: Sent[] = []
    const { run, id, lost } = await claim(fateful([], sent))
    await passing(store.handBack({ id, attempt: 1, boot: BOOT, chunk: 0 }))
    void run.event({ text: 'a' })
    await pass(0)
    expect(lost).toEqual(['lost'])
    await passing(run.completed())
    expect(sent).toHaveLength(1)
    expect((await eventsOf(id)).map(({ type }) => type)).toEqual(['job.queued', 'job.started', 'job.retrying'])
  })

  it('stops retrying a write once the lease is lost', async () => {
    const sent: Sent[] = []
    const { run, lost } = await claim(fateful(Array(1_000).fill('refused'), sent))
    void run.event({ text: 'a' })
    await pass(1_000)
    let isSettled = false
    const completed = run.completed().then(() => {
      isSettled = true
    })
    await pass(10_000)
    expect(isSettled).toBe(false)
    run.lose()
    run.lose()
    await passing(completed)
    const written = sent.length
    await pass(60_000)
    expect(sent).toHaveLength(written)
    expect(lost).toEqual(['lost'])
  })

  it('records job.retrying with output_reset if the failed attempt had output', async () => {
    const first = await claim()
    void first.run.event({ text: 'half' })
    await passing(first.run.failed(UPSTREAM))
    await pass(2_000)
    await passing(store.startDue(10))
    const second = await claim(store, first.id)
    void second.run.event({ text: 'whole' })
    await passing(second.run.completed())
    const events = await eventsOf(first.id)
    const retrying = events.findIndex(({ type }) => type === 'job.retrying')
    expect(events[retrying]?.data).toMatchObject({ reason: 'upstream_error', output_reset: true })
    expect(outputOf(events.slice(retrying))).toBe('whole')
    expect((await store.findContent(TENANT, first.id))?.result).toEqual({ text: 'whole' })
  })

  it('adds up the tokens of its attempts, even if the job ends without a result', async () => {
    const usage = { input_tokens: 10, output_tokens: 5 }
    const first = await claim()
    void first.run.event({ type: 'usage', usage })
    await passing(first.run.failed(UPSTREAM))
    expect(await passing(store.find(TENANT, first.id))).toMatchObject({ state: 'scheduled', usage })
    await pass(2_000)
    await passing(store.startDue(10))
    const second = await claim(store, first.id)
    void second.run.event({ type: 'usage', usage })
    await passing(store.cancel(TENANT, first.id))
    await passing(second.run.cancelled())
    const sum = { input_tokens: 20, output_tokens: 10 }
    expect(await passing(store.find(TENANT, first.id))).toMatchObject({ state: 'cancelled', usage: sum })
    expect(await passing(store.usage.listEnded(10))).toMatchObject([{ jobId: first.id, metered: sum }])
  })

  it('has the tokens of an attempt whose answer cannot be encoded', async () => {
    const usage = { input_tokens: 10, output_tokens: 5 }
    const whole = () => {
      throw new ServiceError('upstream_error', 'The answer has no vectors.')
    }
    const { run, id } = await claim(store, undefined, { ...say, answer: () => ({ whole }) })
    void run.event({ type: 'usage', usage })
    await expect(passing(run.completed())).rejects.toMatchObject({ code: 'upstream_error' })
    await passing(run.failed(UPSTREAM))
    expect(await passing(store.find(TENANT, id))).toMatchObject({ state: 'scheduled', usage })
  })

  it('records job.retrying without output_reset if the failed attempt had no output', async () => {
    const { run, id } = await claim()
    await passing(run.failed(UPSTREAM))
    expect((await eventsOf(id)).at(-1)?.data).toMatchObject({ output_reset: false })
  })

  it('is retried without counting a failed attempt if the job handler cannot reach the store', async () => {
    const away = { code: 'overloaded', message: 'The job store cannot be reached now.', param: null } as const
    const first = await claim()
    await passing(first.run.failed(away, true))
    for (let nth = 0; nth < 5; nth++) {
      await pass(5_000)
      await passing(store.startDue(10))
      const { run } = await claim(store, first.id)
      await passing(run.failed(away, true))
    }
    expect(await passing(store.find(TENANT, first.id))).toMatchObject({ state: 'scheduled', tries: 0, attempt: 6 })
  })

  it('publishes its progress at most twice per second, and the latest value last', async () => {
    const sent: Sent[] = []
    const { run, id } = await claim(fateful([], sent))
    for (let percent = 0; percent <= 20; percent++) {
      run.onProgress({ phase: 'reading', percent, message: '' })
      await pass(100)
    }
    await pass(1_000)
    const told = (await eventsOf(id)).filter(({ type }) => type === 'job.progress')
    expect(told.length).toBeLessThanOrEqual(6)
    expect(told.at(-1)?.data).toMatchObject({ progress: { percent: 20 } })
    expect(sent.slice(1).every(({ atMs }, index) => atMs - (sent[index]?.atMs ?? 0) >= 500)).toBe(true)
  })

  it.each([
    ['completed', (run: DurableRun) => run.completed()],
    ['failed', (run: DurableRun) => run.failed({ ...UPSTREAM, code: 'upstream_refused' })],
    ['queued', (run: DurableRun) => run.parked()],
    ['cancelled', (run: DurableRun) => run.cancelled()],
  ])('publishes the latest progress before its job is %s', async (state, end) => {
    const { run, id } = await claim()
    run.onProgress({ phase: 'planning', percent: 2, message: '' })
    await pass(100)
    run.onProgress({ phase: 'reading', percent: 40, message: '' })
    run.onProgress({ phase: 'finalizing', percent: 95, message: '' })
    if (state === 'cancelled') await passing(store.cancel(TENANT, id))
    await passing(end(run))
    expect(await passing(store.find(TENANT, id))).toMatchObject({ state, progress: { progress: { percent: 95 } } })
    const told = (await eventsOf(id)).filter(({ type }) => type === 'job.progress')
    expect(told.map(({ data }) => data)).toMatchObject([
      { progress: { phase: 'planning' } },
      { progress: { phase: 'finalizing' } },
    ])
  })

  it('publishes no progress if the job ends before the first progress is due', async () => {
    const { run, id } = await claim()
    run.onProgress({ phase: 'reading', percent: 5, message: '' })
    await passing(run.completed())
    expect((await eventsOf(id)).map(({ type }) => type)).not.toContain('job.progress')
  })
})

/** Checks the numbers of writes. A write without a response must be repeated unchanged. The number increases only after a response. */
function expectNumbered(sent: readonly Sent[]): void {
  for (const [index, write] of sent.entries()) {
    const before = sent[index - 1]
    if (!before) expect(write.chunk).toBe(0)
    else if (before.isAnswered) expect(write.chunk).toBe(before.chunk + 1)
    else expect(write).toMatchObject({ chunk: before.chunk, text: before.text })
  }
}
