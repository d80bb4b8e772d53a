import type { Log } from '#shared/log/log.ts'
import type { UsageEntry, UsageLedger } from '#shared/store/usage.ts'

/** How long what was used may wait to be written, in milliseconds: what a process that is killed may lose. */
const WRITE_MS = 1_000
/** Entries of one write. */
const ENTRIES_MAX = 500
/** Entries that wait at most. Each key and model has one a day, so that no outage fills them but one of very many keys. */
const WAITING_MAX = 50_000

/** A batch of entries on its way. */
interface SentBatch {
  readonly number: number
  readonly entries: readonly UsageEntry[]
  readonly entered: PromiseWithResolvers<void> | undefined
}

/**
 * What the calls of this process used, on its way to the ledger: summed up in memory, and written once a second. While the
 * ledger is away sums wait; the same batch is sent again when its answer was lost, and is counted once.
 */
export class UsageBatches {
  readonly ledger: UsageLedger
  /** The ledger is away, and what is added waits. */
  isFailing = false
  readonly #boot: string
  readonly #log: Log
  readonly #waiting = new Map<string, UsageEntry>()
  #sent: SentBatch | undefined
  /** Settles once what waits now is in the ledger. */
  #entered = Promise.withResolvers<void>()
  #number = 0
  #timer: NodeJS.Timeout | undefined
  #writing: Promise<void> | undefined
  #dropped = 0
  #isClosed = false

  /** @param boot Names this process to the ledger: no other may ever have had it. */
  constructor(ledger: UsageLedger, boot: string, log: Log) {
    this.ledger = ledger
    this.#boot = boot
    this.#log = log
  }

  /** Resolves once the entry is in the ledger; never if this process ends before. */
  add(entry: UsageEntry): Promise<void> {
    const id = JSON.stringify([entry.project, entry.keyId, entry.model, entry.day])
    const before = this.#waiting.get(id)
    if (before || this.#waiting.size < WAITING_MAX) this.#waiting.set(id, before ? sumOf(before, entry) : entry)
    else this.#dropped++
    this.#writeLater()
    return this.#entered.promise
  }

  /** Writes what waits, until `signal`. */
  async #flush(signal: AbortSignal): Promise<void> {
    while (!signal.aborted && (this.#writing || this.#sent || this.#waiting.size > 0)) {
      await (this.#writing ?? this.#write())
      if (this.isFailing) await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }

  /** Writes what waits, for a moment, and ends. */
  async close(): Promise<void> {
    await this.#flush(AbortSignal.timeout(WRITE_MS))
    this.#isClosed = true
    clearTimeout(this.#timer)
    const calls = [...(this.#sent?.entries ?? []), ...this.#waiting.values()].reduce(
      (sum, entry) => sum + entry.calls,
      0,
    )
    if (calls > 0) this.#log.error({ calls }, 'usage of calls not written')
  }

  #writeLater(): void {
    if (this.#isClosed) return
    this.#timer ??= setTimeout(() => void this.#write(), WRITE_MS).unref()
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
        return this.#lose(error)
      }
    }
    this.#sent.entered?.resolve()
    this.#sent = undefined
    this.#found()
  }

  #take(): SentBatch {
    const taken = [...this.#waiting].slice(0, ENTRIES_MAX)
    for (const [id] of taken) this.#waiting.delete(id)
    // What is left over belongs to the same promise, which settles with the batch that takes the last of it.
    const entered = this.#waiting.size === 0 ? this.#entered : undefined
    if (entered) this.#entered = Promise.withResolvers<void>()
    return { number: ++this.#number, entries: taken.map(([, entry]) => entry), entered }
  }

  /** Said once: an outage may last for hours. */
  #lose(error: unknown): void {
    if (!this.isFailing) this.#log.warn({ err: error }, 'usage not written; it waits')
    this.isFailing = true
  }

  #found(): void {
    if (this.isFailing) this.#log.info({ dropped_calls: this.#dropped }, 'usage is written again')
    this.isFailing = false
    this.#dropped = 0
  }
}

function sumOf(a: UsageEntry, b: UsageEntry): UsageEntry {
  return {
    ...a,
    calls: a.calls + b.calls,
    failed: a.failed + b.failed,
    inputTokens: a.inputTokens + b.inputTokens,
    cachedInputTokens: a.cachedInputTokens + b.cachedInputTokens,
    outputTokens: a.outputTokens + b.outputTokens,
    audioMs: a.audioMs + b.audioMs,
    costNanos: a.costNanos + b.costNanos,
  }
}
