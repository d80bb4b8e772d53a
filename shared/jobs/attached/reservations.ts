/** Maximum number of reservations. One tenant may use at most as many as remain free for the others. */
const RESERVED_MAX = 50_000
/** Maximum distance of a reservation into the future: one hour. */
const RESERVE_AHEAD_MS_MAX = 3_600_000
/** A caller may return this much before its time. */
const EARLY_RETURN_MS = 500
/** A reservation expires this long after its time, or after a quarter of its wait if that is longer. */
const LATE_RETURN_MS = 5_000
const SWEEP_INTERVAL_MS = 1_000
/** Bounds of the fingerprint: parts of a request, and characters at each end of a text. */
const PARTS_MAX = 500
const TEXT_CHARS = 40

export interface ReservedTimes {
  readonly atMs: number
  /**
   * Time at which the caller was asked to return. Earlier than `atMs` if the caller's SDK does not honour so long a Retry-After.
   */
  readonly returnMs: number
}

export interface ReservedTime extends ReservedTimes {
  readonly isDue: boolean
  readonly hasReturned: boolean
  /** Number of callers of the tenant that returned when due, found the queue full and precede this one. */
  readonly ahead: number
}

interface Reservation {
  atMs: number
  returnMs: number
  untilMs: number
  /**
   * Ordinal of this caller among the tenant's callers that returned when due and found the queue full. Undefined for
   * all others.
   */
  nth?: number
}

interface Tenant {
  /** Fingerprint of the request → reservations of equal requests, earliest first. */
  readonly reservations: Map<string, Reservation[]>
  /** Number of callers that returned when due and found the queue full, and how many of those have left again. */
  late: number
  left: number
}

/**
 * Queue positions of callers that were rejected with a Retry-After.
 *
 * The problem: HTTP callers that were rejected hold no connection, and newer callers could overtake them each time. A caller also
 * has no name that the ingress could recognise.
 *
 * How it works: a reservation counts as a waiting job for every newer caller. A returning caller is recognised by its tenant and
 * the fingerprint of its request ({@link fingerprintOf}). If the caller does not return in time, then its reservation expires. At
 * most 50,000 reservations exist; further callers receive a Retry-After without one.
 */
export class Reservations {
  readonly #tenants = new Map<string, Tenant>()
  readonly counts = new Map<string, number>()
  /** Reservations whose caller returned when due and found the queue full, by tenant. */
  readonly lateCounts = new Map<string, number>()
  #total = 0
  #sweptAtMs = 0

  /** The earliest reservation for a request, or undefined. */
  find(tenant: string, body: unknown, now: number): ReservedTime | undefined {
    this.#sweep(now)
    const first = this.#firstOf(tenant, body)
    if (!first) return undefined
    const { atMs, returnMs, nth } = first
    const { late, left } = this.#tenants.get(tenant) ?? { late: 0, left: 0 }
    const before = Math.max(0, (nth ?? late) - left)
    return {
      atMs,
      returnMs: returnMs,
      ahead: before,
      isDue: now >= atMs - EARLY_RETURN_MS,
      hasReturned: now >= returnMs - EARLY_RETURN_MS,
    }
  }

  add(tenant: string, body: unknown, { atMs, returnMs }: ReservedTimes, now: number): void {
    const count = this.counts.get(tenant) ?? 0
    if (atMs - now > RESERVE_AHEAD_MS_MAX || count >= RESERVED_MAX - this.#total) return
    const own = this.#tenants.get(tenant) ?? { reservations: new Map<string, Reservation[]>(), late: 0, left: 0 }
    this.#tenants.set(tenant, own)
    const key = fingerprintOf(body)
    const place: Reservation = { atMs, returnMs: returnMs, untilMs: keptUntil(atMs, now) }
    own.reservations.set(key, inOrder([...(own.reservations.get(key) ?? []), place]))
    change(this.counts, tenant, 1)
    this.#total++
  }

  /** Stores a new return time for a caller that came too early. */
  reserve(tenant: string, body: unknown, returnMs: number): void {
    const first = this.#firstOf(tenant, body)
    if (first) first.returnMs = returnMs
  }

  /**
   * Moves the reservation of a caller that returned when due and found the queue full. That caller stays ahead of all
   * reservations due later.
   */
  defer(tenant: string, body: unknown, { atMs, returnMs }: ReservedTimes, now: number): void {
    const own = this.#tenants.get(tenant)
    const same = own?.reservations.get(fingerprintOf(body))
    const first = same?.[0]
    if (!own || !same || !first) return
    Object.assign(first, { atMs, returnMs, untilMs: keptUntil(atMs, now) })
    // Another reservation of an equal request may now be earlier.
    inOrder(same)
    if (first.nth !== undefined) return
    first.nth = own.late++
    change(this.lateCounts, tenant, 1)
  }

  drop(tenant: string, body: unknown): void {
    const own = this.#tenants.get(tenant)
    const key = fingerprintOf(body)
    const same = own?.reservations.get(key)
    const first = same?.shift()
    if (!own || !same || !first) return
    if (same.length === 0) own.reservations.delete(key)
    this.#gone(tenant, own, [first])
  }

  #firstOf(tenant: string, body: unknown): Reservation | undefined {
    return this.#tenants.get(tenant)?.reservations.get(fingerprintOf(body))?.[0]
  }

  #gone(tenant: string, own: Tenant, places: readonly Reservation[]): void {
    const late = places.filter(({ nth }) => nth !== undefined).length
    own.left += late
    change(this.lateCounts, tenant, -late)
    change(this.counts, tenant, -places.length)
    this.#total -= places.length
    if (!this.counts.has(tenant)) this.#tenants.delete(tenant)
  }

  #sweep(now: number): void {
    if (this.#total === 0 || now - this.#sweptAtMs < SWEEP_INTERVAL_MS) return
    this.#sweptAtMs = now
    for (const [tenant, own] of this.#tenants) {
      for (const [key, same] of own.reservations) {
        const kept = same.filter(({ untilMs }) => untilMs >= now)
        if (kept.length === same.length) continue
        if (kept.length > 0) own.reservations.set(key, kept)
        else own.reservations.delete(key)
        this.#gone(
          tenant,
          own,
          same.filter((place) => !kept.includes(place)),
        )
      }
    }
  }
}

function inOrder(places: Reservation[]): Reservation[] {
  return places.sort((a, b) => a.atMs - b.atMs)
}

function change(counts: Map<string, number>, tenant: string, more: number): void {
  const all = (counts.get(tenant) ?? 0) + more
  if (all > 0) counts.set(tenant, all)
  else counts.delete(tenant)
}

/** Expiry of a reservation that is due at `atMs`. */
function keptUntil(atMs: number, now: number): number {
  return atMs + Math.max(LATE_RETURN_MS, (atMs - now) / 4)
}

/**
 * Recognises a repeated request: an FNV-1a hash over the length and both ends of each text, last parts first. The cost is bounded
 * for large requests. If two requests collide, then their callers may swap reservations, which is harmless.
 */
export function fingerprintOf(body: unknown): string {
  let hash = 0x811c9dc5
  const add = (text: string) => {
    for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0
  }
  const rest: unknown[] = [body]
  for (let parts = 0; rest.length > 0 && parts < PARTS_MAX; parts++) {
    const part = rest.pop()
    if (typeof part === 'string') add(`${part.length} ${part.slice(0, TEXT_CHARS)} ${part.slice(-TEXT_CHARS)}`)
    else if (Array.isArray(part)) rest.push(part.length, ...part.slice(-PARTS_MAX))
    else if (typeof part === 'object' && part !== null) rest.push(...Object.values(part).slice(-PARTS_MAX))
    else add(String(part))
  }
  return hash.toString(36)
}
