import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import type { QueuedOf } from '#shared/store/store.ts'

/** Records of jobs of a pool without workers: the first worker that comes has something to begin with. */
const WORKERLESS_MAX = 16
/** Silence of the control channel from which what it said is out of date. */
const SILENCE_MS_MAX = 2_500
/** Least time between two tellings: what is queued meanwhile is told in one. */
const PUBLISH_INTERVAL_MS_MIN = 100
/** Kinds, models and lanes in one telling. */
const QUEUES_PER_RECORD_MAX = 200

/** What {@link QueueNotifier} need of the control channel. */
export type NotifierPresence = Pick<
  Presence,
  'beatMs' | 'freeSlots' | 'ingresses' | 'knowing' | 'send' | 'silenceMs' | 'workers'
>

type Waiting = Extract<ControlRecord, { type: 'jobs_waiting' }>['waiting'][number]

/** What was told of a pool, or published for it, of late. */
interface PoolHints {
  /** How many were published, but for those that are known to have ended; and ids of such jobs. */
  published: number
  readonly ids: Set<string>
  sinceMs: number
  readonly untold: Map<string, Waiting>
}

/**
 * How workers hear of durable jobs that wait in the store. A record in the queue goes to one worker, which has a free slot: so
 * there are no more of them than free slots, and plain calls never wait behind a backlog. Of all other jobs workers are told over
 * the control channel, many in one record, and claim them in turn as they have room.
 *
 * Nothing depends on it: what nobody heard of is found by the scheduler.
 */
export class QueueNotifier {
  readonly #presence: () => NotifierPresence
  readonly #pools = new Map<PoolName, PoolHints>()
  #toldAtMs = Number.NEGATIVE_INFINITY
  #timer: NodeJS.Timeout | undefined

  constructor(presence: () => NotifierPresence) {
    this.#presence = presence
  }

  /** Whether a job is to have a record, which then counts as published; else {@link notify} of it. */
  mayPublish(job: QueuedOf & { readonly id?: string }): boolean {
    const presence = this.#presence()
    const hints = this.#of(job.pool)
    const hasWorkers = presence.workers(job.pool).length > 0
    const now = performance.now()
    // Until their next heartbeat, what was published does not show in what workers say.
    if (hasWorkers && now - hints.sinceMs >= presence.beatMs) {
      Object.assign(hints, { sinceMs: now, published: 0 })
      hints.ids.clear()
    }
    // Nobody who knows the model would hear what is told: a worker that has not said what it can start may be of a version that
    // does not read such records.
    const isHeard = presence.knowing(job.pool, job.model).some(({ capacity }) => capacity)
    const isUnheard = presence.silenceMs > SILENCE_MS_MAX || (hasWorkers && !isHeard)
    // Each ingress has its part of them.
    const free = hasWorkers
      ? Math.ceil(presence.freeSlots(job.pool) / Math.max(1, presence.ingresses()))
      : WORKERLESS_MAX
    if (!isUnheard && (free <= hints.published || isClaimed(presence, job))) return false
    hints.published++
    if (job.id !== undefined) hints.ids.add(job.id)
    return true
  }

  /** A job has ended: the slot that it had is free for the next one before its worker's heartbeat says so. */
  ended({ pool, id }: { readonly pool: PoolName; readonly id: string }): void {
    const hints = this.#pools.get(pool)
    if (hints?.ids.delete(id)) hints.published--
  }

  /** Tells workers that a job like this waits, soon. */
  notify({ pool, kind, model, priority }: QueuedOf): void {
    const { untold } = this.#of(pool)
    untold.set(`${priority} ${kind} ${model}`, { kind, model, priority })
    if (untold.size >= QUEUES_PER_RECORD_MAX) return this.#send()
    const waitMs = Math.max(0, this.#toldAtMs + PUBLISH_INTERVAL_MS_MIN - performance.now())
    this.#timer ??= setTimeout(() => this.#send(), waitMs).unref()
  }

  #send(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#toldAtMs = performance.now()
    for (const [pool, { untold }] of this.#pools) {
      if (untold.size > 0) this.#presence().send({ type: 'jobs_waiting', pool, waiting: [...untold.values()] })
      untold.clear()
    }
  }

  #of(pool: PoolName): PoolHints {
    const known = this.#pools.get(pool)
    if (known) return known
    const [ids, untold] = [new Set<string>(), new Map<string, Waiting>()]
    const hints = { published: 0, ids, sinceMs: performance.now(), untold }
    this.#pools.set(pool, hints)
    return hints
  }
}

/**
 * Whether a worker says that it knows of such waiting jobs and takes them from the store as soon as it has room: records of
 * them would be dropped for want of it.
 */
export function isClaimed(presence: Pick<Presence, 'workers'>, { pool, kind, model, priority }: QueuedOf): boolean {
  return presence.workers(pool).some(({ draining, isSilent, capacity }) => {
    if (draining || isSilent || capacity?.models?.has(model) === false) return false
    return capacity?.waiting.some((one) => one.kind === kind && one.model === model && one.priority === priority)
  })
}
