import type { Limits } from '#shared/keys/project.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { TenantReads } from '#shared/store/tenants.ts'

const RETRY_AFTER_MS = 10_000

/** Waiting state of a job: queued for a worker, or scheduled. */
type Waiting = 'queued' | 'scheduled'

/** Jobs of one key and state that this process has begun to create. A concurrent count may not include them. */
interface Begun {
  /** Number of creations begun since the last count started. */
  total: number
  underWay: number
  readers: number
}

/**
 * Limits of a key on its waiting jobs, in addition to those of its project (docs/operate/keys.md). Only keys with such a limit are
 * counted, by an index, once per job. Concurrent ingresses may each admit the last job.
 */
export class KeyQuota {
  readonly #tenants: Pick<TenantReads, 'waitingOfKey'>
  readonly #limitsOf: (keyId: string) => Pick<Limits, Waiting> | undefined
  readonly #begun = new Map<string, Begun>()

  constructor(
    tenants: Pick<TenantReads, 'waitingOfKey'>,
    limitsOf: (keyId: string) => Pick<Limits, Waiting> | undefined,
  ) {
    this.#tenants = tenants
    this.#limitsOf = limitsOf
  }

  /**
   * Creates a job of a key if the limits of the key allow it.
   *
   * @throws ServiceError `rate_limit_exceeded`; `permission_denied` if the limit is 0; all errors of `create`
   */
  async enter<T>(keyId: string | undefined, isScheduled: boolean, create: () => Promise<T>): Promise<T> {
    const state = isScheduled ? 'scheduled' : 'queued'
    const most = keyId === undefined ? undefined : this.#limitsOf(keyId)?.[state]
    return keyId === undefined || most === undefined ? await create() : await this.#enter(keyId, state, most, create)
  }

  async #enter<T>(keyId: string, state: Waiting, most: number, create: () => Promise<T>): Promise<T> {
    const name = `${state} ${keyId}`
    const begun = this.#begun.get(name) ?? { total: 0, underWay: 0, readers: 0 }
    this.#begun.set(name, begun)
    begun.readers++
    try {
      // Jobs whose creation is in progress may be missing in the count, so they are added.
      const unseen = begun.underWay - begun.total
      const waiting = (await this.#tenants.waitingOfKey(keyId))[state]
      // Check and increment happen in one synchronous step. Otherwise concurrent jobs could all take the last unit.
      if (waiting + unseen + begun.total >= most) throw full(state, most)
      begun.total++
      begun.underWay++
    } finally {
      begun.readers--
      if (begun.underWay + begun.readers === 0) this.#begun.delete(name)
    }
    try {
      return await create()
    } finally {
      begun.underWay--
      if (begun.underWay + begun.readers === 0) this.#begun.delete(name)
    }
  }
}

function full(state: Waiting, most: number): ServiceError {
  const what = state === 'queued' ? 'queued jobs' : 'scheduled jobs'
  if (most === 0) {
    const message = `This key may have no ${what}: its limit is 0. Only the operator of this service can raise it.`
    return new ServiceError('permission_denied', message, { isUndone: true })
  }
  const message = `This key has reached its limit of ${most} ${what}. Try again later.`
  return new ServiceError('rate_limit_exceeded', message, { retryAfterMs: RETRY_AFTER_MS, isUndone: true })
}
