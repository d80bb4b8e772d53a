import { abortable } from '#shared/lib/abortable.ts'
import { backoffMs } from '#shared/lib/backoff.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { Sandbox, SandboxEnd, SandboxEvent, SandboxJob, SandboxStats } from '#shared/sandbox/sandbox.ts'
import { type ZygoteParts, ZygoteProcess } from './process.ts'

/** Number of runs after which a zygote is replaced. All runs of one zygote have an equal memory layout, which a program could learn and use later. */
const RUNS_MAX = 500
const AGE_MS_MAX = 10 * 60_000
const RESTART = { baseMs: 250, maxMs: 30_000 }
/** A zygote that dies before this age, in ms, counts as a failed start. */
const STABLE_MS = 60_000

export interface ZygoteSandboxOptions {
  readonly parts: ZygoteParts
  readonly log: Log
  readonly runsMax?: number | undefined
  readonly ageMsMax?: number | undefined
}

/**
 * The zygotes of one sandbox. A zygote is a Python interpreter with loaded libraries that forks a process for each run. New runs use the current
 * zygote, and retired zygotes finish their runs.
 *
 *     starting → current → retired (after 500 runs or ten minutes, when the next one is ready) → stopped
 *        ↓          ↓
 *      failed      died
 *
 * If a start fails or a zygote dies, then a delay begins, which grows with each failure. The first run after the delay starts a new zygote.
 * Exception: after the first death, a new zygote is started at once, without waiting for a run.
 */
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
    const zygote = this.#current ?? (await this.#startOrRefuse(signal))
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

  /** Replaces the current zygote. Runs use the old zygote until the new zygote can fork, so both run for a moment. */
  #replace(old: ZygoteProcess): void {
    if (old !== this.#current || this.#starting || performance.now() < this.#notBeforeMs) return
    this.#start().then(
      () => old.retire(),
      (error: unknown) => {
        if (!this.#closing.signal.aborted)
          this.#options.log.warn({ err: error }, 'sandbox zygote not replaced; runs continue in the old one')
      },
    )
  }

  async #startOrRefuse(signal: AbortSignal): Promise<ZygoteProcess> {
    this.#closing.signal.throwIfAborted()
    const leftMs = this.#notBeforeMs - performance.now()
    if (!this.#starting && leftMs > 0) {
      const retryAfterMs = Math.ceil(leftMs)
      throw new ServiceError('sandbox_unavailable', 'The sandbox does not start; retrying.', { retryAfterMs })
    }
    return await abortable(this.#start(), signal)
  }

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
      void zygote.exited.then(() => this.#onExit(zygote))
      this.#current = zygote
      this.#libraries = zygote.versions
      this.#options.log.debug({ pid: zygote.pid, duration_ms: msSince(zygote.startedMs) }, 'sandbox zygote ready')
      return zygote
    } catch (error) {
      this.#pause()
      throw error
    }
  }

  #onExit(zygote: ZygoteProcess): void {
    this.#alive.delete(zygote)
    if (zygote !== this.#current) return
    this.#current = undefined
    if (msSince(zygote.startedMs) > STABLE_MS) this.#failures = 0
    const { log } = this.#options
    log.warn({ pid: zygote.pid, stderr: zygote.errors }, 'sandbox zygote exited unexpectedly; its runs fail')
    // After the first loss, a new zygote is started at once, so that a retry of the lost run succeeds.
    if (this.#failures === 0)
      this.#start().catch((error: unknown) =>
        log.warn({ err: error }, 'sandbox zygote could not be started; the next run retries'),
      )
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
