/**
 * Tests compatibility with the next version, which may send fields, events and kinds of jobs that this version does not have.
 * `test/upgrade.test.ts` runs two real versions together.
 */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import type { JobEvent } from '#schemas/event.ts'
import type { JobEnvelope } from '#schemas/job.ts'
import { EmbedRequest } from '#schemas/kinds/embeddings.ts'
import { GenerateRequest } from '#schemas/kinds/generate.ts'
import { TranscribeRequest } from '#schemas/kinds/transcription.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { AttachedJobs } from '#shared/jobs/attached/attached.ts'
import { LiveEvents } from '#shared/jobs/durable/follow.ts'
import { Presence } from '#shared/jobs/presence.ts'
import {
  CONTROL,
  DEAD_LETTERS,
  EVENTS,
  eventPartition,
  jobsTopic,
  REPLIES,
  readControl,
  readEvents,
  readJob,
  readReply,
  readStored,
  replyShard,
  UnknownRecordLog,
} from '#shared/jobs/records.ts'
import { Worker } from '#shared/jobs/worker/worker.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import { newKey } from '#shared/keys/keys.ts'
import { encodeChat } from '#shared/kinds/generate/chat/whole.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import type { Log } from '#shared/log/log.ts'
import { jobOf } from '#shared/store/sql/rows.ts'
import { memoryBlobs } from '../../support/jobs/blobs.ts'
import { answerAsIs, envelopeOf, openBroker, sayKind, silentLog } from '../../support/jobs/jobs.ts'
import { until } from '../../support/stack.ts'

const QUEUE = jobsTopic('inference')

let broker: Broker
let closers: (() => Promise<void>)[]
beforeEach(async () => {
  broker = await openBroker()
  closers = []
})
afterEach(async () => {
  for (const close of closers.reverse()) await close()
  await broker.close()
})

/** Returns a value as the next version might write it: every object has one more field. */
function withFutureFields(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withFutureFields)
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value).map(([name, field]) => [name, withFutureFields(field)])
  return { ...Object.fromEntries(entries), field_of_the_future: { some: ['thing'] } }
}

function bufferOf(value: unknown): Buffer {
  return Buffer.from(JSON.stringify(value))
}

async function openWorker(kinds: string[], passOnMs?: number, slots = 4): Promise<Worker> {
  const kind: Handler = {
    ...sayKind,
    parse: (body) => {
      const isNew = (body as { form?: string }).form === 'future'
      if (isNew && !kinds.includes('dance')) throw new TypeError('not a form of this version')
      return body
    },
    async *run() {
      yield { text: kinds.join() }
    },
    answer: () => answerAsIs((events) => events),
  }
  const pool = await Worker.open(
    { name: 'inference', slots, kinds: Object.fromEntries(kinds.map((name) => [name, kind])) },
    {
      broker,
      blobs: memoryBlobs(),
      log: silentLog,
      version: 'test',
      observer: { onEnd: () => {} },
      store: undefined,
      leaseMs: 9_000,
      bodyBudgetBytes: 1024 * 1024,
      requeueForMs: passOnMs,
      onFatal: (error) => {
        throw error
      },
    },
  )
  closers.push(() => pool.close())
  return pool
}

async function openIngress(): Promise<AttachedJobs> {
  const jobs = await AttachedJobs.open({
    broker,
    blobs: memoryBlobs(),
    log: silentLog,
    observer: { onRetry: () => {}, onEnd: () => {} },
    version: 'test',
    workerSuspectedMs: 2_000,
    workerLostMs: 5_000,
    startTimeoutMs: 20_000,
    jobsMax: 100,
  })
  closers.push(() => jobs.close())
  return jobs
}

function submit(jobs: AttachedJobs, kind: string, body: unknown = {}) {
  return jobs.submit({
    pool: 'inference',
    kind,
    tenant: 'key_1',
    model: 'm',
    body,
    stream: false,
    timeoutMs: 30_000,
    requestId: 'req_1',
    traceparent: undefined,
    merge: sayKind.merge,
    isOutput: () => true,
  })
}

describe('unknown fields of a newer version', () => {
  it('are removed from jobs, replies, heartbeats, events and bodies at every depth', () => {
    const job = { ...envelopeOf(), reply: { boot: 'ing_1', shard: 0 } }
    expect(readJob(bufferOf({ ...job, more: 1, reply: { ...job.reply, more: 1 } }))).toEqual(job)
    const error = { code: 'timeout', message: 'No.', param: null }
    const failed: JobEvent = { type: 'failed', job_id: 'job_1', attempt: 1, seq: 2, error: error as never }
    const reply = { worker: 'wrk_1', events: [failed] }
    expect(readReply(bufferOf(withFutureFields(reply)))).toEqual({ ...reply, skipped: [] })
    const beat = { type: 'heartbeat', boot: 'b', role: 'code', slots: 1, running: 0, draining: false, version: '9' }
    expect(readControl(bufferOf(withFutureFields(beat)))).toEqual(beat)
    const event = { job_id: 'job_1', seq: 1, attempt: 0, type: 'job.queued', data: null, at_ms: 1 }
    const events = { last_seq: 1, events: [event] }
    expect(readEvents(bufferOf(withFutureFields(events)))).toEqual({ events: [event], skipped: [] })
    for (const [schema, body] of BODIES) {
      expect(schema.safeParse(withFutureFields(body)).success).toBe(false)
      expect(tolerant(schema).parse(withFutureFields(body))).toEqual(schema.parse(body))
    }
  })

  it('remain in a stored request', () => {
    const encode = { request_id: 'r', call_id: 'c', created_at: 1, model: 'm', include_usage: false, version: '' }
    const stored = { body: {}, encode: { ...encode, dialect_of_the_future: 'x' }, more: 1 }
    expect(readStored(stored)).toEqual(stored)
    expect(() => readStored({ ...stored, encode: { ...encode, model: 7 } })).toThrow()
  })

  it('do not weaken the validation of known fields', () => {
    expect(readJob(bufferOf({ ...envelopeOf(), pool: 'elsewhere' }))).toBeUndefined()
    expect(readControl(bufferOf({ type: 'cancel', job_id: 7 }))).toBeUndefined()
    for (const garbage of ['', 'null', '[]', '7', '{}', '{"events":7}']) {
      const value = Buffer.from(garbage)
      expect([readJob(value), readReply(value), readControl(value), readEvents(value)]).toEqual(
        Array(4).fill(undefined),
      )
    }
  })
})

describe('a job that a worker does not support', () => {
  it.each([
    ['its kind', 'dance', {}],
    ['its body format', 'say', { form: 'future' }],
  ])('is run by another worker that supports %s', async (_what, kind, body) => {
    await openWorker(['say'], 10_000, 1)
    const knowing = await openWorker(['say', 'dance'])
    const jobs = await openIngress()
    const calls = await Promise.all(Array.from({ length: 6 }, () => submit(jobs, kind, body)))
    for (const call of calls) expect(await call.next()).toEqual([{ text: 'say,dance' }])
    expect(knowing.running).toBe(0)
  })

  it('becomes a dead letter and fails with overloaded if no worker supports it', async () => {
    const dead: Buffer[] = []
    await broker.receive(DEAD_LETTERS, [0], (record) => dead.push(record.value))
    await openWorker(['say'], 100)
    const jobs = await openIngress()
    const call = await submit(jobs, 'dance')
    await expect(call.next()).rejects.toMatchObject({
      code: 'overloaded',
      message: expect.stringContaining('No running worker supports this kind of request'),
      retryAfterMs: 30_000,
    })
    await until(() => dead.length === 1)
    await until(async () => (await broker.lag(QUEUE)) === 0)
  })

  it('is acknowledged without a requeue once its caller has disconnected', async () => {
    const worker = await openWorker(['say'], 60_000)
    const jobs = await openIngress()
    const call = await submit(jobs, 'dance')
    await until(() => worker.running === 1)
    jobs.cancel(call)
    await until(async () => (await broker.lag(QUEUE)) === 0)
    await until(() => worker.running === 0)
  })

  it('delays later jobs only until it is requeued', async () => {
    await openWorker(['say'], 300, 2)
    const jobs = await openIngress()
    const foreign = await Promise.all(Array.from({ length: 5 }, () => submit(jobs, 'dance')))
    const known = await Promise.all(Array.from({ length: 5 }, () => submit(jobs, 'say')))
    for (const call of known) expect(await call.next()).toEqual([{ text: 'say' }])
    for (const call of foreign) await expect(call.next()).rejects.toMatchObject({ code: 'overloaded' })
  })

  it('is acknowledged if it is durable, because the store publishes it again', async () => {
    await openWorker(['say'], 50)
    const { reply: _reply, ...durable } = envelopeOf({ kind: 'dance', attempt: 0 })
    await broker.submit(QUEUE, bufferOf(durable satisfies JobEnvelope))
    await until(async () => (await broker.lag(QUEUE)) === 0)
  })
})

describe('events of a newer worker', () => {
  it('are skipped without a gap in the sequence if their type is unknown', async () => {
    const jobs = await openIngress()
    const call = await submit(jobs, 'say')
    const head = { job_id: call.id, attempt: 1 }
    const events = [
      { ...head, type: 'started', seq: 1 },
      { ...head, type: 'warmed_up', seq: 2, heat: 9 },
      { ...head, type: 'delta', seq: 3, deltas: [{ text: 'hello' }] },
      'not even an event',
      { ...head, type: 'completed', seq: 4, deltas: [] },
    ]
    await broker.send(REPLIES, replyShard(jobs.boot), jobs.boot, bufferOf({ worker: 'wrk_9', events }))
    expect(await call.next()).toEqual([{ text: 'hello' }])
    expect(await call.next()).toBeUndefined()
  })

  it('fail the call with internal_error and the original message if the error code is unknown', async () => {
    const jobs = await openIngress()
    const call = await submit(jobs, 'say')
    const head = { job_id: call.id, attempt: 1 }
    const error = { code: 'out_of_ink', message: 'The ink has run out.', param: null }
    const events = [
      { ...head, type: 'started', seq: 1 },
      { ...head, type: 'failed', seq: 2, error },
    ]
    await broker.send(REPLIES, replyShard(jobs.boot), jobs.boot, bufferOf({ worker: 'wrk_9', events }))
    await expect(call.next()).rejects.toMatchObject({ code: 'internal_error', message: 'The ink has run out.' })
  })

  it('leave the rest of the response unchanged if a delta type is unknown', () => {
    const events = [
      { type: 'start', model: 'm', input_tokens: 1 },
      { type: 'mood', choice: 7, mood: 'good' },
      { type: 'text', choice: 0, text: 'hello' },
      { type: 'finish', choice: 0, reason: 'stop' },
    ]
    const encode = { request_id: 'r', call_id: 'c', created_at: 1, model: 'm', include_usage: false, version: '' }
    expect(encodeChat(events as never, encode).choices).toMatchObject([{ index: 0, message: { content: 'hello' } }])
  })

  it('reach the subscribers of a durable job, except those of unknown type', async () => {
    const live = await LiveEvents.open(broker, silentLog)
    closers.push(() => live.close())
    const subscription = live.subscribe('job_1')
    const event = (seq: number, type: string) => ({ job_id: 'job_1', seq, attempt: 1, type, data: null, at_ms: 1 })
    const record = { last_seq: 2, events: [event(1, 'job.started'), event(2, 'job.moved_house')] }
    await broker.send(EVENTS, eventPartition('job_1'), 'job_1', bufferOf(record))
    await until(() => subscription.takeAfter(0).length === 1)
  })
})

describe('the control channel between different versions', () => {
  it('accepts heartbeats of newer versions and unknown roles, and ignores unknown message types', async () => {
    const self = { boot: 'me', role: 'ingress' as const, version: '1', slots: () => 0, running: () => 0 }
    const presence = await Presence.open({
      broker,
      log: silentLog,
      lostMs: 5_000,
      self: { ...self, isDraining: () => false },
      listener: {},
    })
    closers.push(() => presence.close())
    const beat = {
      type: 'heartbeat',
      boot: 'wrk_9',
      role: 'inference',
      slots: 3,
      running: 1,
      draining: false,
      version: '9',
    }
    for (const record of [
      { type: 'capacity', pool: 'x' },
      { ...beat, gpu: 'h900' },
      { ...beat, boot: 'new', role: 'gateway' },
    ])
      await broker.send(CONTROL, 0, '', bufferOf(record))
    await until(() => presence.peers.has('new'))
    expect(presence.freeSlots('inference')).toBe(2)
    expect(presence.peers.get('new')?.role).toBe('other')
  })

  it('logs each of the first 32 unknown message types, and one line for all others', () => {
    const lines: { count?: number }[] = []
    const skipped = new UnknownRecordLog({ warn: (fields: object) => lines.push(fields) } as unknown as Log)
    for (let i = 0; i < 10_000; i++) skipped.note('passed over', `type ${i % 100}`)
    // The first thirty-two unknown types have a log line each, and all further types share one line. The number of log lines is thus bounded.
    expect(lines).toHaveLength(33)
  })
})

describe('stored rows of a newer version', () => {
  it('are read with the error code internal_error if a job failed with an unknown code', () => {
    const job = jobOf({ error: JSON.stringify({ code: 'out_of_ink', message: 'No ink.', param: null, more: 1 }) })
    expect(job.error).toEqual({ code: 'internal_error', message: 'No ink.', param: null })
  })

  it('are ignored but written back unchanged if they are API keys with an unknown limit', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'sluice-keys-'))
    onTestFinished(() => rm(directory, { recursive: true, force: true }))
    const [plain, limited] = [newKey().key, newKey().key]
    const path = join(directory, 'keys.json')
    const future = { ...limited, only_on_sundays: true }
    await writeFile(path, JSON.stringify({ keys: [plain, future], note: 'of the future' }))
    const problems: string[] = []
    const keys = openFileKeys(directory, (problem) => problems.push(problem))
    // The key has the limit `only_on_sundays`, which this version cannot enforce. This version must therefore reject the key instead of ignoring
    // the limit.
    expect(await keys.list()).toEqual([plain])
    expect(problems.join()).toContain(`${limited.id}: Unrecognized key: "only_on_sundays"`)
    await keys.create(newKey().key)
    const written = JSON.parse(await readFile(path, 'utf8')) as { keys: object[]; note: string }
    expect(written.keys).toHaveLength(3)
    expect(written.keys[1]).toEqual(future)
    expect(written.note).toBe('of the future')
  })
})

const BODIES = [
  [
    GenerateRequest,
    {
      dialect: 'openai',
      model: 'm',
      turns: [{ role: 'user', parts: [{ type: 'text', text: 'hi' }] }],
      stream: false,
      tool_choice: { type: 'tool', name: 'look' },
      response_format: { type: 'json_object' },
    },
  ],
  [EmbedRequest, { model: 'm', inputs: ['a', [1, 2]] }],
  [
    TranscribeRequest,
    {
      model: 'm',
      audio: { base64: '', sha256: 'x', bytes: 1, format: 'wav' },
      speakers: [{ name: 'Ann', reference: '' }],
      vad: {},
    },
  ],
] as const
