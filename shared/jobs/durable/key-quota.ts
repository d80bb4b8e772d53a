import { ServiceError } from '#shared/error.ts'
import type { Limits } from '#shared/keys/project.ts'
import type { TenantReads } from '#shared/store/tenants.ts'

const RETRY_MS = 10_000

/** What waits of a key: for a worker, or for its time. */
type Waiting = 'queued' | 'scheduled'

/** What was begun of one key and state, so that a count that was read meanwhile is not taken for all. */
interface Begun {
  /** Since anybody last looked. */
  total: number
  underWay: number
  /** Counts that are being read. */
  readers: number
}

/**
 * The limits of a key on its jobs that wait, beside those of its project (docs/keys.md). Only a key with such a limit is
 * counted, by an index, with each of its jobs. Ingresses that let in at once may each let in the last one.
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
   * Makes a job of a key, if its own limits have room for it.
   *
   * @throws ServiceError `rate_limit_exceeded`, `permission_denied` where the limit is 0; all that `create` throws
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
      // Those under way now may be counted or not: they count as not counted.
      const unseen = begun.underWay - begun.total
      const waiting = (await this.#tenants.waitingOfKey(keyId))[state]
      // In one step with the taking: those that come together must not all find the same place free.
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
  const what = state === 'queued' ? 'jobs that wait' : 'jobs that wait for their time'
  if (most === 0) {
    const message = `This key may have no ${what}: its limit is 0. Only whoever runs this service can raise it.`
    return new ServiceError('permission_denied', message, { isUndone: true })
  }
  const message = `This key may have ${most} ${what}. Try again later.`
  return new ServiceError('rate_limit_exceeded', message, { retryAfterMs: RETRY_MS, isUndone: true })
}
