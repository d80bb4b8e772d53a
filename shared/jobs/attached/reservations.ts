/** Callers that may have been told when to come back; one tenant has no more of them than places are free for others. */
const RESERVED_MAX = 50_000
/** Longest time ahead that is remembered. */
const AHEAD_MS_MAX = 3_600_000
/** A caller may come so much before its time. */
const EARLY_MS = 500
/** And so much after it, or a quarter of what it was told to wait, where that is more. */
const LATE_MS = 5_000
/** How often those are looked for that did not come. */
const SWEEP_MS = 1_000
/** Parts of a request that are looked at to know it again, and characters at each end of a text. */
const PARTS_MAX = 500
const CHARS = 40

/** The times of a place. */
export interface PlaceTimes {
  /** When it is its turn. */
  readonly atMs: number
  /** When its caller was told to come back: then, or before, where that is longer than it would wait. */
  readonly backMs: number
}

/** The place of a caller that has come. */
export interface Place extends PlaceTimes {
  /** Its turn has come. */
  readonly isDue: boolean
  /** It has come when it was told to, or later. */
  readonly isBack: boolean
  /** Callers of its tenant that came when it was their turn, found no room, and are before it. */
  readonly before: number
}

/** A place, and until when it is kept. */
interface Reservation {
  atMs: number
  backMs: number
  untilMs: number
  /** Its caller came when it was its turn, found no room, and was the nth of its tenant that did. */
  nth?: number
}

/** The places of a tenant. */
interface Tenant {
  /** By request: the places of callers with equal requests, the earliest first. */
  readonly places: Map<string, Reservation[]>
  /** How many callers came when it was their turn and found no room, and how many of these have left. */
  late: number
  left: number
}

/**
 * The places of callers that were refused and told when to come back. New callers are behind them, or those who do as they are told
 * would find the place taken each time. Nobody gives a name: a caller is known by its tenant and its request.
 *
 * Who does not come back in time loses the place. All is bounded; what is beyond is told a time, and has no place.
 */
export class Reservations {
  readonly #tenants = new Map<string, Tenant>()
  /** How many each tenant has. */
  readonly counts = new Map<string, number>()
  /** How many of these are of callers that came when it was their turn, and found no room. */
  readonly lateCounts = new Map<string, number>()
  #total = 0
  #sweptAtMs = 0

  /** The place of a caller, unless it has none. */
  find(tenant: string, body: unknown, now: number): Place | undefined {
    this.#sweep(now)
    const first = this.#firstOf(tenant, body)
    if (!first) return undefined
    const { atMs, backMs, nth } = first
    const { late, left } = this.#tenants.get(tenant) ?? { late: 0, left: 0 }
    const before = Math.max(0, (nth ?? late) - left)
    return { atMs, backMs, before, isDue: now >= atMs - EARLY_MS, isBack: now >= backMs - EARLY_MS }
  }

  /** A caller has its place kept from a time on. */
  add(tenant: string, body: unknown, { atMs, backMs }: PlaceTimes, now: number): void {
    const count = this.counts.get(tenant) ?? 0
    if (atMs - now > AHEAD_MS_MAX || count >= RESERVED_MAX - this.#total) return
    const own = this.#tenants.get(tenant) ?? { places: new Map<string, Reservation[]>(), late: 0, left: 0 }
    this.#tenants.set(tenant, own)
    const key = fingerprintOf(body)
    const place: Reservation = { atMs, backMs, untilMs: keptUntil(atMs, now) }
    own.places.set(key, inOrder([...(own.places.get(key) ?? []), place]))
    change(this.counts, tenant, 1)
    this.#total++
  }

  /** A caller that has a place came before its turn, and is told again when to come. @param backMs That time */
  reserve(tenant: string, body: unknown, backMs: number): void {
    const first = this.#firstOf(tenant, body)
    if (first) first.backMs = backMs
  }

  /** A caller that has a place came when it was its turn, and there was no room. It stands before all whose turn comes later. */
  defer(tenant: string, body: unknown, { atMs, backMs }: PlaceTimes, now: number): void {
    const own = this.#tenants.get(tenant)
    const same = own?.places.get(fingerprintOf(body))
    const first = same?.[0]
    if (!own || !same || !first) return
    Object.assign(first, { atMs, backMs, untilMs: keptUntil(atMs, now) })
    // Another with an equal request may be due before.
    inOrder(same)
    if (first.nth !== undefined) return
    first.nth = own.late++
    change(this.lateCounts, tenant, 1)
  }

  /** A caller gives its place back, or has taken it. */
  drop(tenant: string, body: unknown): void {
    const own = this.#tenants.get(tenant)
    const key = fingerprintOf(body)
    const same = own?.places.get(key)
    const first = same?.shift()
    if (!own || !same || !first) return
    if (same.length === 0) own.places.delete(key)
    this.#gone(tenant, own, [first])
  }

  #firstOf(tenant: string, body: unknown): Reservation | undefined {
    return this.#tenants.get(tenant)?.places.get(fingerprintOf(body))?.[0]
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
    if (this.#total === 0 || now - this.#sweptAtMs < SWEEP_MS) return
    this.#sweptAtMs = now
    for (const [tenant, own] of this.#tenants) {
      for (const [key, same] of own.places) {
        const kept = same.filter(({ untilMs }) => untilMs >= now)
        if (kept.length === same.length) continue
        if (kept.length > 0) own.places.set(key, kept)
        else own.places.delete(key)
        this.#gone(
          tenant,
          own,
          same.filter((place) => !kept.includes(place)),
        )
      }
    }
  }
}

/** The earliest first. */
function inOrder(places: Reservation[]): Reservation[] {
  return places.sort((a, b) => a.atMs - b.atMs)
}

function change(counts: Map<string, number>, tenant: string, more: number): void {
  const all = (counts.get(tenant) ?? 0) + more
  if (all > 0) counts.set(tenant, all)
  else counts.delete(tenant)
}

/** Until when a place is kept. */
function keptUntil(atMs: number, now: number): number {
  return atMs + Math.max(LATE_MS, (atMs - now) / 4)
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
