import type { PoolName } from '#schemas/job.ts'
import type { Price } from '#schemas/price.ts'
import { Metered } from '#schemas/usage.ts'
import type { Log } from '#shared/log/log.ts'
import { addUsage, type UsageEntry, type UsageLedger } from '#shared/store/records.ts'

/** Characters per token, for calls that end before the engine reports their tokens. */
const CHARS_PER_TOKEN = 4
export const NANOS_PER_USD = 1_000_000_000

export const NOTHING: Metered = Metered.parse({})

interface CountedEvent {
  readonly type?: string
  readonly input_tokens?: number
  readonly duration?: number
  readonly execution_time?: number
  readonly usage?: {
    readonly input_tokens: number
    readonly output_tokens: number
    readonly cached_tokens?: number
    readonly cost_usd?: number
  }
  readonly text?: string
}

/**
 * Computes the usage of one attempt from its events. The engine reports the usage at its end. If the attempt ends earlier, for example because the
 * caller disconnects, then the usage is estimated (docs/internals/protocol.md, Disconnects).
 */
export class Meter {
  #metered = NOTHING
  #promptTokens = 0
  #chars = 0
  #isCounted = false

  see(event: unknown): void {
    const { type, input_tokens = 0, duration, execution_time, usage, text } = event as CountedEvent
    if (type === 'start') {
      this.#promptTokens = input_tokens
      if (duration !== undefined) this.#metered = { ...this.#metered, audio_ms: Math.round(duration * 1_000) }
    } else if (usage) {
      const { input_tokens, output_tokens, cached_tokens = 0, cost_usd = 0 } = usage
      const cost_nanos = Math.round(cost_usd * NANOS_PER_USD)
      this.#isCounted = true
      this.#metered = { ...this.#metered, input_tokens, output_tokens, cached_tokens, cost_nanos }
    } else if (text !== undefined) this.#chars += text.length
    else if (execution_time !== undefined) {
      this.#metered = { ...this.#metered, run_ms: Math.round(execution_time * 1_000) }
    }
  }

  /**
   * Usage so far. Until the engine has reported its usage, the tokens of the output are estimated. For a composed job, the tokens of its child jobs are
   * included.
   */
  get metered(): Metered {
    if (this.#isCounted) return this.#metered
    const output_tokens = Math.ceil(this.#chars / CHARS_PER_TOKEN)
    return { ...this.#metered, input_tokens: this.#promptTokens, output_tokens }
  }
}

export function addMetered(a: Metered, b: Metered): Metered {
  return {
    input_tokens: a.input_tokens + b.input_tokens,
    cached_tokens: a.cached_tokens + b.cached_tokens,
    output_tokens: a.output_tokens + b.output_tokens,
    audio_ms: a.audio_ms + b.audio_ms,
    run_ms: a.run_ms + b.run_ms,
    cost_nanos: a.cost_nanos + b.cost_nanos,
  }
}

/** Billionths of a dollar per unit, for a price of one dollar per million units. */
const NANOS_PER_MILLIONTH = 1_000

export interface EndedCall {
  readonly project: string
  readonly keyId: string
  readonly pool: PoolName
  readonly model: string
  readonly endpoint: string
  readonly end: 'completed' | 'failed' | 'cancelled'
  readonly metered: Metered
  readonly endedAtMs: number
}

export function entryOf(call: EndedCall, price: Price | undefined): UsageEntry {
  const { project, keyId, pool, model, endpoint, end, endedAtMs } = call
  // A batch does not count as a call, because each of its requests does.
  const calls = pool === 'batches' ? 0 : 1
  // A research job uses tokens only through child jobs, which have ledger entries of their own. The research job itself therefore counts no tokens.
  const isComposed = pool === 'research'
  const metered = isComposed ? { ...call.metered, input_tokens: 0, cached_tokens: 0, output_tokens: 0 } : call.metered
  return {
    ...{ project, keyId, model, endpoint, hour: hourOf(endedAtMs), calls, failed: end === 'failed' ? calls : 0 },
    inputTokens: metered.input_tokens,
    cachedInputTokens: metered.cached_tokens,
    outputTokens: metered.output_tokens,
    audioMs: metered.audio_ms,
    costNanos: metered.cost_nanos + (price ? costNanos(metered, price, end === 'completed') : 0),
  }
}

const HOUR_MS = 3_600_000
let last = { nth: 0, hour: '1970-01-01T00' }

/** Returns the UTC hour of a time, such as `2030-01-31T08`. */
export function hourOf(unixMs: number): string {
  const nth = Math.floor(unixMs / HOUR_MS)
  if (nth !== last.nth) last = { nth, hour: new Date(unixMs).toISOString().slice(0, 13) }
  return last.hour
}

/** Returns the UTC day of a time, such as `2030-01-31`. */
export function dayOf(unixMs: number): string {
  return hourOf(unixMs).slice(0, 10)
}

export interface Month {
  readonly name: string
  readonly from: string
  readonly to: string
  readonly endsAtMs: number
}

export function monthOf(unixMs: number): Month {
  const day = dayOf(unixMs)
  const endsAtMs = Date.UTC(Number(day.slice(0, 4)), Number(day.slice(5, 7)))
  return { name: day.slice(0, 7), from: `${day.slice(0, 7)}-01`, to: dayOf(endsAtMs - 1), endsAtMs }
}

export function callCost(metered: Metered, price: Price | undefined, isCompleted: boolean): number | undefined {
  const hasPrice = price && Object.values(price).some((amount) => amount > 0)
  return hasPrice ? costNanos(metered, price, isCompleted) : undefined
}

/**
 * Returns the cost in whole billionths of a dollar, so that sums are exact. Tokens and time are charged even if the call failed. The price per call
 * is charged only if the call completed.
 */
function costNanos(metered: Metered, price: Price, isCompleted: boolean): number {
  const { input_tokens, output_tokens, audio_ms, run_ms } = metered
  const cached = Math.min(metered.cached_tokens, input_tokens)
  const { input_per_million, cached_input_per_million = input_per_million, output_per_million } = price
  const ofTokens =
    (input_tokens - cached) * input_per_million + cached * cached_input_per_million + output_tokens * output_per_million
  const ofTime = (audio_ms / 60_000) * price.per_minute_audio + (run_ms / 1_000) * price.per_second
  const ofCall = isCompleted ? price.per_call : 0
  return Math.round(ofTokens * NANOS_PER_MILLIONTH + (ofTime + ofCall) * NANOS_PER_USD)
}

/** Maximum time in ms until usage is written. A killed process loses the usage of at most this time. */
const WRITE_MS = 1_000
const ENTRIES_MAX = 500
/**
 * Maximum entries that wait to be written. Calls of one key, model, endpoint and hour share an entry, so only an outage with very many keys reaches
 * this number.
 */
const WAITING_MAX = 50_000

interface SentBatch {
  readonly number: number
  readonly entries: readonly UsageEntry[]
  readonly entered: PromiseWithResolvers<void> | undefined
}

/**
 * Usage of the calls of this process, summed in memory and written to the ledger once per second. While the ledger is unreachable, the sums stay in
 * memory. If the response to a write is lost, then the batch is sent again under the same number, and the ledger counts it once.
 */
export class UsageBatches {
  readonly ledger: UsageLedger
  /** True while the ledger is unreachable, so that entries wait in memory. */
  isFailing = false
  readonly #boot: string
  readonly #log: Log
  readonly #waiting = new Map<string, UsageEntry>()
  #sent: SentBatch | undefined
  /** Resolves when all entries that wait now are in the ledger. */
  #entered = Promise.withResolvers<void>()
  #number = 0
  #timer: NodeJS.Timeout | undefined
  #writing: Promise<void> | undefined
  #dropped = 0
  #isClosed = false

  constructor(ledger: UsageLedger, boot: string, log: Log) {
    this.ledger = ledger
    this.#boot = boot
    this.#log = log
  }

  /** Resolves when the entry is in the ledger. If the process ends earlier, then the promise never resolves. */
  add(entry: UsageEntry): Promise<void> {
    const id = JSON.stringify([entry.project, entry.keyId, entry.model, entry.endpoint, entry.hour])
    const before = this.#waiting.get(id)
    if (before || this.#waiting.size < WAITING_MAX)
      this.#waiting.set(id, before ? { ...before, ...addUsage(before, entry) } : entry)
    else this.#dropped++
    this.#writeLater()
    return this.#entered.promise
  }

  async #flush(signal: AbortSignal): Promise<void> {
    while (!signal.aborted && (this.#writing || this.#sent || this.#waiting.size > 0)) {
      await (this.#writing ?? this.#write())
      if (this.isFailing) await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }

  async close(): Promise<void> {
    await this.#flush(AbortSignal.timeout(WRITE_MS))
    this.#isClosed = true
    clearTimeout(this.#timer)
    const calls = [...(this.#sent?.entries ?? []), ...this.#waiting.values()].reduce(
      (sum, entry) => sum + entry.calls,
      0,
    )
    if (calls > 0)
      this.#log.error({ calls }, 'usage of some calls is lost, because the store was unavailable at shutdown')
  }

  #writeLater(): void {
    if (this.#isClosed) return
    this.#timer ??= setTimeout(() => this.#onTimer(), WRITE_MS).unref()
  }

  /**
   * Called when the timer fires. The field `#timer` is cleared first, because the end of a running write schedules the next write only if the field
   * is empty.
   */
  #onTimer(): void {
    this.#timer = undefined
    void this.#write()
  }

  #write(): Promise<void> {
    this.#writing ??= this.#writeOne().finally(() => {
      this.#writing = undefined
      if (this.#sent || this.#waiting.size > 0) this.#writeLater()
    })
    return this.#writing
  }

  async #writeOne(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#sent ??= this.#take()
    if (this.#sent.entries.length > 0) {
      try {
        await this.ledger.add(this.#boot, this.#sent.number, this.#sent.entries)
      } catch (error) {
        return this.#fail(error)
      }
    }
    this.#sent.entered?.resolve()
    this.#sent = undefined
    this.#recover()
  }

  #take(): SentBatch {
    const taken = [...this.#waiting].slice(0, ENTRIES_MAX)
    for (const [id] of taken) this.#waiting.delete(id)
    // All waiting callers share one promise. If this batch does not contain all waiting entries, then the batch with the last of them resolves the
    // promise.
    const entered = this.#waiting.size === 0 ? this.#entered : undefined
    if (entered) this.#entered = Promise.withResolvers<void>()
    return { number: ++this.#number, entries: taken.map(([, entry]) => entry), entered }
  }

  /** Only the first failure of an outage is logged, because an outage may last for hours. */
  #fail(error: unknown): void {
    if (!this.isFailing) this.#log.warn({ err: error }, 'usage ledger unavailable; retrying')
    this.isFailing = true
  }

  #recover(): void {
    if (this.isFailing)
      this.#log.info(
        { dropped_calls: this.#dropped },
        'usage ledger available again; usage of the dropped calls is lost',
      )
    this.isFailing = false
    this.#dropped = 0
  }
}
