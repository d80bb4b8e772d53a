import { abortable } from '#shared/abortable.ts'
import { ServiceError } from '#shared/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Sandbox, SandboxAdapter, SandboxName, SandboxStats } from './sandbox.ts'

/*
 * The sandbox of this process: the first of the adapters that works on this machine, found out by really preparing and
 * opening each in its turn. When none does, runs are refused, and it tries again later; there is no weaker way.
 *
 *   absent → preparing → prepared → opening → open
 *               ↓           ↑         ↓        ↓
 *               refused     └─────────│────────┘ (it cannot start runs any more)
 *               ↑  ↓ (a minute later) │
 *               └──┴──────────────────┘
 */

/** When adapters that all failed are tried again. */
const RETRY_DELAY_MS = 60_000
/** A run waits so long for a sandbox that opens; interpreters load their libraries in a few seconds. */
const OPEN_MS_MAX = 30_000
/** A preparation that is done sooner was none, since all was there: it is not announced, and callers wait for it. */
const QUICK_MS = 2_000
/** What callers who meet a preparation are told, at least and at most. */
const RETRY_AFTER_MS = { min: 10_000, max: 60_000 }

/** One way to sandbox, whose libraries are loaded when it is its turn. */
export interface LoadAdapter {
  readonly name: SandboxName
  load(): Promise<SandboxAdapter>
}

/** What {@link ChosenSandbox} takes. */
export interface ChoiceOptions {
  /** In the order in which they are tried; none: sandboxes are switched off. */
  readonly adapters: readonly LoadAdapter[]
  /** Open it as soon as it is prepared; otherwise the first run does. */
  readonly isEager: boolean
  readonly log: Log
  /** When adapters that all failed are tried again; default: a minute. */
  readonly againMs?: number
}

type State =
  | { readonly name: 'absent' | 'prepared' | 'opening' }
  | { readonly name: 'preparing'; readonly sinceMs: number; readonly fraction: number; readonly message: string }
  | { readonly name: 'open'; readonly sandbox: Sandbox }
  | { readonly name: 'refused'; readonly reason: string; readonly atMs: number }

type OnProgress = (fraction: number, message: string) => void

/** The sandbox of this process. Prepare it, get it for each run, close it. */
export class ChosenSandbox {
  readonly #options: ChoiceOptions
  readonly #closing = new AbortController()
  #state: State = { name: 'absent' }
  #changed = Promise.withResolvers<void>()
  /** A choice under way, shared by all who wait for it. */
  #choosing: Promise<void> | undefined
  /** Place of the adapter that worked last: those before it had their turn. */
  #first = 0
  #again: NodeJS.Timeout | undefined
  readonly #discarded = new Set<Promise<void>>()

  constructor(options: ChoiceOptions) {
    this.#options = options
  }

  /**
   * Finds the adapter that works here and fetches what it needs. When none works it is tried again every minute.
   *
   * @throws ServiceError `sandbox_unavailable` with the reason of each adapter; the abort reason
   */
  async prepare(onProgress: OnProgress, signal: AbortSignal): Promise<void> {
    if (this.#options.adapters.length === 0) return
    await this.#choose(this.#options.isEager, onProgress, AbortSignal.any([signal, this.#closing.signal]))
  }

  /**
   * The sandbox, which is opened when it is not yet; waits for that for a while.
   *
   * @throws ServiceError `sandbox_unavailable` with `retryAfterMs`: how far its preparation is, or why there is none; the
   *   signal's reason
   */
  async get(signal: AbortSignal): Promise<Sandbox> {
    const opened = this.#sandbox
    if (opened) return opened
    if (this.#options.adapters.length === 0) throw this.#refusal()
    const late = AbortSignal.any([signal, this.#closing.signal, AbortSignal.timeout(OPEN_MS_MAX)])
    // Who gave up is asked below.
    while (!isSettled(this.#state) && !late.aborted) await abortable(this.#news(), late).catch(() => {})
    signal.throwIfAborted()
    this.#closing.signal.throwIfAborted()
    if (this.#sandbox) return this.#sandbox
    throw this.#refusal()
  }

  /** Takes a sandbox that cannot start runs out of use; the next run opens another. */
  discard(sandbox: Sandbox): void {
    if (this.#sandbox !== sandbox) return
    this.#become({ name: 'prepared' })
    this.#options.log.warn({ sandbox: sandbox.name }, 'sandbox lost; the next run looks for another')
    const closed = sandbox
      .close()
      .catch((error: unknown) => this.#options.log.error({ err: error }, 'sandbox not closed'))
    this.#discarded.add(closed)
    void closed.then(() => this.#discarded.delete(closed))
  }

  /** Sentences that say why no code can run now. */
  problems(): string[] {
    const { name } = this.#state
    const isFine = name === 'prepared' || name === 'open' || this.#options.adapters.length === 0
    return isFine ? [] : [this.#refusal().message]
  }

  /** Zeros as long as it is not open. */
  stats(): SandboxStats {
    return this.#sandbox?.stats() ?? { idle: 0, busy: 0 }
  }

  /** Ends every run and every process, and waits for that. A second call does nothing more. */
  async close(): Promise<void> {
    this.#closing.abort(new ServiceError('overloaded', 'The worker is shutting down.', { retryAfterMs: 1_000 }))
    clearTimeout(this.#again)
    await this.#choosing?.catch(() => {})
    await this.#sandbox?.close()
    await Promise.all(this.#discarded)
  }

  /** Undefined while none is open. */
  get #sandbox(): Sandbox | undefined {
    return this.#state.name === 'open' ? this.#state.sandbox : undefined
  }

  /** Resolves when it may be worth looking again. The first who waits for what is prepared has it opened. */
  async #news(): Promise<void> {
    const changed = this.#changed.promise
    if (this.#state.name !== 'prepared') return await changed
    // Why it does not open is said by the state, in the words for callers.
    const chosen = this.#choose(true, () => {}, this.#closing.signal).catch(() => {})
    await Promise.race([chosen, changed])
  }

  /** One choice at a time; who comes meanwhile waits for the same. */
  #choose(isToOpen: boolean, onProgress: OnProgress, signal: AbortSignal): Promise<void> {
    this.#choosing ??= this.#chooseOnce(isToOpen, onProgress, signal).finally(() => {
      this.#choosing = undefined
    })
    return this.#choosing
  }

  async #chooseOnce(isToOpen: boolean, onProgress: OnProgress, signal: AbortSignal): Promise<void> {
    const { adapters, log } = this.#options
    const reasons: string[] = []
    for (const [place, { name, load }] of [...adapters.entries()].slice(this.#first)) {
      try {
        await this.#try(await load(), isToOpen, onProgress, signal)
        this.#first = place
        return
      } catch (error) {
        signal.throwIfAborted()
        const { message: reason } = ServiceError.from(error)
        // That another one works is all there is to know; `sluice doctor` tells of each.
        log.debug({ sandbox: name, reason }, 'sandbox not used')
        reasons.push(`${name}: ${reason}`)
      }
    }
    this.#first = 0
    throw this.#refuse(reasons)
  }

  async #try(adapter: SandboxAdapter, isToOpen: boolean, onProgress: OnProgress, signal: AbortSignal): Promise<void> {
    const { log } = this.#options
    const sinceMs = performance.now()
    const tell = (fraction: number, message: string) => {
      this.#become({ name: 'preparing', sinceMs, fraction, message })
      onProgress(fraction, message)
    }
    await unlessQuick(tell, (onProgress) => adapter.prepare(onProgress, signal))
    if (isToOpen) {
      this.#become({ name: 'opening' })
      const sandbox = await adapter.open(signal)
      this.#become({ name: 'open', sandbox })
      log.info({ sandbox: adapter.name, duration_ms: Math.round(performance.now() - sinceMs) }, 'sandbox open')
    } else {
      this.#become({ name: 'prepared' })
      log.info({ sandbox: adapter.name }, 'sandbox prepared; the first run opens it')
    }
  }

  /** Remembers that nothing works, and tries again by itself. */
  #refuse(reasons: readonly string[]): ServiceError {
    const { isEager, log, againMs = RETRY_DELAY_MS } = this.#options
    const reason = `No sandbox works on this machine. ${reasons.join(' ')} More: sluice doctor.`
    this.#become({ name: 'refused', reason, atMs: performance.now() })
    clearTimeout(this.#again)
    this.#again = setTimeout(() => {
      this.#choose(isEager, () => {}, this.#closing.signal).catch((error: unknown) => {
        if (!this.#closing.signal.aborted) log.warn({ err: error }, 'still no sandbox')
      })
    }, againMs).unref()
    return this.#refusal()
  }

  #become(state: State): void {
    this.#state = state
    this.#changed.resolve()
    this.#changed = Promise.withResolvers()
  }

  #refusal(): ServiceError {
    const { adapters } = this.#options
    if (adapters.length === 0) return unavailable('Code is not run here: its operator set SANDBOX=off.', RETRY_DELAY_MS)
    const state = this.#state
    const now = performance.now()
    if (state.name === 'refused') return unavailable(state.reason, state.atMs + RETRY_DELAY_MS - now)
    if (state.name === 'absent')
      return unavailable('The sandbox is prepared after the models. Try again in a minute.', RETRY_DELAY_MS)
    if (state.name !== 'preparing') return unavailable('The sandbox is being opened. Try again shortly.', 0)
    const { fraction, message, sinceMs } = state
    const leftMs = fraction > 0 ? ((now - sinceMs) / fraction) * (1 - fraction) : 0
    const text = `The sandbox is being prepared (${Math.floor(100 * fraction)} %: ${message}). Try again shortly.`
    return unavailable(text, leftMs)
  }
}

function unavailable(message: string, afterMs: number): ServiceError {
  const retryAfterMs = Math.min(Math.max(afterMs, RETRY_AFTER_MS.min), RETRY_AFTER_MS.max)
  return new ServiceError('sandbox_unavailable', message, { retryAfterMs })
}

/** Does work whose progress is told only once it takes long. */
async function unlessQuick(tell: OnProgress, work: (onProgress: OnProgress) => Promise<void>): Promise<void> {
  let isLong = false
  let last: Parameters<OnProgress> | undefined
  const timer = setTimeout(() => {
    isLong = true
    if (last) tell(...last)
  }, QUICK_MS)
  try {
    await work((fraction, message) => {
      last = [fraction, message]
      if (isLong) tell(fraction, message)
    })
  } finally {
    clearTimeout(timer)
  }
}

/** Waiting helps no more: it is there, or its callers have to come again. */
function isSettled({ name }: State): boolean {
  return name === 'open' || name === 'refused' || name === 'preparing'
}
