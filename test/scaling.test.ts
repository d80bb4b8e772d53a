/**
 * Tests that calls are distributed evenly while workers start and stop. Every two seconds, one of up to six workers starts or stops, under load
 * of attached calls and durable jobs.
 *
 * Each worker calls the upstream on a path of its own, so the upstream counts the calls of each worker. For each call that is sent while n
 * workers are ready, the expected number of calls of each ready worker grows by 1/n. Only the long form, `SCALING_S=300`, compares the
 * counted with the expected numbers. In a run of a few seconds on a busy machine, the starts of processes distort the counted numbers.
 */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, inject, it } from 'vitest'
import { stringify } from 'yaml'
import { openPostgresDatabase } from './support/jobs/stores.ts'
import { type Fleet, openFleet, type RoleProcess } from './support/processes/fleet.ts'
import { type SeenCall, startUpstream } from './support/processes/upstream.ts'
import { TEST_KEY, until } from './support/stack.ts'

const [kafka, postgres] = [inject('kafka'), inject('postgres')]
const SCALING_MS = Number(process.env.SCALING_S ?? 12) * 1_000
const STEP_MS = 2_000
const WORKERS_MAX = 6
const CALL_INTERVAL_MS = 50
/** One of this many calls is a durable job; the others are attached. */
const JOB_EVERY = 10
/** Minimum duration of a run, in ms, for a comparison of the workers' shares. Shorter runs have too few calls. */
const COMPARABLE_MS = 60_000
/** Maximum deviation of a worker from the expected share, as a fraction of that share. */
const TOLERANCE = 0.3
const PATH = '/v1/chat/completions'

describe.skipIf(!kafka || !postgres)('workers that start and stop every two seconds', () => {
  it.each(['share', 'classic'])(
    'run each call once, and share the calls equally (KAFKA_CLIENT=%s)',
    { timeout: SCALING_MS + 180_000 },
    async (client) => {
      await using database = await openPostgresDatabase(postgres ?? '')
      await using upstream = await startUpstream(async ({ body }, answer) => {
        await sleep(40)
        answer.json(replyTo(textOf(body)))
      })
      await using fleet = await openFleet(kafka ?? '', [modelAt(`${upstream.url}/0`)])
      const settings = { KAFKA_CLIENT: client, DATABASE_URL: database.url, DATABASE_CONNECTIONS: '3' }
      const [ingress] = await Promise.all([fleet.start('ingress', settings), fleet.start('scheduler', settings)])
      const workers = new Workers(fleet, settings, upstream.url)
      await Promise.all(Array.from({ length: WORKERS_MAX }, () => workers.start()))
      const load = startLoad(fleet, ingress, workers)
      await until(() => load.ends.length > 40, { withinMs: 60_000 })
      await workers.scale(SCALING_MS)
      const ends = await load.stop()

      expect(
        ends.filter(({ end }) => end !== 'once'),
        'lost or wrong calls',
      ).toEqual([])
      const runs = Map.groupBy(upstream.calls, ({ body }) => textOf(body))
      const doubled = [...runs].flatMap(([text, { length }]) => (length === 1 ? [] : [text]))
      // With a classic consumer group on a busy machine, a worker may start a call only half a second after its delivery. The ingress may send the
      // call again in the meantime, so attached calls may run twice.
      const isFinal = (text: string) => client === 'share' || isDurable(text)
      expect(doubled.filter(isFinal), 'calls that ran several times').toEqual([])
      expect(runs.size, 'calls that ran').toBe(ends.length)
      const parts = workers.parts(upstream.calls)
      const counts = `${ends.length} calls, ${doubled.length} ran twice, ${workers.starts} starts`
      process.stderr.write(`${client}: ${counts}, parts ${parts.join(', ')}\n`)
      if (SCALING_MS < COMPARABLE_MS) return
      expect(Math.min(...parts), 'smallest part').toBeGreaterThan(1 - TOLERANCE)
      expect(Math.max(...parts), 'largest part').toBeLessThan(1 + TOLERANCE)
    },
  )
})

interface Place {
  process?: RoleProcess
  /** Number of calls that the workers of this place would have run if all calls were distributed equally. */
  expected: number
}

/**
 * Six numbered places, each for one worker at a time. The number is the path on which the worker calls the upstream. A new worker gets the
 * place that has been free for the longest time, so that all places are used equally.
 */
class Workers {
  readonly #places: Place[] = Array.from({ length: WORKERS_MAX }, () => ({ expected: 0 }))
  readonly #fleet: Fleet
  readonly #settings: Readonly<Record<string, string>>
  readonly #upstream: string
  /** Places without a worker, and places with a ready worker. In both lists, the place that has waited longest is first. */
  readonly #free = [...this.#places]
  readonly #ready: Place[] = []
  starts = 0

  constructor(fleet: Fleet, settings: Readonly<Record<string, string>>, upstream: string) {
    this.#fleet = fleet
    this.#settings = settings
    this.#upstream = upstream
  }

  async start(): Promise<void> {
    const place = this.#free.shift()
    if (!place) return
    this.starts++
    const name = String(this.#places.indexOf(place))
    const file = join(this.#fleet.dataDir, `models-${name}.yaml`)
    await writeFile(file, stringify({ models: [modelAt(`${this.#upstream}/${name}`)] }))
    place.process = await this.#fleet.start('inference', { ...this.#settings, MODELS_FILE: file })
    this.#ready.push(place)
  }

  async #stop(): Promise<void> {
    const place = this.#ready.shift()
    if (!place?.process) return
    place.process.kill('SIGTERM')
    const code = await place.process.exited
    expect(code, `exit code of a worker; its log ends with ${JSON.stringify(place.process.log.slice(-4))}`).toBe(0)
    this.#free.push(place)
  }

  /** Stops one worker after the other until one is left, then starts one after the other until all run, and repeats this. */
  async scale(durationMs: number): Promise<void> {
    const changes: Promise<void>[] = []
    let isDown = true
    for (const endAt = Date.now() + durationMs; Date.now() < endAt; await sleep(STEP_MS)) {
      if (this.#ready.length <= 1) isDown = false
      if (this.#ready.length === WORKERS_MAX) isDown = true
      changes.push(isDown ? this.#stop() : this.start())
    }
    await Promise.all(changes)
  }

  expectCall(): void {
    for (const place of this.#ready) place.expected += 1 / this.#ready.length
  }

  /** For each place: number of its calls, divided by the expected number. 1 means an equal share. */
  parts(calls: readonly SeenCall[]): number[] {
    return this.#places.map(({ expected }, name) => {
      const own = calls.filter(({ path }) => path.startsWith(`/${name}/`)).length
      return Math.round((own / expected) * 100) / 100
    })
  }
}

/** Sends calls at a constant rate. */
function startLoad(fleet: Fleet, ingress: RoleProcess, workers: Workers) {
  const ends: { readonly text: string; readonly end: string }[] = []
  const pending = new Set<Promise<unknown>>()
  let count = 0
  const timer = setInterval(() => {
    const text = `call ${++count}`
    workers.expectCall()
    const call = isDurable(text) ? callDurable(fleet, ingress, text) : callAttached(fleet, ingress, text)
    const ended = call
      .catch((error: unknown) => String((error as Error).cause ?? error))
      .then((end) => {
        ends.push({ text, end })
        pending.delete(ended)
      })
    pending.add(ended)
  }, CALL_INTERVAL_MS)
  return {
    ends,
    async stop() {
      clearInterval(timer)
      await Promise.all(pending)
      return ends
    },
  }
}

const isDurable = (text: string) => Number(text.split(' ')[1]) % JOB_EVERY === 0
const chat = (content: string) => ({ model: 'scaled-1', messages: [{ role: 'user', content }] })

async function callAttached(fleet: Fleet, ingress: RoleProcess, text: string): Promise<string> {
  const response = await fleet.post(ingress, PATH, chat(text), { signal: AbortSignal.timeout(60_000) })
  return outcomeOf(response.status, await response.text(), text)
}

async function callDurable(fleet: Fleet, ingress: RoleProcess, text: string): Promise<string> {
  const created = await fleet.post(ingress, '/v1/jobs', { endpoint: PATH, body: chat(text) })
  const { id } = (await created.json()) as { id: string }
  const headers = { authorization: `Bearer ${TEST_KEY}` }
  const read = async () => {
    const response = await fetch(`${ingress.url}/v1/jobs/${id}?wait=10`, { headers })
    const body = await response.text()
    return /"status":"(queued|in_progress)"/.test(body) ? '' : outcomeOf(response.status, body, text)
  }
  return await until(read, { withinMs: 60_000 })
}

/** Returns `once` if the answer is the expected text, otherwise the status and the answer. */
function outcomeOf(status: number, body: string, text: string): string {
  return status === 200 && body.includes(`"reply to ${text}"`) ? 'once' : `${status}: ${body.slice(0, 300)}`
}

const modelAt = (url: string) => ({ id: 'scaled-1', engine: { type: 'openai', base_url: `${url}/v1` } })

function textOf(body: SeenCall['body']): string {
  return (body.messages as { content: string }[])[0]?.content ?? ''
}

function replyTo(text: string) {
  const message = { role: 'assistant', content: `reply to ${text}` }
  const choices = [{ index: 0, message, finish_reason: 'stop' }]
  return { id: 'c1', object: 'chat.completion', created: 1, model: 'scaled-1', choices }
}
