import { abortable } from '#shared/lib/abortable.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Sandbox, SandboxAdapter, SandboxName, SandboxStats } from './sandbox.ts'

/*
 * The sandbox of this process: the first adapter that works on this machine. Adapters are tried in order, by really preparing and opening
 * them. If none works, then runs are refused and all are tried again later; there is no weaker fallback.
 *
 *   absent → preparing → prepared → opening → open
 *               ↓           ↑         ↓        ↓
 *               refused     └─────────│────────┘ (the sandbox cannot start runs any more)
 *               ↑  ↓ (a minute later) │
 *               └──┴──────────────────┘
 */

/** Delay before adapters that all failed are tried again. */
const RETRY_DELAY_MS = 60_000
/** Maximum time that a run waits for a sandbox to open; interpreters load their libraries in a few seconds. */
const OPEN_MS_MAX = 30_000
/** A preparation that ends sooner had nothing to do. The progress is then not reported, and callers wait for the end. */
const QUICK_MS = 2_000
/** Bounds of Retry-After for callers during a preparation. */
const RETRY_AFTER_MS = { min: 10_000, max: 60_000 }

/** An adapter whose libraries are loaded only when it is tried. */
export interface LoadAdapter {
  readonly name: SandboxName
  load(): Promise<SandboxAdapter>
}

export interface ChoiceOptions {
  /** Adapters in the order in which they are tried. Empty: sandboxes are switched off. */
  readonly adapters: readonly LoadAdapter[]
  /** Open the sandbox as soon as it is prepared; otherwise the first run opens it. */
  readonly isEager: boolean
  readonly log: Log
  /** Delay before adapters that all failed are tried again; default: a minute. */
  readonly againMs?: number
}

type State =
  | { readonly name: 'absent' | 'prepared' | 'opening' }
  | { readonly name: 'preparing'; readonly sinceMs: number; readonly fraction: number; readonly message: string }
  | { readonly name: 'open'; readonly sandbox: Sandbox }
  | { readonly name: 'refused'; readonly reason: string; readonly atMs: number }

type OnProgress = (fraction: number, message: string) => void

/** The sandbox of this process: prepare it, get it for each run, close it. */
export class ChosenSandbox {
  readonly #options: ChoiceOptions
  readonly #closing = new AbortController()
  #state: State = { name: 'absent' }
  #changed = Promise.withResolvers<void>()
  /** The running choice, shared by all callers that wait for it. */
  #choosing: Promise<void> | undefined
  /** Index of the adapter that worked last; earlier ones are not tried again. */
  #first = 0
  #again: NodeJS.Timeout | undefined
  readonly #discarded = new Set<Promise<void>>()

  constructor(options: ChoiceOptions) {
    this.#options = options
  }

  /**
   * Finds the first adapter that works and downloads its files. If none works, then all are tried again every minute.
   *
   * @throws ServiceError `sandbox_unavailable` with the reason of each adapter; the abort reason
   */
  async prepare(onProgress: OnProgress, signal: AbortSignal): Promise<void> {
    if (this.#options.adapters.length === 0) return
    await this.#choose(this.#options.isEager, onProgress, AbortSignal.any([signal, this.#closing.signal]))
  }

  /**
   * Returns the sandbox. If it is not open yet, then this opens it and waits up to {@link OPEN_MS_MAX}.
   *
   * @throws ServiceError `sandbox_unavailable` with `retryAfterMs`, and with the progress of the preparation or the reason of the failure;
   * the signal's reason
   */
  async get(signal: AbortSignal): Promise<Sandbox> {
    const opened = this.#sandbox
    if (opened) return opened
    if (this.#options.adapters.length === 0) throw this.#refusal()
    const late = AbortSignal.any([signal, this.#closing.signal, AbortSignal.timeout(OPEN_MS_MAX)])
    // The next statements handle an abort.
    while (!isSettled(this.#state) && !late.aborted) await abortable(this.#news(), late).catch(() => {})
    signal.throwIfAborted()
    this.#closing.signal.throwIfAborted()
    if (this.#sandbox) return this.#sandbox
    throw this.#refusal()
  }

  /** Removes a sandbox that cannot start runs; the next run opens another one. */
  discard(sandbox: Sandbox): void {
    if (this.#sandbox !== sandbox) return
    this.#become({ name: 'prepared' })
    this.#options.log.warn({ sandbox: sandbox.name }, 'sandbox lost; the next run selects another')
    const closed = sandbox
      .close()
      .catch((error: unknown) => this.#options.log.error({ err: error }, 'sandbox could not be closed'))
    this.#discarded.add(closed)
    void closed.then(() => this.#discarded.delete(closed))
  }

  /** Reasons why no code can run now, as sentences. */
  problems(): string[] {
    const { name } = this.#state
    const isFine = name === 'prepared' || name === 'open' || this.#options.adapters.length === 0
    return isFine ? [] : [this.#refusal().message]
  }

  /** Zeros while no sandbox is open. */
  stats(): SandboxStats {
    return this.#sandbox?.stats() ?? { idle: 0, busy: 0 }
  }

  /** Ends every run and process, and waits for their ends. May be called twice. */
  async close(): Promise<void> {
    this.#closing.abort(new ServiceError('overloaded', 'The worker is shutting down.', { retryAfterMs: 1_000 }))
    clearTimeout(this.#again)
    await this.#choosing?.catch(() => {})
    await this.#sandbox?.close()
    await Promise.all(this.#discarded)
  }

  get #sandbox(): Sandbox | undefined {
    return this.#state.name === 'open' ? this.#state.sandbox : undefined
  }

  /** Resolves when the state may have changed. If the sandbox is prepared, then the first waiting caller opens it. */
  async #news(): Promise<void> {
    const changed = this.#changed.promise
    if (this.#state.name !== 'prepared') return await changed
    // The state contains the reason of a failure, in the form for callers.
    const chosen = this.#choose(true, () => {}, this.#closing.signal).catch(() => {})
    await Promise.race([chosen, changed])
  }

  /** Runs one choice at a time; concurrent callers share it. */
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
        // Debug level, because another adapter may work. `sluice doctor` reports each adapter.
        log.debug({ sandbox: name, reason }, 'sandbox kind unavailable; trying the next kind')
        reasons.push(`${name}: ${reason}`)
      }
    }
    this.#first = 0
    throw this.#refuse(reasons)
  }

  async #try(adapter: SandboxAdapter, isToOpen: boolean, onProgress: OnProgress, signal: AbortSignal): Promise<void> {
    const { log } = this.#options
    const sinceMs = performance.now()
    const report = (fraction: number, message: string) => {
      this.#become({ name: 'preparing', sinceMs, fraction, message })
      onProgress(fraction, message)
    }
    await unlessQuick(report, (onProgress) => adapter.prepare(onProgress, signal))
    if (isToOpen) {
      this.#become({ name: 'opening' })
      const sandbox = await adapter.open(signal)
      this.#become({ name: 'open', sandbox })
      log.info({ sandbox: adapter.name, duration_ms: Math.round(performance.now() - sinceMs) }, 'sandbox opened')
    } else {
      this.#become({ name: 'prepared' })
      log.info({ sandbox: adapter.name }, 'sandbox prepared; the first run opens it')
    }
  }

  /** Records that no adapter works, and schedules the next attempt. */
  #refuse(reasons: readonly string[]): ServiceError {
    const { isEager, log, againMs = RETRY_DELAY_MS } = this.#options
    const reason = `No sandbox works on this machine. ${reasons.join(' ')} More: sluice doctor.`
    this.#become({ name: 'refused', reason, atMs: performance.now() })
    clearTimeout(this.#again)
    this.#again = setTimeout(() => {
      this.#choose(isEager, () => {}, this.#closing.signal).catch((error: unknown) => {
        if (!this.#closing.signal.aborted) log.warn({ err: error }, 'no sandbox available; retrying')
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
    if (adapters.length === 0) return unavailable('Code execution is disabled (SANDBOX=off).', RETRY_DELAY_MS)
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

/** Runs work whose progress is reported only if it takes long. */
async function unlessQuick(report: OnProgress, work: (onProgress: OnProgress) => Promise<void>): Promise<void> {
  let isLong = false
  let last: Parameters<OnProgress> | undefined
  const timer = setTimeout(() => {
    isLong = true
    if (last) report(...last)
  }, QUICK_MS)
  try {
    await work((fraction, message) => {
      last = [fraction, message]
      if (isLong) report(fraction, message)
    })
  } finally {
    clearTimeout(timer)
  }
}

/** Whether waiting is pointless: the sandbox is open, or callers must retry later. */
function isSettled({ name }: State): boolean {
  return name === 'open' || name === 'refused' || name === 'preparing'
}
