/*
 * Quota of durable jobs (gate b of `capacity.ts`), checked before anything of a job is stored.
 *
 * No tenant can use up the whole quota. A tenant without a configured limit may have at most as many jobs as the quota has left. A single tenant
 * therefore gets half of the quota, two tenants get a third each, and a new tenant can always add jobs.
 *
 * Example: the quota is 1,000. Tenant A has 500 jobs, so 500 are left and A is refused. Tenant B may add jobs until it has 250 and 250 are left.
 *
 * Jobs are counted in the store about once per second, and jobs that this process admitted since then are added. Jobs beyond a tenant's limit, such
 * as scheduled jobs that became due at the same time, count only against that tenant.
 */

import type { Limits } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { TenantDepth } from '#shared/store/records.ts'
import type { Created, NewJob, StoreView } from '#shared/store/store.ts'

/** Maximum age in ms of the counts by which jobs are admitted. */
const COUNT_AGE_MS = 1_000
/**
 * If a count is overdue by at most this time in ms, then jobs are still admitted by the old counts. Afterwards, a new job waits for the count in
 * progress.
 */
const OVERDUE_MS = 4_000
/** Pause between two counts, as a multiple of the duration of the last count, so that counting many jobs does not occupy the store. */
const COUNT_PAUSE_FACTOR = 50
const RETRY_AFTER_MS = 10_000

/** Limits on the number of durable jobs. Scheduled jobs (`run_at` in the future) are counted separately from queued and running jobs. */
export interface JobBounds {
  readonly jobsMax: number
  readonly scheduledMax: number
  /** Limits per tenant. Default: as many jobs as the total limit has left (see {@link JobQuota}). */
  readonly jobsMaxPerProject?: number | undefined
  readonly scheduledMaxPerProject?: number | undefined
  /**
   * Returns the configured limits of a tenant, which replace the default. `queued` counts only jobs that have not
   * started.
   */
  readonly limitsOf?: (tenant: string) => Pick<Limits, 'queued' | 'scheduled'> | undefined
  readonly limitsOfKey?: (keyId: string) => Pick<Limits, 'queued' | 'scheduled'> | undefined
}

type Counts = Record<'queued' | 'underWay' | 'scheduled', number>

type QuotaRequest = Pick<NewJob, 'tenant' | 'keyId'> & { readonly runAtMs?: number | undefined }

/**
 * A job whose creation is in progress. The job counts against the quota until the store has committed or refused its
 * row.
 */
interface PendingCreate {
  readonly tenant: string
  readonly state: Waiting
}

type Waiting = 'queued' | 'scheduled'

/** Jobs of one key and state whose creation this process has begun. A concurrent count in the store may miss these jobs. */
interface Begun {
  /** Number of creations begun so far. The increase during a count is the number of jobs that the count may miss. */
  total: number
  underWay: number
  readers: number
}

interface Bound {
  readonly count: number
  readonly own: number | undefined
  readonly total: number
  readonly most: number
  readonly what: string
}

export class JobQuota {
  readonly #store: StoreView
  readonly #bounds: JobBounds
  #countedAtMs = 0
  #countMs = 0
  #counting: Promise<void> | undefined
  #tally: Tally
  /** Jobs that the current count may miss: jobs admitted since the count began, and jobs whose creation was in progress at that time. */
  #since: Tally
  readonly #pendingCreates = new Set<PendingCreate>()
  readonly #begunOfKeys = new Map<string, Begun>()

  constructor(store: StoreView, bounds: JobBounds) {
    this.#store = store
    this.#bounds = bounds
    this.#tally = new Tally(bounds)
    this.#since = new Tally(bounds)
  }

  /**
   * Checks the quota without admitting a job.
   *
   * @throws ServiceError `rate_limit_exceeded` at the tenant's own limit. `overloaded` at the limit of the service, or if the store is unreachable
   */
  async require({ tenant }: QuotaRequest): Promise<void> {
    const place: PendingCreate = { tenant, state: 'queued' }
    await this.#ready(place)
    this.#refuse(place)
  }

  /**
   * Creates a job if the quota allows it. The job counts while its creation is in progress.
   *
   * @throws ServiceError as {@link require}
   */
  async enter({ tenant, keyId, runAtMs = 0 }: QuotaRequest, create: () => Promise<Created>): Promise<Created> {
    const state = runAtMs > Date.now() ? 'scheduled' : 'queued'
    const place = { tenant, state } satisfies PendingCreate
    await this.#ready(place)
    const most = keyId === undefined ? undefined : this.#bounds.limitsOfKey?.(keyId)?.[state]
    if (keyId === undefined || most === undefined) return await this.#enter(place, create)
    return await this.#enterOfKey(keyId, state, most, () => this.#enter(place, create))
  }

  /**
   * Creates a job within the limits of its key, which apply in addition to those of its project (docs/operate/keys.md). The store counts the key's
   * jobs at each creation, but only if the key has such a limit. Concurrent ingresses may exceed the limit by one job each.
   */
  async #enterOfKey<T>(keyId: string, state: Waiting, most: number, create: () => Promise<T>): Promise<T> {
    const name = `${state} ${keyId}`
    const begun = this.#begunOfKeys.get(name) ?? { total: 0, underWay: 0, readers: 0 }
    this.#begunOfKeys.set(name, begun)
    begun.readers++
    try {
      // The count of the store may miss jobs whose creation is in progress now. The increase of `total` during the count adds the jobs that begin
      // meanwhile.
      const unseen = begun.underWay - begun.total
      const waiting = (await this.#store.tenants.waitingOfKey(keyId))[state]
      // Check and increment happen without an await in between. Otherwise concurrent calls could all create the last
      // permitted job.
      if (waiting + unseen + begun.total >= most) throw keyLimitError(state, most)
      begun.total++
      begun.underWay++
    } finally {
      begun.readers--
      if (begun.underWay + begun.readers === 0) this.#begunOfKeys.delete(name)
    }
    try {
      return await create()
    } finally {
      begun.underWay--
      if (begun.underWay + begun.readers === 0) this.#begunOfKeys.delete(name)
    }
  }

  async #enter(place: PendingCreate, create: () => Promise<Created>): Promise<Created> {
    // Check and increment happen without an await in between. Otherwise concurrent calls could all create the last
    // permitted job.
    this.#refuse(place)
    this.#pendingCreates.add(place)
    this.#add(place, 1)
    try {
      const created = await create()
      if (created.outcome !== 'created') this.#add(place, -1)
      return created
    } catch (error) {
      // If the error leaves it open whether the job was created, then the job stays counted until the next count of the store.
      if (ServiceError.from(error).isUndone) this.#add(place, -1)
      throw error
    } finally {
      this.#pendingCreates.delete(place)
    }
  }

  async #ready(place: PendingCreate): Promise<void> {
    if (!this.#store.isReachable) {
      const message = 'The job store cannot be reached now.'
      throw new ServiceError('overloaded', message, { retryAfterMs: 2_000, isUndone: true, reason: 'store' })
    }
    await this.#count()
    // If the count is outdated, then a quota that looks full may have free capacity by now. The job waits for the count in progress instead
    // of being refused.
    if (this.#counting !== undefined && !this.#hasCapacity(place)) await this.#counting
  }

  #hasCapacity(place: PendingCreate): boolean {
    try {
      this.#refuse(place)
      return true
    } catch {
      return false
    }
  }

  /** @throws ServiceError if a limit allows no further job */
  #refuse({ tenant, state }: PendingCreate): void {
    const { jobsMax, scheduledMax, jobsMaxPerProject, scheduledMaxPerProject, limitsOf } = this.#bounds
    const { totals } = this.#tally
    const { queued, underWay, scheduled } = this.#tally.of(tenant)
    const limits = limitsOf?.(tenant)
    if (state === 'scheduled') {
      const own = limits?.scheduled ?? scheduledMaxPerProject
      refuseOver({ count: scheduled, own, total: totals.scheduled, most: scheduledMax, what: 'scheduled jobs' })
    } else if (limits?.queued !== undefined) {
      const own = limits.queued
      refuseOver({ count: queued, own, total: totals.underWay, most: jobsMax, what: 'queued jobs' })
    } else {
      const [own, what] = [jobsMaxPerProject, 'queued or running jobs']
      refuseOver({ count: underWay, own, total: totals.underWay, most: jobsMax, what })
    }
  }

  #add(place: PendingCreate, count: number): void {
    for (const tally of [this.#tally, this.#since]) tally.add({ ...place, count })
  }

  /** Starts a count if the last count is too old. The old counts are used until the result arrives, or until they are overdue. */
  async #count(): Promise<void> {
    const overdueMs = Date.now() - this.#countedAtMs - Math.max(COUNT_AGE_MS, COUNT_PAUSE_FACTOR * this.#countMs)
    if (overdueMs <= 0) return
    this.#counting ??= this.#read().finally(() => {
      this.#counting = undefined
    })
    // If the count fails, then the next job starts a new count. Only jobs that wait for the failed count receive its error.
    if (overdueMs < OVERDUE_MS) this.#counting.catch(() => {})
    else await this.#counting
  }

  async #read(): Promise<void> {
    const startedAtMs = Date.now()
    this.#since = new Tally(this.#bounds)
    for (const place of this.#pendingCreates) this.#since.add({ ...place, count: 1 })
    const depth = await this.#store.tenants.depth()
    this.#tally = new Tally(this.#bounds)
    for (const row of depth) this.#tally.add(row)
    this.#tally.addAll(this.#since)
    this.#countedAtMs = Date.now()
    this.#countMs = this.#countedAtMs - startedAtMs
  }
}

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

  add({ tenant, state, count }: TenantDepth): void {
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
    const { jobsMax, scheduledMax, jobsMaxPerProject, scheduledMaxPerProject, limitsOf } = this.#bounds
    const scheduledOwn = limitsOf?.(tenant)?.scheduled ?? scheduledMaxPerProject
    const most = {
      underWay: jobsMaxPerProject ?? Math.ceil(jobsMax / 2),
      scheduled: scheduledOwn ?? Math.ceil(scheduledMax / 2),
    }
    for (const kind of ['underWay', 'scheduled'] as const) {
      this.totals[kind] += Math.min(after[kind], most[kind]) - Math.min(before[kind], most[kind])
    }
  }
}

const NONE: Counts = { queued: 0, underWay: 0, scheduled: 0 }

function refuseOver({ count, own, total, most, what }: Bound): void {
  const refusal = { retryAfterMs: RETRY_AFTER_MS, isUndone: true }
  if (own === 0) {
    const message = `This project cannot have ${what}: its limit is 0. Only the operator of this service can raise it.`
    throw new ServiceError('permission_denied', message, { isUndone: true })
  }
  if (own !== undefined && count >= own) {
    const message = `This project has ${count} ${what}; its limit is ${own}. Try again later.`
    throw new ServiceError('rate_limit_exceeded', message, refusal)
  }
  if (total >= most) {
    const message = `The service is at its limit of ${most} ${what}. Try again later.`
    throw new ServiceError('overloaded', message, { ...refusal, reason: 'jobs_full' })
  }
  if (own !== undefined || count < most - total) return
  const message = `This project has ${count} ${what}; the remaining capacity is reserved for other projects. Try again later.`
  throw new ServiceError('rate_limit_exceeded', message, refusal)
}

function keyLimitError(state: Waiting, most: number): ServiceError {
  const what = state === 'queued' ? 'queued jobs' : 'scheduled jobs'
  if (most === 0) {
    const message = `This key may have no ${what}: its limit is 0. Only the operator of this service can raise it.`
    return new ServiceError('permission_denied', message, { isUndone: true })
  }
  const message = `This key has reached its limit of ${most} ${what}. Try again later.`
  return new ServiceError('rate_limit_exceeded', message, { retryAfterMs: RETRY_AFTER_MS, isUndone: true })
}
