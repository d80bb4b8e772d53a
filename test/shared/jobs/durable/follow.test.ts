import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { follow, LiveEvents } from '#shared/jobs/durable/follow.ts'
import { EVENTS, eventPartition } from '#shared/jobs/records.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Store } from '#shared/store/store.ts'
import { VirtualClock } from '../../../simulation/clock.ts'
import { openBroker, silentLog } from '../../../support/jobs/jobs.ts'

const ID = 'job_1'
/** A time that is longer than any polling interval of a follower. */
const LONG_MS = 20_000

let clock: VirtualClock
let restore: () => void
beforeEach(() => {
  clock = new VirtualClock()
  restore = clock.install(Math.random)
})
afterEach(() => restore())

/** Simulates the store for one job. The test commits events, and can make the store unreachable. */
class StoredJob {
  readonly events: DurableEvent[] = []
  isDown = false
  isGone = false
  /** Number of reads that the store has answered. */
  reads = 0
  readonly store = {
    listEvents: async (_scope: string, _id: string, after: number, limit: number) => {
      this.#refuseWhenDown()
      this.reads++
      return this.events.filter(({ seq }) => seq > after).slice(0, limit)
    },
    find: async () => {
      this.#refuseWhenDown()
      return this.isGone ? undefined : ({ erased_at_ms: null } as DurableJob)
    },
    isReachable: true,
  } as unknown as Store

  /** Commits the next events. If `isEnd` is true, then the last of them is the terminal event. */
  commit(count: number, isEnd = false): DurableEvent[] {
    const first = this.events.length + 1
    const events = Array.from({ length: count }, (_, index): DurableEvent => {
      const type = isEnd && index === count - 1 ? 'job.completed' : 'job.output.delta'
      return { job_id: ID, seq: first + index, attempt: 1, type, data: null, at_ms: 0 }
    })
    this.events.push(...events)
    return events
  }

  #refuseWhenDown(): void {
    if (this.isDown) throw new ServiceError('overloaded', 'The store is down.')
  }
}

/** A client that follows the job, with the events that it has received. */
class Follower {
  readonly seen: DurableEvent[] = []
  isDone = false
  readonly #job: StoredJob
  readonly #live: LiveEvents
  #cut = new AbortController()

  constructor(job: StoredJob, live: LiveEvents) {
    this.#job = job
    this.#live = live
    this.resume()
  }

  cut(): void {
    this.#cut.abort()
  }

  /** Connects again, and continues after the last received event. */
  resume(): void {
    this.cut()
    this.#cut = new AbortController()
    const { signal } = this.#cut
    const after = this.seen.at(-1)?.seq ?? 0
    const stream = follow({ live: this.#live, store: this.#job.store, scope: 'key_1', id: ID, after, signal })
    void this.#read(stream, signal)
  }

  async #read(stream: AsyncGenerator<DurableEvent[]>, signal: AbortSignal): Promise<void> {
    for await (const events of stream) {
      if (signal.aborted) return
      this.seen.push(...events)
    }
    if (!signal.aborted) this.isDone = true
  }
}

async function arrange() {
  const broker = await openBroker()
  const job = new StoredJob()
  const follower = new Follower(job, await LiveEvents.open(broker, silentLog))
  return { broker, job, follower }
}

function publish(broker: Broker, events: readonly DurableEvent[], isAnnounced = false): void {
  const record = { last_seq: events.at(-1)?.seq, ...(!isAnnounced && { events }) }
  void broker.send(EVENTS, eventPartition(ID), ID, Buffer.from(JSON.stringify(record)))
}

const pass = (ms: number) => clock.run(clock.nowMs + ms)

/** Generates a random step. Either events are committed, or a commit is published (perhaps late, twice or never), or time passes. */
const anyStep = fc.oneof(
  fc.record({ do: fc.constant('commit' as const), count: fc.integer({ min: 1, max: 4 }), isPublished: fc.boolean() }),
  fc.record({ do: fc.constant('publish' as const), which: fc.nat(20), isAnnounced: fc.boolean() }),
  fc.record({ do: fc.constant('wait' as const), ms: fc.integer({ min: 0, max: 3_000 }) }),
  fc.record({ do: fc.constant('outage' as const), isDown: fc.boolean() }),
  fc.record({ do: fc.constant('cut' as const), isBack: fc.boolean() }),
)

describe('a subscriber of the events of a durable job', () => {
  it('receives every event once and in order for any interleaving of stored and live events', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(anyStep, { maxLength: 40 }), async (steps) => {
        const { broker, job, follower } = await arrange()
        const commits: DurableEvent[][] = []
        for (const step of steps) {
          if (step.do === 'commit') commit(step)
          else if (step.do === 'publish') publishAgain(step)
          else if (step.do === 'wait') await pass(step.ms)
          else if (step.do === 'outage') job.isDown = step.isDown
          else step.isBack ? follower.resume() : follower.cut()
        }
        function commit(step: { count: number; isPublished: boolean }) {
          const events = job.commit(step.count)
          commits.push(events)
          if (step.isPublished) publish(broker, events)
        }
        function publishAgain(step: { which: number; isAnnounced: boolean }) {
          const events = commits[step.which % Math.max(1, commits.length)]
          if (events) publish(broker, events, step.isAnnounced)
        }
        job.isDown = false
        job.commit(1, true)
        follower.resume()
        await pass(LONG_MS)
        expect(follower.seen).toEqual(job.events)
        expect(follower.isDone).toBe(true)
      }),
      { numRuns: 300 },
    )
  })

  it('receives live events while the store is unreachable', async () => {
    const { broker, job, follower } = await arrange()
    await pass(0)
    job.isDown = true
    publish(broker, job.commit(2))
    await pass(0)
    expect(follower.seen).toEqual(job.events)
  })

  it('receives missed events once its reads of the store succeed again', async () => {
    const { job, follower } = await arrange()
    job.isDown = true
    await pass(LONG_MS)
    expect(follower.isDone).toBe(false)
    job.isDown = false
    job.commit(1, true)
    await pass(LONG_MS)
    expect(follower.seen).toEqual(job.events)
  })

  it('reads the store at once if a notification announces events or reveals a gap', async () => {
    const { broker, job, follower } = await arrange()
    await pass(0)
    publish(broker, job.commit(3), true)
    await pass(0)
    expect(follower.seen).toHaveLength(3)
    job.commit(2)
    publish(broker, job.commit(1))
    await pass(0)
    expect(follower.seen).toEqual(job.events)
  })

  it('polls the store with growing intervals while no event arrives', async () => {
    const { job } = await arrange()
    await pass(1_000)
    const early = job.reads
    await pass(LONG_MS)
    const before = job.reads
    await pass(10_000)
    expect(early).toBeGreaterThanOrEqual(2)
    expect(job.reads - before).toBe(2)
  })

  it('reads from the store the live events that do not fit into its buffer', async () => {
    const { broker, job } = await arrange()
    const live = await LiveEvents.open(broker, silentLog)
    const { signal } = new AbortController()
    const stream = follow({ live, store: job.store, scope: 'key_1', id: ID, after: 0, signal })
    job.commit(1)
    const seen: DurableEvent[] = [...((await stream.next()).value as DurableEvent[])]
    for (let i = 0; i < 700; i++) publish(broker, job.commit(1))
    publish(broker, job.commit(1, true))
    await pass(0)
    const rest = (async () => {
      for await (const events of stream) seen.push(...events)
    })()
    await pass(LONG_MS)
    await rest
    expect(seen).toEqual(job.events)
  })

  it('yields to timers between the pages of a long history', async () => {
    const { job, follower } = await arrange()
    await pass(0)
    job.commit(1_000, true)
    const reads = new Set<number>()
    const turn = () => {
      reads.add(job.reads)
      if (!follower.isDone) setImmediate(turn)
    }
    follower.resume()
    turn()
    await pass(LONG_MS)
    expect(follower.seen).toEqual(job.events)
    expect(reads.size).toBeGreaterThan(4)
  })

  it('ends its subscription if the job is deleted', async () => {
    const { job, follower } = await arrange()
    job.isGone = true
    await pass(LONG_MS)
    expect(follower.isDone).toBe(true)
  })
})
