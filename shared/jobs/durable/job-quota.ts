import { ServiceError } from '#shared/error.ts'
import type { Limits } from '#shared/keys/project.ts'
import type { Created, NewJob, StoreView } from '#shared/store/store.ts'
import type { TenantDepth } from '#shared/store/tenants.ts'
import { KeyQuota } from './key-quota.ts'

/** How old the counts of jobs may be that new ones are admitted by: counting asks the store. */
const COUNT_AGE_MS = 1_000
/** Counts that ought to have been made anew for so long are waited for; until then jobs are admitted by the last ones. */
const OVERDUE_MS = 4_000
/** Counting very many takes long: it rests for as many times as long. */
const COUNT_RESTS = 50
const RETRY_MS = 10_000

/** How many durable jobs there may be. Those that wait for their time, `run_at`, are counted apart from those that wait or run. */
export interface JobBounds {
  /** Of all processes and tenants. */
  readonly jobsMax: number
  readonly scheduledMax: number
  /** Of one tenant; undefined: as many as are left free for others. */
  readonly jobsMaxPerProject?: number | undefined
  readonly scheduledMaxPerProject?: number | undefined
  /** What a tenant may have in the place of that: `queued` bounds those that wait to be started. */
  readonly limitsOf?: (tenant: string) => Pick<Limits, 'queued' | 'scheduled'> | undefined
  /** What a key may have of its own, beside its project. */
  readonly limitsOfKey?: (keyId: string) => Pick<Limits, 'queued' | 'scheduled'> | undefined
}

/** Jobs that wait to be started, those with the ones that run, and those that wait for their time. */
type Counts = Record<'queued' | 'underWay' | 'scheduled', number>

/** A job that asks for a place. */
type Entrant = Pick<NewJob, 'tenant' | 'keyId'> & { readonly runAtMs?: number | undefined }

/** That of a job on its way to the store. */
interface Place {
  readonly tenant: string
  readonly isScheduled: boolean
}

/** What a job is asked to be counted as. */
interface Bound {
  readonly count: number
  /** Undefined: a share of `most`. */
  readonly own: number | undefined
  readonly total: number
  readonly most: number
  readonly what: string
}

/**
 * Whether there is room for one more durable job, asked before anything is kept of it.
 *
 * One tenant cannot take the room of all: where it has no bound of its own it may have as many jobs as places are free, so one
 * alone has half of them, two a third each, and the next still finds some. What of a tenant is above its bound, since its time
 * came all at once, counts only for itself.
 */
export class JobQuota {
  readonly #store: StoreView
  readonly #bounds: JobBounds
  #countedAtMs = 0
  #countMs = 0
  #counting: Promise<void> | undefined
  #tally: Tally
  /** What was taken since the counting began, or was on its way then: the next counts may not have it. */
  #since: Tally
  readonly #onTheWay = new Set<Place>()
  readonly #ofKeys: KeyQuota

  constructor(store: StoreView, bounds: JobBounds) {
    this.#store = store
    this.#bounds = bounds
    this.#tally = new Tally(bounds)
    this.#since = new Tally(bounds)
    this.#ofKeys = new KeyQuota(store.tenants, bounds.limitsOfKey ?? (() => undefined))
  }

  /**
   * Refuses a job that there is no room for.
   *
   * @throws ServiceError `rate_limit_exceeded` at the tenant's own bound; `overloaded` at that of all, or while the store is down
   */
  async require({ tenant }: Entrant): Promise<void> {
    const place = { tenant, isScheduled: false }
    await this.#ready(place)
    this.#refuse(place)
  }

  /** Makes a job, if there is room for it: it has its place from the first moment on. @throws ServiceError As {@link require} */
  async enter({ tenant, keyId, runAtMs = 0 }: Entrant, create: () => Promise<Created>): Promise<Created> {
    const place = { tenant, isScheduled: runAtMs > Date.now() }
    await this.#ready(place)
    return await this.#ofKeys.enter(keyId, place.isScheduled, () => this.#enter(place, create))
  }

  async #enter(place: Place, create: () => Promise<Created>): Promise<Created> {
    // In one step with the taking: those that come together must not all find the same place free.
    this.#refuse(place)
    this.#onTheWay.add(place)
    this.#add(place, 1)
    try {
      const created = await create()
      if (created.outcome !== 'created') this.#add(place, -1)
      return created
    } catch (error) {
      // Where nobody knows, the next counts will.
      if (ServiceError.from(error).isUndone) this.#add(place, -1)
      throw error
    } finally {
      this.#onTheWay.delete(place)
    }
  }

  async #ready(place: Place): Promise<void> {
    if (!this.#store.isReachable) {
      const message = 'The job store cannot be reached now.'
      throw new ServiceError('overloaded', message, { retryAfterMs: 2_000, isUndone: true })
    }
    await this.#count()
    // Nobody is refused by counts that are being made anew.
    if (this.#counting !== undefined && !this.#hasRoom(place)) await this.#counting
  }

  #hasRoom(place: Place): boolean {
    try {
      this.#refuse(place)
      return true
    } catch {
      return false
    }
  }

  #refuse({ tenant, isScheduled }: Place): void {
    refuseBeyond(isScheduled ? this.#scheduledOf(tenant) : this.#underWayOf(tenant), isScheduled)
  }

  #add(place: Place, count: number): void {
    for (const tally of [this.#tally, this.#since]) tally.add(place, count)
  }

  /** Jobs are admitted by the last counts while new ones are made, unless these were not asked for in a long time. */
  async #count(): Promise<void> {
    const overdueMs = Date.now() - this.#countedAtMs - Math.max(COUNT_AGE_MS, COUNT_RESTS * this.#countMs)
    if (overdueMs <= 0) return
    this.#counting ??= this.#read().finally(() => {
      this.#counting = undefined
    })
    // Where it fails the next job asks again, and whoever has to wait for it hears of that.
    if (overdueMs < OVERDUE_MS) this.#counting.catch(() => {})
    else await this.#counting
  }

  async #read(): Promise<void> {
    const startedAtMs = Date.now()
    this.#since = new Tally(this.#bounds)
    for (const place of this.#onTheWay) this.#since.add(place, 1)
    const depth = await this.#store.tenants.depth()
    this.#tally = new Tally(this.#bounds)
    for (const row of depth) this.#tally.addStored(row)
    this.#tally.addAll(this.#since)
    this.#countedAtMs = Date.now()
    this.#countMs = this.#countedAtMs - startedAtMs
  }

  #underWayOf(tenant: string): Bound {
    const { jobsMax: most, jobsMaxPerProject, limitsOf } = this.#bounds
    const { underWay: total } = this.#tally.totals
    const { queued, underWay } = this.#tally.of(tenant)
    const queuedMax = limitsOf?.(tenant)?.queued
    if (queuedMax !== undefined) return { count: queued, own: queuedMax, total, most, what: 'jobs that wait' }
    return { count: underWay, own: jobsMaxPerProject, total, most, what: 'jobs that wait or run' }
  }

  #scheduledOf(tenant: string): Bound {
    const { scheduledMax: most, scheduledMaxPerProject, limitsOf } = this.#bounds
    const own = limitsOf?.(tenant)?.scheduled ?? scheduledMaxPerProject
    const { scheduled: total } = this.#tally.totals
    return { count: this.#tally.of(tenant).scheduled, own, total, most, what: 'jobs that wait for their time' }
  }
}

/** Counts of each tenant, and of all: there a tenant counts for no more than it may have. */
class Tally {
  readonly #bounds: JobBounds
  readonly #counts = new Map<string, Counts>()
  readonly totals = { underWay: 0, scheduled: 0 }

  constructor(bounds: JobBounds) {
    this.#bounds = bounds
  }

  of(tenant: string): Counts {
    return this.#counts.get(tenant) ?? NONE
  }

  add({ tenant, isScheduled }: Place, count: number): void {
    if (isScheduled) this.#add(tenant, { ...NONE, scheduled: count })
    else this.#add(tenant, { ...NONE, queued: count, underWay: count })
  }

  addStored({ tenant, state, count }: TenantDepth): void {
    if (state === 'scheduled') this.#add(tenant, { ...NONE, scheduled: count })
    else this.#add(tenant, { ...NONE, queued: state === 'queued' ? count : 0, underWay: count })
  }

  addAll(other: Tally): void {
    for (const [tenant, counts] of other.#counts) this.#add(tenant, counts)
  }

  #add(tenant: string, { queued, underWay, scheduled }: Counts): void {
    const before = this.of(tenant)
    const after = {
      queued: Math.max(0, before.queued + queued),
      underWay: Math.max(0, before.underWay + underWay),
      scheduled: Math.max(0, before.scheduled + scheduled),
    }
    this.#counts.set(tenant, after)
    const most = this.#mostOf(tenant)
    for (const kind of ['underWay', 'scheduled'] as const) {
      this.totals[kind] += Math.min(after[kind], most[kind]) - Math.min(before[kind], most[kind])
    }
  }

  #mostOf(tenant: string): Record<'underWay' | 'scheduled', number> {
    const { jobsMax, scheduledMax, jobsMaxPerProject, scheduledMaxPerProject, limitsOf } = this.#bounds
    const scheduled = limitsOf?.(tenant)?.scheduled ?? scheduledMaxPerProject
    return {
      underWay: jobsMaxPerProject ?? Math.ceil(jobsMax / 2),
      scheduled: scheduled ?? Math.ceil(scheduledMax / 2),
    }
  }
}

const NONE: Counts = { queued: 0, underWay: 0, scheduled: 0 }

function refuseBeyond({ count, own, total, most, what }: Bound, isScheduled: boolean): void {
  const refusal = { retryAfterMs: RETRY_MS, isUndone: true }
  if (own === 0) {
    const message = `This project may have no ${what}: its limit is 0. Only whoever runs this service can raise it.`
    throw new ServiceError('permission_denied', message, { isUndone: true })
  }
  if (own !== undefined && count >= own) {
    const message = `This project has ${count} ${what}, and may have ${own}. Try again later.`
    throw new ServiceError('rate_limit_exceeded', message, refusal)
  }
  if (total >= most) {
    const many = isScheduled ? 'Too many jobs wait for their time.' : 'Too many jobs are under way.'
    throw new ServiceError('overloaded', `${many} Try again later.`, refusal)
  }
  if (own !== undefined || count < most - total) return
  const message = `This project has ${count} ${what}: the other places are for other projects. Try again later.`
  throw new ServiceError('rate_limit_exceeded', message, refusal)
}
