import { setTimeout as sleep } from 'node:timers/promises'
import type { Dispatcher } from 'undici'
import { abortable } from '#shared/lib/abortable.ts'
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import { LOCAL_SERVER_RESOURCE, type Preparations } from '#shared/prepare/preparations.ts'
import { BackgroundPreparation, type OnProgress, type PreparationState } from '#shared/prepare/prepare.ts'
import { describePython } from '#shared/prepare/python.ts'
import {
  discardEnvironment,
  type Environment,
  getEnvironmentState,
  getModelState,
  prepareEnvironment,
  prepareModel,
} from './environment.ts'
import type { ServerProcess } from './server-process.ts'

/*
 * Manages the local model server, a Python process that serves the OpenAI API on a UNIX socket. The server transcribes
 * speech, finds speakers, computes embeddings and decodes audio. The first call starts the process. After `idleMs`
 * without calls, the process is stopped. If the process was stopped or has crashed, then the next call starts another
 * process.
 *
 * States: stopped → starting → running → stopped (idle or crashed)
 */

const IDLE_MS = 10 * 60_000
const MEMORY_BYTES_MAX = 2 * 1024 ** 3
const AUDIO_SECONDS_MAX = 4 * 3600
const RESTART_BACKOFF: Backoff = { baseMs: 250, maxMs: 30_000 }
/** After this number of crashes within CRASH_WINDOW_MS, the server is not started again until the oldest of them is older than CRASH_WINDOW_MS. */
const CRASHES_MAX = 5
const CRASH_WINDOW_MS = 5 * 60_000
/** Maximum time in ms for which a call waits for a restart after a crash. If the backoff is longer, then the call fails with Retry-After. */
const WAIT_MS_MAX = 1_000

export interface LocalServerOptions {
  readonly directory: string
  readonly python?: string | undefined
  readonly log: Log
  readonly preparations?: Preparations | undefined
  /** Time in ms without a call after which the process is stopped. Default: 10 minutes. */
  readonly idleMs?: number | undefined
  /** Maximum private memory of each server process, in bytes. Default: 2 GiB. The maximum of the audio decoder is always 1 GiB. */
  readonly memoryBytesMax?: number | undefined
  readonly audioSecondsMax?: number | undefined
}

/**
 * A connection to the running server, for undici's `request`. Call {@link LocalServer.connect} before each request, because the server may have been
 * replaced by a new process.
 */
export interface LocalConnection {
  readonly origin: string
  readonly dispatcher: Dispatcher
}

/** The local model server. Each process of Sluice creates one, and closes it with {@link LocalServer.close}. */
export class LocalServer {
  readonly #options: LocalServerOptions
  readonly #closing = new AbortController()
  #starting: Promise<ServerProcess> | undefined
  #running: ServerProcess | undefined
  #stopping: Promise<void> | undefined
  readonly #preparation = new BackgroundPreparation('The local model server')
  readonly #found = new Set<string>()
  readonly #models = new Map<string, BackgroundPreparation>()
  /** Models that are being prepared, each with a promise for its end. All calls that need the model wait for the same promise. */
  readonly #waits = new Map<string, Promise<void>>()
  #crashesMs: number[] = []
  #idleTimer: NodeJS.Timeout | undefined
  #lastCallMs = 0

  constructor(options: LocalServerOptions) {
    this.#options = options
  }

  async state(): Promise<PreparationState<Environment>> {
    return await getEnvironmentState(this.#options.directory)
  }

  /**
   * Prepares the Python packages and models, unless they are ready.
   *
   * @param onProgress Called with a fraction from 0 to 1 and the name of the running step
   * @throws ServiceError `model_loading` with one line about the missing dependency, or the abort reason
   */
  async prepare(onProgress?: OnProgress, signal?: AbortSignal): Promise<void> {
    const { directory, python, preparations } = this.#options
    const either = signal ? AbortSignal.any([signal, this.#ending]) : this.#ending
    const report: OnProgress = (fraction, message) => {
      // If the environment is complete from the start, then the only report is the fraction 1. In this case no preparation is shown.
      if (fraction < 1 || preparations?.fractionOf(LOCAL_SERVER_RESOURCE) !== undefined)
        preparations?.report(LOCAL_SERVER_RESOURCE, fraction, message)
      onProgress?.(fraction, message)
    }
    await prepareEnvironment(directory, { onProgress: report, signal: either, python })
  }

  /**
   * Returns a connection, and starts the server if needed. If the environment or the model is missing, then its preparation is started, and the call
   * waits for the end of it.
   *
   * @param model The model that the call needs. Undefined if the call needs only models that every environment contains
   * @throws ServiceError `model_loading` with `retryAfterMs` if the preparation has failed, or if the server does not start or crashed too often; the
   * abort reason
   */
  async connect(signal: AbortSignal, model?: string): Promise<LocalConnection> {
    signal.throwIfAborted()
    this.#closing.signal.throwIfAborted()
    this.#lastCallMs = performance.now()
    if (model !== undefined && !this.#found.has(model)) await abortable(this.#findModel(model), signal)
    // While the call waited for its model, the idle timer may have stopped the server. `#running` is therefore read
    // after the wait.
    const server = this.#running ?? (await abortable(this.#start(), signal))
    this.#lastCallMs = performance.now()
    return { origin: server.origin, dispatcher: server.pool }
  }

  get pid(): number | undefined {
    return this.#running?.pid
  }

  /** Stops the server and waits until its process has ended. Running calls fail. A second call has no effect. */
  async close(): Promise<void> {
    this.#closing.abort(
      new ServiceError('overloaded', 'The worker is shutting down.', { retryAfterMs: 1_000, reason: 'draining' }),
    )
    clearInterval(this.#idleTimer)
    await this.#starting?.catch(() => {})
    await this.#running?.stop()
    await this.#stopping
    await this.#preparation.settled()
    for (const preparation of this.#models.values()) await preparation.settled()
  }

  /** Starts the server once for all waiting calls. If one of these calls is aborted, then the start continues. */
  #start(): Promise<ServerProcess> {
    this.#starting ??= this.#startOnce().finally(() => {
      this.#starting = undefined
    })
    return this.#starting
  }

  async #startOnce(): Promise<ServerProcess> {
    const environment = await this.#findEnvironment()
    await this.#keepBudget()
    const { log, memoryBytesMax = MEMORY_BYTES_MAX, audioSecondsMax = AUDIO_SECONDS_MAX } = this.#options
    const startedMs = performance.now()
    const limits = { memoryBytesMax, audioSecondsMax }
    // The module with the HTTP client is imported only here. Processes that never start the server save its memory.
    const { ServerProcess } = await import('./server-process.ts')
    const server = await ServerProcess.start(environment, limits, log, this.#closing.signal).catch((error) => {
      if (!this.#closing.signal.aborted) this.#crashesMs.push(performance.now())
      throw error
    })
    log.info({ pid: server.pid, duration_ms: Math.round(performance.now() - startedMs) }, 'local model server started')
    this.#running = server
    void server.exited.then((end) => this.#onExit(server, end))
    this.#watchIdle()
    return server
  }

  async #findEnvironment(): Promise<Environment> {
    const wanted = { state: () => this.state(), prepare: () => this.prepare() }
    const environment = await this.#preparation.wait(wanted, this.#ending)
    if (await this.#isPythonUnchanged(environment)) return environment
    this.#options.log.warn(
      { built_for: environment.python.tag },
      'Python of the local model server changed or is missing; installing its packages and models again',
    )
    await discardEnvironment(environment)
    this.#found.clear()
    return await this.#preparation.wait(wanted, this.#ending)
  }

  /**
   * Returns false if the Python of the environment is missing or was replaced, so the environment must be prepared again.
   *
   * @throws ServiceError `model_loading` for other failures, such as a full process table or a timeout; the reason of the shutdown
   */
  async #isPythonUnchanged({ python }: Environment): Promise<boolean> {
    try {
      return (await describePython(python.executable, this.#closing.signal)).tag === python.tag
    } catch (error) {
      this.#closing.signal.throwIfAborted()
      const { cause } = error as { readonly cause?: NodeJS.ErrnoException }
      // An error without a cause means that the interpreter ran but is unsuitable, for example too old.
      if (cause === undefined || cause.code === 'ENOENT') return false
      throw error
    }
  }

  #findModel(name: string): Promise<void> {
    const running = this.#waits.get(name)
    if (running) return running
    const wait = this.#waitForModel(name).finally(() => this.#waits.delete(name))
    this.#waits.set(name, wait)
    return wait
  }

  async #waitForModel(name: string): Promise<void> {
    const environment = await this.#findEnvironment()
    const { preparations, python } = this.#options
    const onProgress: OnProgress = (fraction, message) => preparations?.report(name, fraction, message)
    const state = () => getModelState(environment, name)
    const prepare = () => prepareModel(environment, name, { onProgress, signal: this.#ending, python })
    const preparation = this.#models.get(name) ?? new BackgroundPreparation(`The model ${name}`)
    this.#models.set(name, preparation)
    await preparation.wait({ state, prepare }, this.#ending)
    this.#found.add(name)
  }

  /** Signal that aborts when this object is closed, or when the whole process stops. */
  get #ending(): AbortSignal {
    const { preparations } = this.#options
    return preparations ? AbortSignal.any([this.#closing.signal, preparations.stopping]) : this.#closing.signal
  }

  /**
   * Waits until the backoff after the last crash has elapsed.
   *
   * @throws ServiceError `model_loading` if the backoff exceeds {@link WAIT_MS_MAX} or the server crashed too often
   */
  async #keepBudget(): Promise<void> {
    const now = performance.now()
    this.#crashesMs = this.#crashesMs.filter((atMs) => now - atMs < CRASH_WINDOW_MS)
    const [oldest, last] = [this.#crashesMs[0], this.#crashesMs.at(-1)]
    if (oldest === undefined || last === undefined) return
    const count = this.#crashesMs.length
    const nextMs = count < CRASHES_MAX ? last + backoffMs(count, RESTART_BACKOFF, 1) : oldest + CRASH_WINDOW_MS
    if (nextMs - now > WAIT_MS_MAX) {
      const message = 'The local model server crashed and will be started again.'
      throw new ServiceError('model_loading', message, { retryAfterMs: nextMs - now })
    }
    if (nextMs > now) await sleep(nextMs - now, undefined, { signal: this.#closing.signal })
  }

  #onExit(server: ServerProcess, end: number | string): void {
    if (this.#running !== server) return
    this.#running = undefined
    clearInterval(this.#idleTimer)
    if (!this.#closing.signal.aborted) {
      this.#crashesMs.push(performance.now())
      this.#options.log.error(
        { exit: end, crashes: this.#crashesMs.length },
        'local model server crashed; the next call starts it again',
      )
    }
    this.#stopping = server.stop()
  }

  #watchIdle(): void {
    const { idleMs = IDLE_MS, log } = this.#options
    clearInterval(this.#idleTimer)
    this.#idleTimer = setInterval(() => {
      const server = this.#running
      if (!server) return
      if (server.isBusy) this.#lastCallMs = performance.now()
      if (performance.now() - this.#lastCallMs < idleMs) return
      // From now on, a call starts a new server process, although the old one has not ended yet.
      this.#running = undefined
      clearInterval(this.#idleTimer)
      log.info({ pid: server.pid }, 'local model server stopped because it was idle')
      this.#stopping = server.stop()
    }, idleMs / 4)
    this.#idleTimer.unref()
  }
}
