import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import type { DurableJobs, NewDurableJob } from '#shared/jobs/durable/durable.ts'
import { isLast, TERMINAL } from '#shared/jobs/durable/follow.ts'
import { EVERY_TENANT, type IdempotencyKey, type StoreView } from '#shared/store/store.ts'
import type { Random } from '../chaos/load/random.ts'
import type { VirtualClock } from './clock.ts'
import type { Fleet } from './fleet.ts'
import { type History, shortOf } from './history.ts'
import type { SimulatedProcess } from './simulated-process.ts'
import type { Wish } from './wish.ts'

/** How long a client waits for an answer, and how often it asks again. */
const ANSWER_MS = 8_000
const TRIES_MAX = 30
const KEY_KEEP_MS = 86_400_000

/** What clients were told, for the check. */
export interface Told {
  /** Ids of accepted jobs, by what was asked for: with a key there may be one only. */
  readonly accepted: Map<Wish, Set<string>>
  /** How often each was asked for. */
  readonly asked: Map<Wish, number>
  /** Everything each follower saw. */
  readonly followed: { id: string; events: DurableEvent[] }[]
  /** Jobs that were said to be cancelled, and jobs as they were said to have ended. */
  readonly cancelled: Set<string>
  readonly ended: DurableJob[]
}

/** An answer got lost: what was asked for may have happened. */
const LOST = Symbol('answer lost')

/** How a job is followed in an ingress; {@link DurableJobs.follow} unless a mutant takes its place. */
export type Follow = (
  ingress: Omit<Ingress, 'process'>,
  id: string,
  after: number,
  signal: AbortSignal,
) => AsyncGenerator<DurableEvent[]>

interface ClientOptions {
  readonly clock: VirtualClock
  readonly fleet: Fleet
  readonly history: History
  readonly random: Random
  readonly follow: Follow
}

/** The callers of a simulation. They outlive every process, and ask another one when theirs is gone. */
export class Clients {
  readonly told: Told = { accepted: new Map(), asked: new Map(), followed: [], cancelled: new Set(), ended: [] }
  readonly #options: ClientOptions
  #busy = 0

  constructor(options: ClientOptions) {
    this.#options = options
  }

  /** Whether any of them still waits for something. */
  get isBusy(): boolean {
    return this.#busy > 0
  }

  /** A client that submits a job, and then does with it what chance wants. */
  begin(wish: Wish): void {
    void this.#doing(async () => {
      const { random } = this.#options
      const copies = wish.hasKey && random.chance(0.3) ? random.between(2, 3) : 1
      const ids = await Promise.all(Array.from({ length: copies }, () => this.#submit(wish)))
      const id = ids.find((each) => each !== undefined)
      if (id === undefined) return
      if (wish.hasKey && random.chance(0.2)) void this.#doing(() => this.#submitOther(wish))
      if (random.chance(0.25)) void this.#doing(() => this.#cancel(id))
      if (random.chance(0.25)) void this.#doing(() => this.#wait(id))
      for (let count = random.between(0, 2); count > 0; count--) void this.#doing(() => this.#follow(id))
    })
  }

  async #doing(work: () => Promise<unknown>): Promise<void> {
    this.#busy++
    try {
      await work()
    } catch (error) {
      this.#options.history.violated(undefined, `a client was told ${error} (${(error as Error).stack})`)
    } finally {
      this.#busy--
    }
  }

  /** I9: every answer to equal requests names the same job. */
  async #submit(wish: Wish): Promise<string | undefined> {
    const { clock, history, random } = this.#options
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      this.told.asked.set(wish, (this.told.asked.get(wish) ?? 0) + 1)
      const created = await this.#ask((jobs) => jobs.create(this.#specOf(wish), keyOf(wish)))
      if (created === LOST || created instanceof ServiceError) {
        if (!wish.hasKey && created === LOST) return undefined
        await clock.sleep(random.between(100, 2_000))
        continue
      }
      if (created.outcome === 'conflict') {
        history.violated(created.jobId, 'I9: equal requests with one key were told apart')
        return undefined
      }
      const { id } = created.job
      const ids = this.told.accepted.get(wish) ?? new Set()
      this.told.accepted.set(wish, ids.add(id))
      history.note(id, () => `client: accepted ${wish.script.ref}, ${created.outcome}`)
      return id
    }
    return undefined
  }

  /** I9: another body under the same key is refused. */
  async #submitOther(wish: Wish): Promise<void> {
    const key = keyOf(wish)
    const other = key && { ...key, fingerprint: 'another' }
    const created = await this.#ask((jobs) => jobs.create(this.#specOf(wish), other))
    if (created === LOST || created instanceof ServiceError || created.outcome === 'conflict') return
    this.#options.history.violated(created.job.id, 'I9: one key was taken for two requests')
  }

  #specOf({ tenant, script, plan, isStream, isLow, deadlineInMs, startInMs, runInMs }: Wish): NewDurableJob {
    return {
      pool: 'inference',
      kind: plan ? 'compose' : 'say',
      tenant,
      endpoint: '/v1/chat/completions',
      model: 'echo-1',
      body: plan ?? script,
      stream: isStream,
      encode: { request_id: script.ref, model: 'echo-1', include_usage: false, version: '' },
      deadlineInMs,
      startInMs,
      runAtMs: runInMs === undefined ? undefined : this.#options.clock.databaseMs() + runInMs,
      priority: isLow ? 'low' : 'normal',
      metadata: { ref: script.ref },
      traceparent: undefined,
    }
  }

  async #cancel(id: string): Promise<void> {
    const { clock, history, random } = this.#options
    await clock.sleep(random.between(0, 10_000))
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      const job = await this.#ask((jobs) => jobs.cancel(EVERY_TENANT, id))
      if (job instanceof ServiceError && job.code === 'job_already_finished') return
      if (job === LOST || job instanceof ServiceError) {
        await clock.sleep(random.between(100, 2_000))
        continue
      }
      history.note(id, () => `client: asked to cancel, told ${job.state}`)
      if (job.state === 'cancelled') this.told.cancelled.add(id)
      return
    }
  }

  async #wait(id: string): Promise<void> {
    for (;;) {
      const signal = this.#abortIn(20_000)
      const job = await this.#ask((jobs) => jobs.waitForEnd(EVERY_TENANT, id, signal), 25_000)
      if (job === LOST || job instanceof ServiceError || !TERMINAL.has(job.state)) {
        await this.#options.clock.sleep(500)
        continue
      }
      this.told.ended.push(job)
      return
    }
  }

  /** Follows to the end, here and there, with cuts in between and without reading at times. */
  async #follow(id: string): Promise<void> {
    const { clock, random } = this.#options
    const events: DurableEvent[] = []
    this.told.followed.push({ id, events })
    await clock.sleep(random.between(0, 3_000))
    while (!isEnded(events)) {
      const ingress = this.#anyIngress()
      if (ingress) await this.#followAt(ingress, id, events)
      await clock.sleep(random.between(0, 500))
    }
  }

  async #followAt(ingress: Ingress, id: string, events: DurableEvent[]): Promise<void> {
    const { clock, follow, history, random } = this.#options
    const cutInMs = random.chance(0.5) ? random.between(0, 8_000) : 600_000
    const cut = new AbortController()
    const cutAtMs = clock.nowMs + cutInMs
    clock.at(cutAtMs, () => cut.abort())
    const lastSeq = events.at(-1)?.seq ?? 0
    const { process } = ingress
    const stream = process.run(() => follow(ingress, id, lastSeq, cut.signal))
    for (;;) {
      const next = await this.#answer(process, () => stream.next(), cutInMs + ANSWER_MS)
      if (next === LOST) return
      if (next instanceof ServiceError) throw next
      if (next.done) {
        const isCut = clock.nowMs >= cutAtMs
        if (!isCut && !isEnded(events)) history.violated(id, `I6: a follower was left after ${events.length} events`)
        return
      }
      for (const event of next.value) this.#onEvent(id, events, event)
      if (random.chance(0.1)) await clock.sleep(random.between(0, 4_000))
    }
  }

  /** I6: one number after the other, and nothing after the last. */
  #onEvent(id: string, events: DurableEvent[], event: DurableEvent): void {
    const { history } = this.#options
    history.note(id, () => `follower: ${shortOf(event)}`)
    const expected = (events.at(-1)?.seq ?? 0) + 1
    if (event.seq !== expected) history.violated(id, `I6: a follower got event ${event.seq} instead of ${expected}`)
    if (isEnded(events)) history.violated(id, `I6: a follower got event ${event.seq} after the last`)
    events.push(event)
  }

  /** Asks any ingress; what it refuses with is an answer too. */
  async #ask<T>(ask: (jobs: DurableJobs) => Promise<T>, withinMs = ANSWER_MS): Promise<T | ServiceError | typeof LOST> {
    const ingress = this.#anyIngress()
    if (!ingress) return new ServiceError('overloaded', 'There is no ingress.')
    return await this.#answer(ingress.process, () => ask(ingress.jobs), withinMs)
  }

  #anyIngress(): Ingress | undefined {
    const open = this.#options.fleet
      .of('ingress')
      .flatMap(({ jobs, ...member }): Ingress[] => (jobs ? [{ ...member, jobs }] : []))
    return open.length === 0 ? undefined : this.#options.random.pick(open as [Ingress, ...Ingress[]])
  }

  /** What a process answers, unless it dies or takes too long. @throws What is not a refusal */
  async #answer<T>(
    process: SimulatedProcess,
    ask: () => Promise<T>,
    withinMs: number,
  ): Promise<T | ServiceError | typeof LOST> {
    const { clock } = this.#options
    return await new Promise((resolve, reject) => {
      void process.died.then(() => resolve(LOST))
      clock.at(clock.nowMs + withinMs, () => resolve(LOST))
      process.run(ask).then(resolve, (error: unknown) => {
        if (error instanceof ServiceError && error.code !== 'internal_error') resolve(error)
        else reject(error)
      })
    })
  }

  #abortIn(ms: number): AbortSignal {
    const { clock } = this.#options
    const timer = new AbortController()
    clock.at(clock.nowMs + ms, () => timer.abort())
    return timer.signal
  }
}

interface Ingress {
  readonly process: SimulatedProcess
  readonly broker: Broker
  readonly store: StoreView
  readonly jobs: DurableJobs
}

function isEnded(events: readonly DurableEvent[]): boolean {
  const last = events.at(-1)
  return last !== undefined && isLast(last)
}

function keyOf({ hasKey, script }: Wish): IdempotencyKey | undefined {
  if (!hasKey) return undefined
  return { scope: 'POST /v1/jobs', key: script.ref, fingerprint: 'one', keepMs: KEY_KEEP_MS }
}
