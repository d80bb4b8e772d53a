import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { DurableJobs, NewDurableJob } from '#shared/jobs/durable/durable.ts'
import { isLast, TERMINAL } from '#shared/jobs/durable/follow.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { ALL_TENANTS, type IdempotencyKey, type StoreView } from '#shared/store/store.ts'
import type { Random } from '../chaos/load/random.ts'
import type { VirtualClock } from './clock.ts'
import type { Fleet } from './fleet.ts'
import { type History, shortOf } from './history.ts'
import type { JobRequest } from './job-request.ts'
import type { SimulatedProcess } from './simulated-process.ts'

/** Timeout of a client's request, and maximum number of tries. */
const ANSWER_MS = 8_000
const TRIES_MAX = 30
const KEY_KEEP_MS = 86_400_000

/** Responses and events that clients received. */
export interface Received {
  /** For each request: ids of the jobs that responses named. A request with an idempotency key may have only one. */
  readonly accepted: Map<JobRequest, Set<string>>
  /** For each request: number of times that a client sent it. */
  readonly asked: Map<JobRequest, number>
  /** For each client that followed a job: the events that it received. */
  readonly followed: { id: string; events: DurableEvent[] }[]
  /** Ids of jobs that a response reported as cancelled. */
  readonly cancelled: Set<string>
  /** Jobs that had ended, as a response reported them. */
  readonly ended: DurableJob[]
}

/** Result of a request whose response was lost. The request may have been executed. */
const LOST = Symbol('answer lost')

/** Function that follows a job through an ingress: {@link DurableJobs.follow}, or a deliberately defective version of it (mutants.ts). */
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

/** The clients of a simulation. No fault hits a client. If the ingress of a client dies, then the client uses another one. */
export class Clients {
  readonly received: Received = { accepted: new Map(), asked: new Map(), followed: [], cancelled: new Set(), ended: [] }
  readonly #options: ClientOptions
  #busy = 0

  constructor(options: ClientOptions) {
    this.#options = options
  }

  /** Whether a client still has work to do, such as to submit, follow or cancel a job. */
  get isBusy(): boolean {
    return this.#busy > 0
  }

  /** Starts a client that submits a job. At random, the client then also follows the job, polls it or cancels it. */
  begin(request: JobRequest): void {
    void this.#doing(async () => {
      const { random } = this.#options
      const copies = request.hasKey && random.chance(0.3) ? random.between(2, 3) : 1
      const ids = await Promise.all(Array.from({ length: copies }, () => this.#submit(request)))
      const id = ids.find((each) => each !== undefined)
      if (id === undefined) return
      if (request.hasKey && random.chance(0.2)) void this.#doing(() => this.#submitOther(request))
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
      this.#options.history.violated(undefined, `a client received ${error} (${(error as Error).stack})`)
    } finally {
      this.#busy--
    }
  }

  /** Submits a job and retries on failure. Invariant I9: every response to the same request and key must name the same job. */
  async #submit(request: JobRequest): Promise<string | undefined> {
    const { clock, history, random } = this.#options
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      this.received.asked.set(request, (this.received.asked.get(request) ?? 0) + 1)
      const created = await this.#ask((jobs) => jobs.create(this.#specOf(request), keyOf(request)))
      if (created === LOST || created instanceof ServiceError) {
        if (!request.hasKey && created === LOST) return undefined
        await clock.sleep(random.between(100, 2_000))
        continue
      }
      if (created.outcome === 'conflict') {
        history.violated(created.jobId, 'I9: equal requests with one key got different jobs')
        return undefined
      }
      const { id } = created.job
      const ids = this.received.accepted.get(request) ?? new Set()
      this.received.accepted.set(request, ids.add(id))
      history.note(id, () => `client: accepted ${request.script.ref}, ${created.outcome}`)
      return id
    }
    return undefined
  }

  /** Repeats a request with the same idempotency key, but another body. Invariant I9: such a request must be refused. */
  async #submitOther(request: JobRequest): Promise<void> {
    const key = keyOf(request)
    const other = key && { ...key, fingerprint: 'another' }
    const created = await this.#ask((jobs) => jobs.create(this.#specOf(request), other))
    if (created === LOST || created instanceof ServiceError || created.outcome === 'conflict') return
    this.#options.history.violated(created.job.id, 'I9: one key was accepted for two different requests')
  }

  #specOf({ tenant, script, plan, isStream, isLow, deadlineInMs, startInMs, runInMs }: JobRequest): NewDurableJob {
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
      const job = await this.#ask((jobs) => jobs.cancel(ALL_TENANTS, id))
      if (job instanceof ServiceError && job.code === 'job_already_finished') return
      if (job === LOST || job instanceof ServiceError) {
        await clock.sleep(random.between(100, 2_000))
        continue
      }
      history.note(id, () => `client: cancelled, response ${job.state}`)
      if (job.state === 'cancelled') this.received.cancelled.add(id)
      return
    }
  }

  async #wait(id: string): Promise<void> {
    for (;;) {
      const signal = this.#abortIn(20_000)
      const job = await this.#ask((jobs) => jobs.waitForEnd(ALL_TENANTS, id, signal), 25_000)
      if (job === LOST || job instanceof ServiceError || !TERMINAL.has(job.state)) {
        await this.#options.clock.sleep(500)
        continue
      }
      this.received.ended.push(job)
      return
    }
  }

  /** Follows a job to its end through several ingresses, with disconnects and pauses in reading. */
  async #follow(id: string): Promise<void> {
    const { clock, random } = this.#options
    const events: DurableEvent[] = []
    this.received.followed.push({ id, events })
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
        if (!isCut && !isEnded(events)) history.violated(id, `I6: a stream stopped after ${events.length} events`)
        return
      }
      for (const event of next.value) this.#onEvent(id, events, event)
      if (random.chance(0.1)) await clock.sleep(random.between(0, 4_000))
    }
  }

  /** Checks a received event. Invariant I6: event numbers are consecutive, and no event follows the terminal one. */
  #onEvent(id: string, events: DurableEvent[], event: DurableEvent): void {
    const { history } = this.#options
    history.note(id, () => `follower: ${shortOf(event)}`)
    const expected = (events.at(-1)?.seq ?? 0) + 1
    if (event.seq !== expected)
      history.violated(id, `I6: a follower received event ${event.seq} instead of ${expected}`)
    if (isEnded(events)) history.violated(id, `I6: a follower received event ${event.seq} after the terminal event`)
    events.push(event)
  }

  /** Sends a request to a random ingress. Returns the error if the ingress refuses the request. */
  async #ask<T>(ask: (jobs: DurableJobs) => Promise<T>, withinMs = ANSWER_MS): Promise<T | ServiceError | typeof LOST> {
    const ingress = this.#anyIngress()
    if (!ingress) return new ServiceError('overloaded', 'No ingress is running.')
    return await this.#answer(ingress.process, () => ask(ingress.jobs), withinMs)
  }

  #anyIngress(): Ingress | undefined {
    const open = this.#options.fleet
      .of('ingress')
      .flatMap(({ jobs, ...member }): Ingress[] => (jobs ? [{ ...member, jobs }] : []))
    return open.length === 0 ? undefined : this.#options.random.pick(open as [Ingress, ...Ingress[]])
  }

  /**
   * Waits for the response of a process. Returns LOST if the process dies or the request times out.
   *
   * @throws Every error that is not a refusal
   */
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

function keyOf({ hasKey, script }: JobRequest): IdempotencyKey | undefined {
  if (!hasKey) return undefined
  return { scope: 'POST /v1/jobs', key: script.ref, fingerprint: 'one', keepMs: KEY_KEEP_MS }
}
