/** Callers that may have been told when to come back; one tenant has no more of them than places are free for others. */
const RESERVED_MAX = 20_000
/** Longest time ahead that is remembered. */
const AHEAD_MS_MAX = 600_000
/** A caller may come so much before its time. */
const EARLY_MS = 500
/** And so much after it, or a quarter of what it was told to wait, where that is more. */
const LATE_MS = 5_000
/** How often those are looked for that did not come. */
const SWEEP_MS = 1_000
/** Parts of a request that are looked at to know it again, and characters at each end of a text. */
const PARTS_MAX = 500
const CHARS = 40

/** When a caller was told to come back, and until when its place is kept. */
interface Reservation {
  readonly atMs: number
  readonly untilMs: number
}

/**
 * The places of callers that were refused and told when to come back. New callers are behind them, or those who do as they are told
 * would find the place taken each time. Nobody gives a name: a caller is known by its tenant and its request.
 *
 * Who does not come back in time loses the place. All is bounded; what is beyond is told a time, and has no place.
 */
export class Reservations {
  /** By tenant, then by request: the times of callers with equal requests, the earliest first. */
  readonly #tenants = new Map<string, Map<string, Reservation[]>>()
  /** How many each tenant has. */
  readonly counts = new Map<string, number>()
  #total = 0
  #sweptAtMs = 0

  /** The place of a caller, unless it has none. `isDue`: it has come when it was told to. */
  find(tenant: string, body: unknown, now: number): { readonly atMs: number; readonly isDue: boolean } | undefined {
    this.#sweep(now)
    const own = this.#tenants.get(tenant)
    const first = own?.get(fingerprintOf(body))?.[0]
    return first && { atMs: first.atMs, isDue: now >= first.atMs - EARLY_MS }
  }

  /** A caller has its place kept until a time. */
  add(tenant: string, body: unknown, atMs: number, now: number): void {
    const count = this.counts.get(tenant) ?? 0
    if (atMs - now > AHEAD_MS_MAX || count >= RESERVED_MAX - this.#total) return
    const own = this.#tenants.get(tenant) ?? new Map<string, Reservation[]>()
    this.#tenants.set(tenant, own)
    const key = fingerprintOf(body)
    const untilMs = atMs + Math.max(LATE_MS, (atMs - now) / 4)
    own.set(
      key,
      [...(own.get(key) ?? []), { atMs, untilMs }].toSorted((a, b) => a.atMs - b.atMs),
    )
    this.#count(tenant, 1)
  }

  /** A caller gives its place back, or has taken it. */
  drop(tenant: string, body: unknown): void {
    const own = this.#tenants.get(tenant)
    const key = fingerprintOf(body)
    const times = own?.get(key)
    if (!own || !times?.shift()) return
    if (times.length === 0) own.delete(key)
    this.#count(tenant, -1)
  }

  #count(tenant: string, more: number): void {
    this.#total += more
    const count = (this.counts.get(tenant) ?? 0) + more
    if (count > 0) this.counts.set(tenant, count)
    else {
      this.counts.delete(tenant)
      this.#tenants.delete(tenant)
    }
  }

  #sweep(now: number): void {
    if (this.#total === 0 || now - this.#sweptAtMs < SWEEP_MS) return
    this.#sweptAtMs = now
    for (const [tenant, own] of this.#tenants) {
      for (const [key, times] of own) {
        const kept = times.filter(({ untilMs }) => untilMs >= now)
        if (kept.length === times.length) continue
        if (kept.length > 0) own.set(key, kept)
        else own.delete(key)
        this.#count(tenant, kept.length - times.length)
      }
    }
  }
}

/**
 * What a request is known by: a hash (FNV-1a) of the lengths and ends of its texts, the last parts first. It costs the same for
 * very large ones; where two are alike they have each other's places.
 */
export function fingerprintOf(body: unknown): string {
  let hash = 0x811c9dc5
  const add = (text: string) => {
    for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0
  }
  const rest: unknown[] = [body]
  for (let parts = 0; rest.length > 0 && parts < PARTS_MAX; parts++) {
    const part = rest.pop()
    if (typeof part === 'string') add(`${part.length} ${part.slice(0, CHARS)} ${part.slice(-CHARS)}`)
    else if (Array.isArray(part)) rest.push(part.length, ...part.slice(-PARTS_MAX))
    else if (typeof part === 'object' && part !== null) rest.push(...Object.values(part).slice(-PARTS_MAX))
    else add(String(part))
  }
  return hash.toString(36)
}
