/**
 * Mutants are deliberate defects. The simulation must detect each one, which shows that its checks work. A mutant wraps the correct code, and
 * removes one condition, one ordering or one background loop.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { DurableEvent } from '#schemas/durable-job.ts'
import { EventsRecord } from '#schemas/event.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { isLast } from '#shared/jobs/durable/follow.ts'
import { EVENTS, eventPartition } from '#shared/jobs/records.ts'
import { ALL_TENANTS, type HeldAttempt, type Store, type TransitionResult } from '#shared/store/store.ts'
import type { Follow } from './clients.ts'
import { claimOldest } from './fairness-check.ts'

/** A deliberate defect. */
export interface Mutant {
  /**
   * Returns the defective store that a process uses.
   *
   * @param broker The broker of that process
   */
  readonly storeFor?: (store: Store, broker: Broker) => Store
  readonly follow?: Follow
  /** The invariant that the mutant must violate. If undefined, then the mutant may violate any invariant. */
  readonly breaks?: string
}

type Said = Pick<DurableEvent, 'type' | 'data'>
const COMPLETED: Said = { type: 'job.completed', data: null }

/** Time for which the defective follower waits for records before it reads the store. */
const LISTEN_MS = 3_000

/** Delay between the publication of a job's end and its commit, which the mutant does in the wrong order. */
const UNCOMMITTED_MS = 500

/** All mutants. The key of each describes the defect. */
export const MUTANTS: Readonly<Record<string, Mutant>> = {
  'output of an older attempt is accepted': {
    storeFor: (store) =>
      changed(store, {
        append: async (run, output) => await store.append(await unfenced(store, run), output),
        complete: async (run, end) => await store.complete(await unfenced(store, run), end),
        fail: async (run, end) => await store.fail(await unfenced(store, run), end),
        retry: async (run, end) => await store.retry(await unfenced(store, run), end),
      }),
  },
  'a repeated write counts as a new write': {
    storeFor: (store) =>
      changed(store, {
        async append(run, output) {
          const job = await store.find(ALL_TENANTS, run.id)
          return await store.append({ ...run, chunk: job?.chunk ?? run.chunk }, output)
        },
      }),
  },
  'an end is published before its commit': {
    storeFor: (store, broker) =>
      changed(store, {
        async complete(run, end) {
          const { job, events } = await pretended(store, run, [...(end.output ?? []), COMPLETED])
          const record: EventsRecord = { last_seq: job.last_seq + events.length, events: events.slice(-1) }
          void broker.send(EVENTS, eventPartition(run.id), run.id, Buffer.from(JSON.stringify(record))).catch(() => {})
          // The delay is so long that in some runs the process or the store fails before the commit.
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
  'lost queue records are never republished': {
    storeFor: (store) => changed(store, { takeUnpublished: async () => [] }),
  },
  'jobs are claimed by age instead of by tenant': {
    storeFor: (store) => changed(store, { claimNext: (...claim) => claimOldest(store, ...claim) }),
    breaks: 'I14',
  },
  'every claim starts with the first tenant': {
    storeFor: (store) => changed(store, { claimNext: (of, boot, limit) => store.claimNext(of, boot, limit) }),
    breaks: 'I14',
  },
  'jobs are left with lost workers': {
    storeFor: (store) => changed(store, { reap: async () => [] }),
  },
  'jobs are taken from live workers': {
    storeFor: (store) => changed(store, { reap: async () => await takeAnyJob(store) }),
  },
  'scheduled jobs are not queued when due': {
    storeFor: (store) => changed(store, { startDue: async () => [] }),
  },
  'nothing expires': {
    storeFor: (store) => changed(store, { expire: async () => [] }),
  },
  'idempotency keys are ignored': {
    storeFor: (store) => changed(store, { create: (job) => store.create(job) }),
  },
  'a resubmitted job becomes a new job': {
    storeFor: (store) => {
      let count = 100
      const another = (id: string) => `${id.slice(0, -3)}${count++}`
      return changed(store, { create: (job, key) => store.create({ ...job, id: another(job.id) }, key) })
    },
  },
  'a requested cancel is reported as completed': {
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
  'a resubmitted child becomes a new child': {
    storeFor: (store) => {
      let count = 100
      const another = (id: string) => `${id.slice(0, -3)}${count++}`
      return changed(store, {
        submitChild: (run, child) => store.submitChild(run, { ...child, id: another(child.id) }),
      })
    },
  },
  'children are not cancelled with their parent': {
    storeFor: (store) => changed(store, { cancelChildren: async () => [] }),
  },
  'a parent is not woken when its children end': {
    storeFor: (store) => changed(store, { wake: async () => undefined }),
  },
  'an interrupted wake is not repeated': {
    storeFor: (store) => changed(store, { listUnsettled: async () => [] }),
  },
  'followers ignore gaps': { follow: followCarelessly },
}

/** Wraps a store, and replaces some of its methods. */
function changed(store: Store, other: Partial<Store>): Store {
  return new Proxy(store, {
    get(target, name) {
      if (Object.hasOwn(other, name)) return Reflect.get(other, name) as unknown
      const value = Reflect.get(target, name) as unknown
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

/** Replaces the attempt of a write by the job's current attempt, so that a write of an outdated attempt is accepted. */
async function unfenced(store: Store, run: HeldAttempt): Promise<HeldAttempt> {
  const job = await store.find(ALL_TENANTS, run.id)
  if (!job || job.attempt === run.attempt || job.owner === null) return run
  return { id: run.id, attempt: job.attempt, boot: job.owner, chunk: job.chunk }
}

/** Returns a response as if the store had accepted a write, but writes nothing. */
async function pretended(
  store: Store,
  { id, attempt }: HeldAttempt,
  output: readonly Said[],
): Promise<TransitionResult> {
  const job = await store.find(ALL_TENANTS, id)
  if (!job) throw new Error(`no job ${id}`)
  const at_ms = Date.now()
  const events = output.map(({ type, data }, index): DurableEvent => {
    return { job_id: id, seq: job.last_seq + 1 + index, attempt, type, data, at_ms }
  })
  return { job, events }
}

/** A defective sweep: takes a running job from its worker although the lease may be valid. */
async function takeAnyJob(store: Store) {
  const { jobs } = await store.list(ALL_TENANTS, { limit: 1, states: ['in_progress'] })
  for (const { id, attempt, owner, chunk } of jobs) {
    const moved = owner === null ? undefined : await store.handBack({ id, attempt, boot: owner, chunk })
    const content = await store.findContent(ALL_TENANTS, id)
    if (moved) return [{ ...moved, request: content?.request }]
  }
  return []
}

/** A defective follower that does not check whether event numbers have gaps. */
async function* followCarelessly(
  { broker, store }: Parameters<Follow>[0],
  id: string,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<DurableEvent[]> {
  let received: DurableEvent[] = []
  const receiver = await broker.receive(EVENTS, [eventPartition(id)], ({ key, value }) => {
    if (key === id) received.push(...(EventsRecord.parse(JSON.parse(value.toString())).events ?? []))
  })
  for (let seq = after, quietMs = LISTEN_MS; !signal.aborted; ) {
    const stored = quietMs >= LISTEN_MS ? await store.listEvents(ALL_TENANTS, id, seq, 100).catch(() => []) : []
    const events = [...stored, ...received].filter((event) => event.seq > seq)
    received = []
    quietMs = events.length > 0 || quietMs >= LISTEN_MS ? 0 : quietMs + 50
    if (events.length > 0) yield events
    seq = events.at(-1)?.seq ?? seq
    if (events.some(isLast)) break
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  await receiver.close()
}
