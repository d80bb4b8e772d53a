import { abortable } from '#shared/abortable.ts'
import { backoffMs } from '#shared/backoff.ts'
import { ServiceError } from '#shared/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Sandbox, SandboxEnd, SandboxEvent, SandboxJob, SandboxStats } from '#shared/sandbox/sandbox.ts'
import { type ZygoteParts, ZygoteProcess } from './process.ts'

/*
 * The zygotes of one sandbox: one that runs are forked from, and older ones that only finish theirs.
 *
 *   starting → current → retired (500 runs or ten minutes: the next one is ready) → stopped
 *      ↓          ↓
 *    failed      died → the next run, or at once when one was lost, starts another, after a pause that grows
 */

/** All runs of one zygote share the layout of its memory; what one could learn of it is soon worth nothing. */
const RUNS_MAX = 500
const AGE_MS_MAX = 10 * 60_000
const RESTART = { baseMs: 250, maxMs: 30_000 }
/** One that lived so long did not die of how it was started. */
const STABLE_MS = 60_000

/** What a sandbox of zygotes takes. */
export interface ZygoteSandboxOptions {
  readonly parts: ZygoteParts
  readonly log: Log
  /** Runs until a zygote is replaced; default 500. */
  readonly runsMax?: number | undefined
  /** Age at which the next run has it replaced; default ten minutes. */
  readonly ageMsMax?: number | undefined
}

/** Runs code in forks of one warm interpreter. */
export class ZygoteSandbox implements Sandbox {
  readonly name = 'zygote'
  readonly #options: ZygoteSandboxOptions
  readonly #closing = new AbortController()
  #current: ZygoteProcess | undefined
  #starting: Promise<ZygoteProcess> | undefined
  readonly #alive = new Set<ZygoteProcess>()
  #failures = 0
  #notBeforeMs = 0
  #libraries: Readonly<Record<string, string>> = {}

  private constructor(options: ZygoteSandboxOptions) {
    this.#options = options
  }

  /** Starts the first zygote. The caller closes the sandbox. @throws ServiceError `sandbox_unavailable`; the abort reason */
  static async open(options: ZygoteSandboxOptions, signal: AbortSignal): Promise<ZygoteSandbox> {
    const sandbox = new ZygoteSandbox(options)
    try {
      await abortable(sandbox.#start(), signal)
      return sandbox
    } catch (error) {
      await sandbox.close()
      throw error
    }
  }

  get libraries(): Readonly<Record<string, string>> {
    return this.#libraries
  }

  async run(
    job: SandboxJob,
    onEvent: (event: SandboxEvent) => void,
    signal: AbortSignal,
    onStart?: () => void,
  ): Promise<SandboxEnd> {
    const zygote = this.#current ?? (await this.#startAgain(signal))
    onStart?.()
    const end = zygote.run(job, onEvent, AbortSignal.any([signal, this.#closing.signal]))
    if (this.#isDue(zygote)) this.#replace(zygote)
    return await end
  }

  stats(): SandboxStats {
    const busy = [...this.#alive].reduce((sum, zygote) => sum + zygote.busy, 0)
    return { idle: this.#current ? 1 : 0, busy }
  }

  async close(): Promise<void> {
    this.#closing.abort(new ServiceError('sandbox_lost', 'The sandbox was closed.'))
    this.#current = undefined
    await this.#starting?.catch(() => {})
    await Promise.all([...this.#alive].map((zygote) => zygote.stop()))
  }

  #isDue(zygote: ZygoteProcess): boolean {
    const { runsMax = RUNS_MAX, ageMsMax = AGE_MS_MAX } = this.#options
    return zygote.runs >= runsMax || performance.now() - zygote.startedMs > ageMsMax
  }

  /** Two are alive until the new one can fork; runs meanwhile take the old one. */
  #replace(old: ZygoteProcess): void {
    if (old !== this.#current || this.#starting || performance.now() < this.#notBeforeMs) return
    this.#start().then(
      () => old.retire(),
      (error: unknown) => {
        if (!this.#closing.signal.aborted) this.#options.log.warn({ err: error }, 'zygote not replaced')
      },
    )
  }

  async #startAgain(signal: AbortSignal): Promise<ZygoteProcess> {
    this.#closing.signal.throwIfAborted()
    const leftMs = this.#notBeforeMs - performance.now()
    if (!this.#starting && leftMs > 0) {
      const retryAfterMs = Math.ceil(leftMs)
      throw new ServiceError('sandbox_unavailable', 'The sandbox does not start; it is tried again.', { retryAfterMs })
    }
    return await abortable(this.#start(), signal)
  }

  /** One start at a time, shared by all who wait for it. */
  #start(): Promise<ZygoteProcess> {
    this.#starting ??= this.#startOne().finally(() => {
      this.#starting = undefined
    })
    return this.#starting
  }

  async #startOne(): Promise<ZygoteProcess> {
    try {
      const zygote = await ZygoteProcess.start(this.#options.parts, this.#closing.signal)
      this.#alive.add(zygote)
      void zygote.exited.then(() => this.#gone(zygote))
      this.#current = zygote
      this.#libraries = zygote.versions
      this.#options.log.debug({ pid: zygote.pid, duration_ms: msSince(zygote.startedMs) }, 'zygote ready')
      return zygote
    } catch (error) {
      this.#pause()
      throw error
    }
  }

  #gone(zygote: ZygoteProcess): void {
    this.#alive.delete(zygote)
    if (zygote !== this.#current) return
    this.#current = undefined
    if (msSince(zygote.startedMs) > STABLE_MS) this.#failures = 0
    const { log } = this.#options
    log.warn({ pid: zygote.pid, said: zygote.errors }, 'zygote died')
    // The first time at once: whoever tries a lost run again finds it warm.
    if (this.#failures === 0) this.#start().catch((error: unknown) => log.warn({ err: error }, 'zygote not started'))
    this.#pause()
  }

  #pause(): void {
    this.#failures += 1
    this.#notBeforeMs = performance.now() + backoffMs(this.#failures, RESTART, Math.random())
  }
}

function msSince(sinceMs: number): number {
  return Math.round(performance.now() - sinceMs)
}
