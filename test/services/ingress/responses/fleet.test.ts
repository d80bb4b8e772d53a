/* Tests of background responses on a real fleet: several ingresses, workers that are killed, Kafka and Postgres. */

import { dirname, join } from 'node:path'
import OpenAI from 'openai'
import type { ResponseStreamEvent } from 'openai/resources/responses/responses'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { openPostgresDatabase, type TestDatabase } from '../../../support/jobs/stores.ts'
import { type Fleet, openFleet, type RoleProcess } from '../../../support/processes/fleet.ts'
import { SANDBOX_DIR, SANDBOX_MISSING } from '../../../support/sandbox/sandbox.ts'
import { TEST_KEY, until } from '../../../support/stack.ts'

const kafka = inject('kafka')
const postgres = inject('postgres')

/**
 * Number of tool calls of a response. The four events of a tool call are never merged, so the number of events does not depend on timing.
 */
const CALLS = 49
/** Number of events of a response: created, queued, in progress and completed, and four events per tool call. */
const EVENTS = 4 + 4 * CALLS
const SCRIPT = `!echo call=look args=1 calls=${CALLS} delay_ms=10`
/**
 * Number of events between two positions at which the test cuts a stream and resumes it. With `SLUICE_TEST_EVERY_EVENT=1`, every position is tested.
 */
const EVERY = process.env.SLUICE_TEST_EVERY_EVENT === '1' ? 1 : 10
const CUTS = Array.from({ length: EVENTS }, (_, at) => at + 1).filter((cut) => cut <= 4 || cut % EVERY === 0)
/** Number of responses whose streams the test cuts at the same time. */
const AT_ONCE = 10
/** Maximum number of staggered responses. The responses start 150 ms apart, so that each is at a different event when its process is killed. */
const STAGGERED = 40
const STAGGER_MS = 150
const SLOW_SCRIPT = `!echo call=look args=1 calls=20 first_ms=${5 * STAGGER_MS} delay_ms=${STAGGER_MS}`
/**
 * Number of code runs of a response with CODE_SCRIPT. The response makes one model call before each code run, and one after the last code
 * run. Each model call first streams text for longer than two publishing intervals.
 */
const RUNS = 3
const SAID = 'Let me see what the code says of it.'
const CODE = "import time\ntime.sleep(0.3)\nprint('done')"
const CODE_SCRIPT = `!echo call=code_interpreter rounds=${RUNS} first_ms=300 delay_ms=60 text=${JSON.stringify(SAID)} args=${JSON.stringify(JSON.stringify({ code: CODE }))}`
/** Timeout of a test in ms. On a busy machine, the start of each process takes ten seconds. */
const TEST_MS = 300_000
/** Timeout of a response in ms, longer than any pause of a stream in these tests. */
const SETTLES_MS = 120_000

type Event = ResponseStreamEvent

describe.skipIf(!kafka || !postgres)('a background response on a fleet', () => {
  let database: TestDatabase & { url: string }
  let fleet: Fleet
  let settings: Record<string, string>
  const ingresses: RoleProcess[] = []
  beforeAll(async () => {
    database = await openPostgresDatabase(postgres ?? '')
    fleet = await openFleet(kafka ?? '')
    settings = { DATABASE_URL: database.url, DATABASE_CONNECTIONS: '5', INFERENCE_SLOTS: '60' }
    const started = await Promise.all((['ingress', 'ingress', 'scheduler'] as const).map((role) => start(role)))
    ingresses.push(...started.slice(0, 2))
  }, TEST_MS)
  afterAll(async () => {
    await fleet?.[Symbol.asyncDispose]()
    await database?.[Symbol.asyncDispose]()
  }, TEST_MS)

  /**
   * Starts a process of the fleet.
   *
   * @param leaseMs Time after which the jobs of a dead or stopped worker run again
   */
  const start = (role: 'ingress' | 'scheduler' | 'inference' | 'code', leaseMs = 60_000, more = {}) =>
    fleet.start(role, { ...settings, JOB_LEASE_MS: String(leaseMs), ...more })
  const clientOf = (at: number) =>
    new OpenAI({ apiKey: TEST_KEY, baseURL: `${ingresses[at]?.url}/v1`, maxRetries: 0, timeout: SETTLES_MS })
  const begin = (at: number, input: string) =>
    clientOf(at).responses.create({ model: 'echo-1', input, background: true, stream: true })
  const goOn = (at: number, id: string, starting_after?: number) =>
    clientOf(at).responses.retrieve(id, { stream: true, ...(starting_after !== undefined && { starting_after }) })
  /**
   * Starts responses one after the other, until the first one has more than 30 events. Reads their streams in the background, and returns when
   * each response has an event.
   */
  const beginMany = async (at: number) => {
    const reads: Reading[] = []
    for (let begun = 0; begun < STAGGERED; begun++) {
      reads.push(readOn(await begin(at, SLOW_SCRIPT)))
      await new Promise((resolve) => setTimeout(resolve, STAGGER_MS))
      if ((reads[0]?.events.length ?? 0) > 30) break
    }
    await until(() => reads.every(({ events }) => events.length > 0), { withinMs: SETTLES_MS })
    return reads
  }
  /** Kills a process and waits for its end. */
  const kill = async (process: RoleProcess) => {
    process.kill('SIGKILL')
    await process.exited
  }

  it(
    'can be resumed at another ingress after any event, with each event once and in order',
    async () => {
      const worker = await start('inference')
      const cutAt = async (cut: number) => {
        const seen = await read(await begin(0, SCRIPT), cut)
        const id = idOf(seen)
        const both = [...seen, ...(await read(await goOn(1, id, seen.at(-1)?.sequence_number)))]
        requireWhole(both)
        expect([seen.length, both.length]).toEqual([cut, EVENTS])
        expect(await read(await goOn(0, id)), `events at another ingress after event ${cut}`).toEqual(both)
        const { output } = await clientOf(1).responses.retrieve(id)
        expect(both.at(-1)).toMatchObject({ response: { id, output } })
      }
      for (let at = 0; at < CUTS.length; at += AT_ONCE) await Promise.all(CUTS.slice(at, at + AT_ONCE).map(cutAt))
      await kill(worker)
    },
    TEST_MS * 2,
  )

  it(
    'can be resumed at another ingress if the first ingress is killed',
    async ({ annotate }) => {
      const [worker, doomed] = await Promise.all([start('inference'), start('ingress')])
      ingresses.push(doomed)
      const reads = await beginMany(2)
      const { id: conversation } = await clientOf(2).conversations.create()
      const asked = { model: 'echo-1', conversation, input: '!echo first_ms=3000\nhello', background: true }
      const { id: last } = await clientOf(2).responses.create(asked)
      await kill(doomed)
      const places = new Set<number>()
      for (const { events, broken } of reads) {
        await broken
        places.add(events.length)
        const id = idOf(events)
        const both = [...events, ...(await read(await goOn(0, id, events.at(-1)?.sequence_number)))]
        requireWhole(both)
        expect(await read(await goOn(1, id))).toEqual(both)
      }
      await until(async () => (await clientOf(0).responses.retrieve(last)).status === 'completed', {
        withinMs: SETTLES_MS,
      })
      // If a process died before it added the items of a response to the conversation, then the next read of the response adds them.
      const items = await Promise.all(
        [0, 1].map(async (at) => await clientOf(at).conversations.items.list(conversation)),
      )
      for (const { data } of items) expect(data).toMatchObject([{ role: 'assistant' }, { role: 'user' }])
      await annotate(`killed at ${places.size} events`)
      expect(places.size).toBeGreaterThan(3)
      await kill(worker)
    },
    TEST_MS,
  )

  it(
    'is streamed completely if its worker is killed after any event',
    async ({ annotate }) => {
      const doomed = await start('inference', 5_000)
      const reads = await beginMany(0)
      await kill(doomed)
      const places = new Map(reads.map((reading) => [reading, reading.events.length]))
      const next = await start('inference')
      let broke = 0
      for (const [{ events, broken }, place] of places) {
        const error = await broken
        // A stream never repeats output. If output was published before the worker was killed, then the stream ends with an error. The next
        // stream has the whole output.
        if (error) expect(error.message).toContain('started over')
        else requireWhole(events)
        if (error) broke++
        if (place < 3) expect(error, `error of the stream whose worker was killed at event ${place}`).toBeUndefined()
        const id = idOf(events)
        const again = await read(await goOn(1, id))
        requireWhole(again)
        const ended = await clientOf(0).responses.retrieve(id)
        expect(again.at(-1)).toMatchObject({ response: { id, output: ended.output } })
        expect(ended).toMatchObject({ status: 'completed', output: { length: 20 } })
      }
      const points = new Set(places.values())
      await annotate(`killed at ${points.size} events, ${broke} of ${reads.length} streams broke off`)
      expect(points.size).toBeGreaterThan(3)
      expect(broke).toBeGreaterThan(0)
      await kill(next)
    },
    TEST_MS,
  )

  it.skipIf(SANDBOX_MISSING !== undefined)(
    'with code runs is streamed completely if its worker is killed, and repeats no code run',
    async ({ annotate }) => {
      const sandbox = { SANDBOX: 'zygote', DATA_DIR: dirname(SANDBOX_DIR), BLOB_DIR: join(fleet.dataDir, 'blobs') }
      const coding = await start('code', 60_000, sandbox)
      const doomed = await start('inference', 5_000)
      const tools = [{ type: 'code_interpreter' as const, container: { type: 'auto' as const } }]
      const asked = { model: 'echo-1', input: CODE_SCRIPT, tools, background: true, stream: true as const }
      const reads: Reading[] = []
      for (let begun = 0; begun < STAGGERED / 2; begun++) {
        reads.push(readOn(await clientOf(0).responses.create(asked)))
        await new Promise((resolve) => setTimeout(resolve, STAGGER_MS))
      }
      await until(() => reads.some(({ events }) => events.length > EVENTS_A_RUN), { withinMs: SETTLES_MS })
      await kill(doomed)
      const points = new Set(reads.map(({ events }) => events.length))
      const amidText = reads.filter(({ events }) => events.at(-1)?.type === 'response.output_text.delta').length
      const next = await start('inference')
      for (const { events, broken } of reads) {
        expect(await broken).toBeUndefined()
        requireWhole(events)
        const id = idOf(events)
        expect(await read(await goOn(1, id))).toEqual(events)
        const ended = await clientOf(1).responses.retrieve(id)
        expect(events.at(-1)).toMatchObject({ response: { id, status: 'completed', output: ended.output } })
        const round = ['message', 'code_interpreter_call']
        expect(ended.output.map(({ type }) => type)).toEqual([...Array(RUNS).fill(round).flat(), 'message'])
        for (const [at, item] of ended.output.entries()) {
          if (item.type === 'message') expect(saidOf(events, at)).toEqual([SAID, SAID])
        }
        const job = await clientOf(0).get(`/jobs/${id.replace('resp_', 'job_')}`)
        expect(job).toMatchObject({ children: { length: RUNS } })
      }
      await annotate(`killed at ${points.size} events, ${amidText} of ${reads.length} amid text`)
      expect(points.size).toBeGreaterThan(1)
      expect(amidText).toBeGreaterThan(0)
      await Promise.all([kill(next), kill(coding)])
    },
    TEST_MS,
  )
})

/** Number of events that one code run adds to the stream. */
const EVENTS_A_RUN = 7

/** Returns the joined text deltas of one output item, and the final text of the item. */
function saidOf(events: readonly Event[], at: number): [deltas: string, done: string] {
  let [deltas, done] = ['', '']
  for (const event of events) {
    if (event.type === 'response.output_text.delta' && event.output_index === at) deltas += event.delta
    if (event.type === 'response.output_text.done' && event.output_index === at) done += event.text
  }
  return [deltas, done]
}

async function read(stream: AsyncIterable<Event>, most = Number.POSITIVE_INFINITY): Promise<Event[]> {
  const events: Event[] = []
  for await (const event of stream) {
    events.push(event)
    if (events.length === most) break
  }
  return events
}

/** A stream that is read in the background. `events` grows as events arrive. */
interface Reading {
  readonly events: Event[]
  /** Resolves at the end of the stream: with an error if the connection broke. */
  readonly broken: Promise<Error | undefined>
}

function readOn(stream: AsyncIterable<Event>): Reading {
  const events: Event[] = []
  const reading = async () => {
    for await (const event of stream) events.push(event)
  }
  const broken = reading().then(
    () => undefined,
    (error: Error) => error,
  )
  return { events, broken }
}

function idOf([created]: readonly Event[]): string {
  return created?.type === 'response.created' ? created.response.id : ''
}

/** Checks that a stream has each event once and in order, from `response.created` to `response.completed`. */
function requireWhole(events: readonly Event[]): void {
  const numbers = events.map(({ sequence_number }) => sequence_number)
  expect(numbers).toEqual([...new Set(numbers)].sort((a, b) => a - b))
  const types = events.map(({ type }) => type)
  expect(types.slice(0, 3)).toEqual(['response.created', 'response.queued', 'response.in_progress'])
  expect(types.at(-1)).toBe('response.completed')
  for (const type of ['response.output_item.added', 'response.function_call_arguments.done'] as const) {
    const places = events.flatMap((event) => (event.type === type ? [event.output_index] : []))
    expect(places).toEqual(places.map((_, at) => at))
  }
}
