import type { UpstreamConfig } from '#schemas/models.ts'
import type { Breaker } from './breaker.ts'
import type { AdaptiveLimit, Place } from './limit.ts'

/** Calls at once from one worker to one server. */
export const IN_FLIGHT_MAX = 512
/** Servers of OpenAI's own, which know parameters that others refuse. */
const OPENAI = /(^|\.)(openai\.com|openai\.azure\.com)$/

/** Where a model is served, and which part of its calls it is to get, in relation to the others. */
export interface ServerAddress {
  readonly url: string
  readonly weight: number
}

/** The servers of a model, at least one. */
export function addressesOf({ base_url, base_urls = [] }: UpstreamConfig): ServerAddress[] {
  const listed = base_urls.map((entry) => (typeof entry === 'string' ? { url: entry, weight: 1 } : entry))
  return base_url === undefined ? listed : [{ url: base_url, weight: 1 }, ...listed]
}

/** One of several servers of a model. */
export interface Server {
  readonly weight: number
  readonly breaker: Breaker
  readonly limit: AdaptiveLimit
}

/** A place on a server; give it back with {@link Servers.leave}, once. */
export interface Taken<Own extends Server> {
  readonly server: Own
  readonly place: Place
}

/** One call in line. */
interface Waiting {
  /** Takes a place if there is one. */
  tryEnter(): boolean
}

/**
 * The servers of one model: each call goes to the least busy one by its weight, of those that work; what finds no place waits
 * in line. The line is bounded by who calls: a worker's slots, each of which holds one job.
 */
export class Servers<Own extends Server> {
  readonly all: readonly Own[]
  readonly #waiting = new Set<Waiting>()
  #next = 0

  constructor(all: readonly Own[]) {
    this.all = all
  }

  /** Calls that may run at once now. */
  get places(): number {
    return this.all.reduce((sum, { limit }) => sum + limit.places, 0)
  }

  /**
   * Takes a place, waiting until there is one.
   *
   * @param tried Servers that are out of the question; not all of them.
   * @throws The signal's reason
   */
  async take(signal: AbortSignal, isTimed: boolean, tried: ReadonlySet<Own>): Promise<Taken<Own>> {
    signal.throwIfAborted()
    const server = this.#waiting.size === 0 ? this.#choose(tried) : undefined
    if (server) return { server, place: server.limit.begin(isTimed) }
    const { promise, resolve, reject } = Promise.withResolvers<Taken<Own>>()
    const waiting: Waiting = {
      tryEnter: () => {
        const free = this.#choose(tried)
        if (free) resolve({ server: free, place: free.limit.begin(isTimed) })
        return free !== undefined
      },
    }
    const leave = () => {
      this.#waiting.delete(waiting)
      reject(signal.reason)
    }
    signal.addEventListener('abort', leave, { once: true })
    this.#waiting.add(waiting)
    // Those before it may wait for another server.
    this.letIn()
    return await promise.finally(() => signal.removeEventListener('abort', leave))
  }

  /** Gives a place back, to whoever has waited longest. */
  leave({ server, place }: Taken<Own>): void {
    server.limit.end(place)
    this.letIn()
  }

  /** There may be more places than before. */
  letIn(): void {
    for (const waiting of this.#waiting) if (waiting.tryEnter()) this.#waiting.delete(waiting)
  }

  /** Where none works any will do: it says itself why not. */
  #choose(tried: ReadonlySet<Own>): Own | undefined {
    const untried = this.all.filter((server) => !tried.has(server))
    const working = untried.filter(({ breaker, limit }) => !breaker.isOpen && limit.pausedMs === 0)
    const free = (working.length > 0 ? working : untried).filter(({ limit }) => limit.hasPlace)
    if (free.length < 2) return free[0]
    // Of those that are as busy, one after the other.
    this.#next = (this.#next + 1) % free.length
    const turned = [...free.slice(this.#next), ...free.slice(0, this.#next)]
    return turned.reduce((best, server) => (loadOf(server) < loadOf(best) ? server : best))
  }
}

function loadOf({ limit, weight }: Server): number {
  return (limit.inFlight + 1) / weight
}

/** Whether servers are OpenAI's own. */
export function isOpenAiServer(config: UpstreamConfig): boolean {
  let isOwn = ownServers.get(config)
  if (isOwn === undefined) {
    isOwn = addressesOf(config).some(({ url }) => OPENAI.test(new URL(url).hostname))
    ownServers.set(config, isOwn)
  }
  return isOwn
}

/** Each call asks, and parsing an address costs one hundredth of a call. */
const ownServers = new WeakMap<UpstreamConfig, boolean>()
