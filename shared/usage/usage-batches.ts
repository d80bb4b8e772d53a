import type { Log } from '#shared/log/log.ts'
import type { UsageEntry, UsageLedger } from '#shared/store/records.ts'

/** Maximum time in ms until usage is written. A process that is killed loses at most the usage of this time. */
const WRITE_MS = 1_000
const ENTRIES_MAX = 500
/**
 * Maximum queued entries. Calls of one key, model and day share an entry, so only an outage with very many keys reaches this
 * number.
 */
const WAITING_MAX = 50_000

interface SentBatch {
  readonly number: number
  readonly entries: readonly UsageEntry[]
  readonly entered: PromiseWithResolvers<void> | undefined
}

/**
 * Usage of the calls of this process, summed in memory and written to the ledger once per second. The sums are kept while the
 * ledger is unreachable. If the answer to a write is lost, then the batch is sent again under the same number, and the ledger
 * counts it once.
 */
export class UsageBatches {
  readonly ledger: UsageLedger
  /** True while the ledger is unreachable and entries therefore stay queued. */
  isFailing = false
  readonly #boot: string
  readonly #log: Log
  readonly #waiting = new Map<string, UsageEntry>()
  #sent: SentBatch | undefined
  /** Settles when all entries that are queued now are in the ledger. */
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
    const id = JSON.stringify([entry.project, entry.keyId, entry.model, entry.day])
    const before = this.#waiting.get(id)
    if (before || this.#waiting.size < WAITING_MAX) this.#waiting.set(id, before ? sumOf(before, entry) : entry)
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
    if (calls > 0) this.#log.error({ calls }, 'usage of these calls lost at shutdown: the ledger was unavailable')
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
    // If entries remain queued after this batch, then the promise settles with the batch that contains the last of them.
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
    if (this.isFailing) this.#log.info({ dropped_calls: this.#dropped }, 'usage ledger recovered')
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
