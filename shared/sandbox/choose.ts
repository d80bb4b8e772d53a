import { abortable } from '#shared/lib/abortable.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import { type Preparations, SANDBOX_RESOURCE } from '#shared/prepare/preparations.ts'
import type { Sandbox, SandboxAdapter, SandboxName, SandboxStats } from './sandbox.ts'

/** Delay in ms after which all adapters are tried again if none worked. */
const RETRY_DELAY_MS = 60_000
/** Maximum time in ms for which a run waits until a prepared sandbox is open. An interpreter loads its libraries in a few seconds. */
const OPEN_MS_MAX = 30_000
/** Minimum duration in ms of a preparation whose progress is reported. A shorter preparation only checks existing files. */
const QUICK_MS = 2_000
const RETRY_AFTER_MS = { min: 10_000, max: 60_000 }

export interface LoadAdapter {
  readonly name: SandboxName
  load(): Promise<SandboxAdapter>
}

export interface ChoiceOptions {
  /** Adapters in the order in which they are tried. An empty list disables sandboxes. */
  readonly adapters: readonly LoadAdapter[]
  /** Whether the sandbox is opened as soon as it is prepared. If false, then the first run opens it. */
  readonly isEager: boolean
  readonly log: Log
  readonly preparations?: Preparations | undefined
  /** Delay in ms before the adapters are tried again if all of them failed. Default: one minute. */
  readonly retryDelayMs?: number
}

type State =
  | { readonly name: 'absent' | 'prepared' | 'opening' }
  | { readonly name: 'preparing'; readonly sinceMs: number; readonly fraction: number; readonly message: string }
  | { readonly name: 'open'; readonly sandbox: Sandbox }
  | { readonly name: 'refused'; readonly reason: string; readonly atMs: number }

type OnProgress = (fraction: number, message: string) => void

/**
 * Selects the sandbox of this process: the first adapter that works on this machine. Each adapter is tried by really preparing and opening it. If
 * none works, then runs are refused, and all adapters are tried again later. There is no less secure fallback.
 *
 *     absent → preparing → prepared → opening → open
 *                 ↓           ↑         ↓        ↓
 *                 refused     └─────────│────────┘ (the sandbox cannot start runs any more)
 *                 ↑  ↓ (a minute later) │
 *                 └──┴──────────────────┘
 */
export class ChosenSandbox {
  readonly #options: ChoiceOptions
  readonly #closing = new AbortController()
  #state: State = { name: 'absent' }
  #changed = Promise.withResolvers<void>()
  #choosing: Promise<void> | undefined
  /** Index of the adapter that worked last. A later selection starts with this adapter. */
  #first = 0
  #retryTimer: NodeJS.Timeout | undefined
  readonly #discarded = new Set<Promise<void>>()

  constructor(options: ChoiceOptions) {
    this.#options = options
  }

  /**
   * Finds the first adapter that works and downloads its files. If none works, then all are tried again every minute.
   *
   * @throws ServiceError `sandbox_unavailable` with the reason of each adapter, or the abort reason
   */
  async prepare(onProgress: OnProgress, signal: AbortSignal): Promise<void> {
    if (this.#options.adapters.length === 0) return
    await this.#choose(this.#options.isEager, onProgress, AbortSignal.any([signal, this.#stopping]))
  }

  /**
   * Returns the sandbox. If no sandbox is open, then this call opens one. The call waits for the preparation until its signal aborts, and
   * for the opening up to {@link OPEN_MS_MAX}.
   *
   * @throws ServiceError `sandbox_unavailable` with `retryAfterMs` and the reason of the failure; the signal's reason
   */
  async get(signal: AbortSignal): Promise<Sandbox> {
    const opened = this.#sandbox
    if (opened) return opened
    if (this.#options.adapters.length === 0) throw this.#refusal()
    const stopped = AbortSignal.any([signal, this.#stopping])
    while (!isSettled(this.#state)) {
      const isPrepared = this.#state.name === 'prepared' || this.#state.name === 'opening'
      const late = isPrepared ? AbortSignal.any([stopped, AbortSignal.timeout(OPEN_MS_MAX)]) : stopped
      // This wait may end with an abort or an error. Both are ignored here, because the next statements check the state
      // and the signal.
      await abortable(this.#untilChanged(), late).catch(() => {})
      stopped.throwIfAborted()
      if (late.aborted) break
    }
    if (this.#sandbox) return this.#sandbox
    throw this.#refusal()
  }

  /** Removes a sandbox that can no longer start runs. The next run opens another sandbox. */
  discard(sandbox: Sandbox): void {
    if (this.#sandbox !== sandbox) return
    this.#setState({ name: 'prepared' })
    this.#options.log.warn({ sandbox: sandbox.name }, 'sandbox cannot start runs; the next run opens another sandbox')
    const closed = sandbox
      .close()
      .catch((error: unknown) =>
        this.#options.log.error(
          { err: error },
          'unusable sandbox could not be closed; its processes may continue to run',
        ),
      )
    this.#discarded.add(closed)
    void closed.then(() => this.#discarded.delete(closed))
  }

  problems(): string[] {
    const { name } = this.#state
    const isFine = name === 'prepared' || name === 'open' || this.#options.adapters.length === 0
    return isFine ? [] : [this.#refusal().message]
  }

  stats(): SandboxStats {
    return this.#sandbox?.stats() ?? { idle: 0, busy: 0 }
  }

  async close(): Promise<void> {
    this.#closing.abort(
      new ServiceError('overloaded', 'The worker is shutting down.', { retryAfterMs: 1_000, reason: 'draining' }),
    )
    clearTimeout(this.#retryTimer)
    await this.#choosing?.catch(() => {})
    await this.#sandbox?.close()
    await Promise.all(this.#discarded)
  }

  /** Aborts when the sandbox is closed, or when the process stops. */
  get #stopping(): AbortSignal {
    const { preparations } = this.#options
    return preparations ? AbortSignal.any([this.#closing.signal, preparations.stopping]) : this.#closing.signal
  }

  get #sandbox(): Sandbox | undefined {
    return this.#state.name === 'open' ? this.#state.sandbox : undefined
  }

  /** Resolves when the state may have changed. The first waiting caller prepares and opens the sandbox, unless that is in progress. */
  async #untilChanged(): Promise<void> {
    const changed = this.#changed.promise
    const { name } = this.#state
    if (name !== 'prepared' && name !== 'absent') return await changed
    // A failure of the selection is also stored in the state, so the rejection is ignored here.
    const chosen = this.#choose(true, () => {}, this.#stopping).catch(() => {})
    await Promise.race([chosen, changed])
  }

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
        // Logged as debug only, because another adapter may work. `sluice doctor` reports the result of each adapter.
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
      this.#setState({ name: 'preparing', sinceMs, fraction, message })
      this.#options.preparations?.report(SANDBOX_RESOURCE, fraction, message)
      onProgress(fraction, message)
    }
    await unlessQuick(report, (onProgress) => adapter.prepare(onProgress, signal))
    if (this.#state.name === 'preparing') this.#options.preparations?.report(SANDBOX_RESOURCE, 1, 'ready')
    if (isToOpen) {
      this.#setState({ name: 'opening' })
      const sandbox = await adapter.open(signal)
      this.#setState({ name: 'open', sandbox })
      log.info({ sandbox: adapter.name, duration_ms: Math.round(performance.now() - sinceMs) }, 'sandbox opened')
    } else {
      this.#setState({ name: 'prepared' })
      log.info({ sandbox: adapter.name }, 'sandbox prepared; the first run opens it')
    }
  }

  #refuse(reasons: readonly string[]): ServiceError {
    const { isEager, log, retryDelayMs = RETRY_DELAY_MS } = this.#options
    const reason = `No sandbox works on this machine. ${reasons.join(' ')} For details: npx sluice doctor.`
    this.#setState({ name: 'refused', reason, atMs: performance.now() })
    clearTimeout(this.#retryTimer)
    this.#retryTimer = setTimeout(() => {
      this.#choose(isEager, () => {}, this.#stopping).catch((error: unknown) => {
        if (!this.#stopping.aborted)
          log.warn({ err: error }, 'no sandbox works on this machine; code runs are refused until a retry succeeds')
      })
    }, retryDelayMs).unref()
    return this.#refusal()
  }

  #setState(state: State): void {
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

/** True if the selection has ended: the sandbox is open, or no adapter works. */
function isSettled({ name }: State): boolean {
  return name === 'open' || name === 'refused'
}
