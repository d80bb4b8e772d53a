/**
 * Mistakes that the simulation must find. Each is made by a decorator around the right code: as if this guard, this order
 * or this loop were missing.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { DurableEvent } from '#schemas/durable-job.ts'
import { EventsRecord } from '#schemas/event.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { isLast } from '#shared/jobs/durable/follow.ts'
import { EVENTS, eventPartition } from '#shared/jobs/topics.ts'
import { EVERY_TENANT, type HeldAttempt, type Moved, type Store } from '#shared/store/store.ts'
import type { Follow } from './clients.ts'
import { claimOldest } from './turns.ts'

/** Something broken on purpose. */
export interface Mutant {
  /** The store as a process sees it. @param broker As the process sees it */
  readonly storeFor?: (store: Store, broker: Broker) => Store
  readonly follow?: Follow
  /** The invariant that must be found violated; any, where none is named. */
  readonly breaks?: string
}

type Said = Pick<DurableEvent, 'type' | 'data'>
const COMPLETED: Said = { type: 'job.completed', data: null }

/** How long a careless follower listens before it looks into the store. */
const LISTEN_MS = 3_000

/** How long an end is known that is not committed. */
const UNCOMMITTED_MS = 500

/** By what is wrong. */
export const MUTANTS: Readonly<Record<string, Mutant>> = {
  'writes of a run are taken whatever attempt is under way': {
    storeFor: (store) =>
      changed(store, {
        append: async (run, output) => await store.append(await unfenced(store, run), output),
        complete: async (run, end) => await store.complete(await unfenced(store, run), end),
        fail: async (run, end) => await store.fail(await unfenced(store, run), end),
        retry: async (run, end) => await store.retry(await unfenced(store, run), end),
      }),
  },
  'a write that is made again is another write': {
    storeFor: (store) =>
      changed(store, {
        async append(run, output) {
          const job = await store.find(EVERY_TENANT, run.id)
          return await store.append({ ...run, chunk: job?.chunk ?? run.chunk }, output)
        },
      }),
  },
  'an end is published before it is committed': {
    storeFor: (store, broker) =>
      changed(store, {
        async complete(run, end) {
          const { job, events } = await pretended(store, run, [...(end.output ?? []), COMPLETED])
          const record: EventsRecord = { last_seq: job.last_seq + events.length, events: events.slice(-1) }
          void broker.send(EVENTS, eventPartition(run.id), run.id, Buffer.from(JSON.stringify(record))).catch(() => {})
          // Long enough that now and then a process or the store is lost in between.
          await delay(UNCOMMITTED_MS)
          return await store.complete(run, end)
        },
      }),
  },
  'refused writes are published': {
    storeFor: (store) =>
      changed(store, {
        append: async (run, output) => (await store.append(run, output)) ?? (await pretended(store, run, output)),
        complete: async (run, end) =>
          (await store.complete(run, end)) ?? (await pretended(store, run, [...(end.output ?? []), COMPLETED])),
      }),
  },
  'lost records are never published again': {
    storeFor: (store) => changed(store, { takeUnpublished: async () => [] }),
  },
  'whoever has waited longest is served first': {
    storeFor: (store) => changed(store, { claimNext: (...claim) => claimOldest(store, ...claim) }),
    breaks: 'I14',
  },
  'the turn always begins with the same tenant': {
    storeFor: (store) => changed(store, { claimNext: (of, boot, limit) => store.claimNext(of, boot, limit) }),
    breaks: 'I14',
  },
  'jobs are left with lost workers': {
    storeFor: (store) => changed(store, { reap: async () => [] }),
  },
  'jobs are taken from workers that live': {
    storeFor: (store) => changed(store, { reap: async () => await takeAnyJob(store) }),
  },
  'due jobs are not started': {
    storeFor: (store) => changed(store, { startDue: async () => [] }),
  },
  'nothing expires': {
    storeFor: (store) => changed(store, { expire: async () => [] }),
  },
  'idempotency keys are forgotten': {
    storeFor: (store) => changed(store, { create: (job) => store.create(job) }),
  },
  'a job that is submitted again is another job': {
    storeFor: (store) => {
      let count = 100
      const another = (id: string) => `${id.slice(0, -3)}${count++}`
      return changed(store, { create: (job, key) => store.create({ ...job, id: another(job.id) }, key) })
    },
  },
  'a cancel that was asked for is told as done': {
    storeFor: (store) =>
      changed(store, {
        async cancel(scope, id) {
          const moved = await store.cancel(scope, id)
          return moved && { ...moved, job: { ...moved.job, state: 'cancelled' } }
        },
      }),
  },
  'steps are forgotten': {
    storeFor: (store) => changed(store, { findStep: async () => undefined }),
  },
  'a child that is submitted again is another job': {
    storeFor: (store) => {
      let count = 100
      const another = (id: string) => `${id.slice(0, -3)}${count++}`
      return changed(store, {
        submitChild: (run, child) => store.submitChild(run, { ...child, id: another(child.id) }),
      })
    },
  },
  'the family of a job is not cancelled': {
    storeFor: (store) => changed(store, { cancelChildren: async () => [] }),
  },
  'nobody wakes a job whose children have ended': {
    storeFor: (store) => changed(store, { wake: async () => undefined }),
  },
  'a wake that was cut short is not made good': {
    storeFor: (store) => changed(store, { listUnsettled: async () => [] }),
  },
  'followers ignore gaps': { follow: followCarelessly },
}

/** A store of which some calls do something else. */
function changed(store: Store, other: Partial<Store>): Store {
  return new Proxy(store, {
    get(target, name) {
      if (Object.hasOwn(other, name)) return Reflect.get(other, name) as unknown
      const value = Reflect.get(target, name) as unknown
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

/** A run as if it were the one that is under way. */
async function unfenced(store: Store, run: HeldAttempt): Promise<HeldAttempt> {
  const job = await store.find(EVERY_TENANT, run.id)
  if (!job || job.attempt === run.attempt || job.owner === null) return run
  return { id: run.id, attempt: job.attempt, boot: job.owner, chunk: job.chunk }
}

/** What a write would give that is taken now. */
async function pretended(store: Store, { id, attempt }: HeldAttempt, output: readonly Said[]): Promise<Moved> {
  const job = await store.find(EVERY_TENANT, id)
  if (!job) throw new Error(`no job ${id}`)
  const at_ms = Date.now()
  const events = output.map(({ type, data }, index): DurableEvent => {
    return { job_id: id, seq: job.last_seq + 1 + index, attempt, type, data, at_ms }
  })
  return { job, events }
}

/** What a reaper does that believes an old reading. */
async function takeAnyJob(store: Store) {
  const { jobs } = await store.list(EVERY_TENANT, { limit: 1, states: ['in_progress'] })
  for (const { id, attempt, owner, chunk } of jobs) {
    const moved = owner === null ? undefined : await store.handBack({ id, attempt, boot: owner, chunk })
    const content = await store.findContent(EVERY_TENANT, id)
    if (moved) return [{ ...moved, request: content?.request }]
  }
  return []
}

/** Takes for the next event whatever comes next. */
async function* followCarelessly(
  { broker, store }: Parameters<Follow>[0],
  id: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<DurableEvent[]> {
  let heard: DurableEvent[] = []
  const receiver = await broker.receive(EVENTS, [eventPartition(id)], ({ key, value }) => {
    if (key === id) heard.push(...(EventsRecord.parse(JSON.parse(value.toString())).events ?? []))
  })
  for (let seq = after, quietMs = LISTEN_MS; !signal.aborted; ) {
    const stored = quietMs >= LISTEN_MS ? await store.listEvents(EVERY_TENANT, id, seq, 100).catch(() => []) : []
    const events = [...stored, ...heard].filter((event) => event.seq > seq)
    heard = []
    quietMs = events.length > 0 || quietMs >= LISTEN_MS ? 0 : quietMs + 50
    if (events.length > 0) yield events
    seq = events.at(-1)?.seq ?? seq
    if (events.some(isLast)) break
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  await receiver.close()
}
