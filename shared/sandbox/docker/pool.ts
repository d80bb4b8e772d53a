import { backoffMs } from '#shared/lib/backoff.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Number of consecutive failed starts after which waiting callers receive the error. */
const FAILURES_MAX = 3
const FAILED_START = { baseMs: 500, maxMs: 30_000 }
const START_MS_MAX = 60_000
/** If the oldest idle member has waited for this time in ms, then the pool is larger than necessary, and one member is removed. */
const SURPLUS_MS = 60_000

export interface PoolMember {
  readonly ended: Promise<void>
  dispose(): Promise<void>
}

export interface WarmPoolOptions<Member extends PoolMember> {
  /** Starts a member that is ready to serve. If `signal` aborts, then the function must clean up all resources that it created. */
  readonly start: (signal: AbortSignal) => Promise<Member>
  readonly idleMax: number
  readonly startsMax: number
  readonly onFailure: (error: unknown) => void
}

type Waiter<Member> = PromiseWithResolvers<Member>

/**
 * Pool of interpreters that are started in advance. Each interpreter serves one run.
 *
 * The number of idle interpreters adapts to the load. The pool starts with one. Each request that finds no idle interpreter adds one. If the oldest
 * idle interpreter has waited for a minute, then one is removed.
 *
 *     starting → idle → taken
 *        ↓         ↓
 *        failed    lost (it ended by itself) → another starts
 */
export class WarmPool<Member extends PoolMember> {
  readonly #options: WarmPoolOptions<Member>
  readonly #closing = new AbortController()
  #idle: { readonly member: Member; readonly sinceMs: number }[] = []
  readonly #waiters = new Set<Waiter<Member>>()
  readonly #starts = new Set<Promise<void>>()
  readonly #ends = new Set<Promise<void>>()
  #wanted = 1
  #failures = 0
  /** Error after repeated failed starts, which new callers receive at once. */
  #refusal: ServiceError | undefined
  #retry: NodeJS.Timeout | undefined
  readonly #surplus: NodeJS.Timeout

  constructor(options: WarmPoolOptions<Member>) {
    this.#options = options
    this.#surplus = setInterval(() => this.#shrink(), SURPLUS_MS / 2).unref()
    this.#fill()
  }

  get idle(): number {
    return this.#idle.length
  }

  /**
   * Takes a ready member. The caller must dispose the member.
   *
   * @throws ServiceError `sandbox_unavailable` if starts keep failing, or the signal's reason
   */
  async take(signal: AbortSignal): Promise<Member> {
    signal.throwIfAborted()
    this.#closing.signal.throwIfAborted()
    const ready = this.#idle.shift()
    if (ready === undefined && this.#refusal !== undefined) throw this.#refusal
    if (ready === undefined) this.#wanted = Math.min(this.#wanted + 1, this.#options.idleMax)
    const waiter = ready === undefined ? this.#wait() : undefined
    this.#fill()
    return ready?.member ?? (await this.#until(waiter as Waiter<Member>, signal))
  }

  async close(): Promise<void> {
    const reason = new ServiceError('sandbox_unavailable', 'The sandbox is closed.')
    this.#closing.abort(reason)
    clearTimeout(this.#retry)
    clearInterval(this.#surplus)
    this.#refuseAll(reason)
    await Promise.allSettled(this.#starts)
    for (const { member } of this.#idle.splice(0)) this.#end(member)
    await Promise.allSettled(this.#ends)
  }

  #wait(): Waiter<Member> {
    const waiter = Promise.withResolvers<Member>()
    this.#waiters.add(waiter)
    return waiter
  }

  async #until(waiter: Waiter<Member>, signal: AbortSignal): Promise<Member> {
    const leave = () => {
      // If this caller received a member at the moment of the abort, then its promise is already resolved. The caller
      // then owns the member and disposes it.
      if (this.#waiters.delete(waiter)) waiter.reject(signal.reason)
    }
    signal.addEventListener('abort', leave, { once: true })
    try {
      return await waiter.promise
    } finally {
      signal.removeEventListener('abort', leave)
    }
  }

  /**
   * Starts the missing members. While the retry timer of a failed start runs, no member is started. When the timer ends, it calls this
   * function.
   */
  #fill(): void {
    const { startsMax } = this.#options
    if (this.#closing.signal.aborted || this.#retry !== undefined) return
    const missing = this.#waiters.size + this.#wanted - this.#idle.length - this.#starts.size
    for (let left = Math.min(missing, startsMax - this.#starts.size); left > 0; left--) {
      const start = this.#startOne().finally(() => {
        this.#starts.delete(start)
        this.#fill()
      })
      this.#starts.add(start)
    }
  }

  async #startOne(): Promise<void> {
    const signal = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(START_MS_MAX)])
    try {
      const member = await this.#options.start(signal)
      this.#failures = 0
      this.#refusal = undefined
      this.#onReady(member)
    } catch (error) {
      if (!this.#closing.signal.aborted) this.#failed(error)
    }
  }

  #onReady(member: Member): void {
    const [waiter] = this.#waiters
    if (waiter !== undefined) {
      this.#waiters.delete(waiter)
      waiter.resolve(member)
      return
    }
    this.#idle.push({ member, sinceMs: performance.now() })
    void member.ended.then(() => this.#lost(member))
  }

  /**
   * Counts the end of an idle member as a failed start. If the containers of an image end after a second, then the pool would otherwise start them
   * forever.
   */
  #lost(member: Member): void {
    const kept = this.#idle.filter((idle) => idle.member !== member)
    if (kept.length === this.#idle.length) return
    this.#idle = kept
    this.#failed(new Error('An interpreter ended while it waited for a run.'))
    this.#fill()
  }

  #failed(error: unknown): void {
    this.#failures += 1
    this.#options.onFailure(error)
    if (this.#failures >= FAILURES_MAX) {
      this.#refusal = ServiceError.from(error)
      this.#refuseAll(this.#refusal)
    }
    this.#retry ??= setTimeout(
      () => {
        this.#retry = undefined
        this.#fill()
      },
      backoffMs(this.#failures, FAILED_START, Math.random()),
    ).unref()
  }

  #refuseAll(error: ServiceError): void {
    for (const waiter of this.#waiters) waiter.reject(error)
    this.#waiters.clear()
  }

  #shrink(): void {
    const [oldest] = this.#idle
    if (oldest === undefined || this.#wanted === 1 || performance.now() - oldest.sinceMs < SURPLUS_MS) return
    this.#wanted -= 1
    if (this.#idle.length > this.#wanted) {
      this.#idle.shift()
      this.#end(oldest.member)
    }
  }

  #end(member: Member): void {
    const end = member.dispose().finally(() => this.#ends.delete(end))
    this.#ends.add(end)
  }
}
