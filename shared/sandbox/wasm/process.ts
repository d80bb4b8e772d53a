import { setTimeout as sleep } from 'node:timers/promises'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { Log } from '#shared/log/log.ts'
import { Channel, withFiles } from '#shared/sandbox/channel.ts'
import { encodeRunFrame, type Frame, FrameReader, splitRun } from '#shared/sandbox/protocol/frames.ts'
import { PLOT_BYTES_MAX } from '#shared/sandbox/protocol/limits.ts'
import type { SandboxEnd, SandboxEvent, SandboxJob } from '#shared/sandbox/sandbox.ts'
import { type ConfinedChild, collectErrors, spawnConfined, type WasmFiles } from './files.ts'

/** Timeout in ms from the start of the process to the first interpreter. On a busy machine, the start takes seconds. */
const START_MS = 60_000
/**
 * Time in ms after the timeout of a run within which its end must be reported. Otherwise the process counts as broken.
 */
const OVERDUE_MS = 15_000
/** Time in ms after a cancel within which the end of the run must be reported. Otherwise the process is killed. */
const CANCEL_MS = 5_000
const STOP_MS = 2_000
/** Maximum bytes of a message before its payload: the number of the run, and the header of the frame that the message contains. */
const HEADERS_BYTES = 16

interface Run {
  readonly channel: Channel
  readonly lose: (error: ServiceError) => void
}

export class WasmProcess {
  readonly #child: ConfinedChild
  readonly #runs = new Map<number, Run>()
  readonly #started = Promise.withResolvers<void>()
  readonly #exited = Promise.withResolvers<void>()
  #lastRun = 0
  #idle = 0
  #isRunning = true

  private constructor(child: ConfinedChild, log: Log) {
    this.#child = child
    const errors = collectErrors(child)
    const reader = new FrameReader(PLOT_BYTES_MAX + HEADERS_BYTES)
    child.stdout.on('data', (chunk: Buffer) => this.#read(reader, chunk))
    // When the child ends, this stream fails with EPIPE. The error is ignored, because the handler of `close` reports
    // the end.
    child.stdin.on('error', () => {})
    child.on('error', (error) => this.#end(error))
    child.on('close', (code, killedBy) => {
      if (this.#isRunning)
        log.warn({ exit: code ?? killedBy, stderr: errors() }, 'sandbox process ended unexpectedly; its runs fail')
      this.#end(new Error(`the sandbox's process ended with ${code ?? killedBy}: ${errors()}`))
    })
  }

  /**
   * Starts the process and waits until it can run jobs.
   *
   * @param ready Number of idle interpreters.
   * @throws Error if the process ends before it is ready, or the abort reason. No process is left running
   */
  static async start(files: WasmFiles, ready: number, log: Log, signal: AbortSignal): Promise<WasmProcess> {
    const { libraryDir, imageDir } = files
    const child = spawnConfined(['serve', libraryDir, imageDir, String(ready)], [libraryDir, imageDir])
    const wasm = new WasmProcess(child, log)
    const limit = AbortSignal.any([signal, AbortSignal.timeout(START_MS)])
    const kill = () => void wasm.stop()
    limit.addEventListener('abort', kill, { once: true })
    try {
      await wasm.#started.promise
      return wasm
    } catch (error) {
      signal.throwIfAborted()
      throw error
    } finally {
      limit.removeEventListener('abort', kill)
    }
  }

  get pid(): number | undefined {
    return this.#child.pid
  }

  get idle(): number {
    return this.#idle
  }

  get isRunning(): boolean {
    return this.#isRunning
  }

  /**
   * Runs a job.
   *
   * @throws ServiceError `sandbox_lost`. The signal's reason, after the run has ended
   */
  async run(job: SandboxJob, onEvent: (event: SandboxEvent) => void, signal: AbortSignal): Promise<SandboxEnd> {
    const { files, ...fields } = job
    const said = await runYielding(withFiles(fields, files), signal)
    signal.throwIfAborted()
    this.#lastRun += 1
    const number = this.#lastRun
    const { promise: ended, resolve: onEnd, reject: lose } = Promise.withResolvers<SandboxEnd>()
    const emit = (event: SandboxEvent) => void (signal.aborted || onEvent(event))
    this.#runs.set(number, { channel: new Channel({ onEvent: emit, onEnd }), lose })
    const watchdog = new Watchdog(() =>
      this.#break(new Error('the sandbox process did not end a run within its timeout')),
    )
    const cancel = () => {
      this.#child.stdin.write(encodeRunFrame('C', number))
      watchdog.expect(CANCEL_MS)
    }
    watchdog.expect(job.timeoutMs + OVERDUE_MS)
    signal.addEventListener('abort', cancel, { once: true })
    if (this.#isRunning) this.#child.stdin.write(encodeRunFrame('J', number, said))
    else lose(lost(new Error('the sandbox process has ended')))
    try {
      return await ended
    } catch (error) {
      signal.throwIfAborted()
      throw error
    } finally {
      watchdog.stop()
      signal.removeEventListener('abort', cancel)
      this.#runs.delete(number)
    }
  }

  async stop(): Promise<void> {
    this.#isRunning = false
    this.#child.stdin.end()
    await Promise.race([this.#exited.promise, sleep(STOP_MS, undefined, { ref: false })])
    this.#child.kill('SIGKILL')
    await this.#exited.promise
  }

  #read(reader: FrameReader, chunk: Buffer): void {
    try {
      for (const frame of reader.push(chunk)) this.#take(frame)
    } catch (error) {
      this.#break(error as Error)
    }
  }

  #take(frame: Frame): void {
    if (frame.type === 'I') {
      this.#idle = Number(JSON.parse(frame.payload.toString()))
      this.#started.resolve()
      return
    }
    const { run: number, rest } = splitRun(frame)
    const run = this.#runs.get(number)
    if (frame.type === 'L') run?.lose(lost(new Error(rest.toString())))
    else run?.channel.take(rest)
  }

  /** Kills the process after an invalid message, because all further messages could be invalid too. */
  #break(cause: Error): void {
    this.#end(cause)
    this.#child.kill('SIGKILL')
  }

  #end(cause: Error): void {
    this.#isRunning = false
    this.#idle = 0
    this.#started.reject(cause)
    for (const run of this.#runs.values()) run.lose(lost(cause))
    if (this.#child.exitCode !== null || this.#child.signalCode !== null || this.#child.pid === undefined) {
      this.#exited.resolve()
    }
  }
}

class Watchdog {
  readonly #onMissing: () => void
  #timer: NodeJS.Timeout | undefined

  constructor(onMissing: () => void) {
    this.#onMissing = onMissing
  }

  expect(withinMs: number): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(this.#onMissing, withinMs)
  }

  stop(): void {
    clearTimeout(this.#timer)
  }
}

function lost(cause: Error): ServiceError {
  return new ServiceError('sandbox_lost', 'The sandbox failed while the code was running.', { cause })
}
