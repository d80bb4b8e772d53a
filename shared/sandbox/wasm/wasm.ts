import { availableParallelism } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { Semaphore } from '#shared/capacity/semaphore.ts'
import { abortable } from '#shared/lib/abortable.ts'
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import {
  probed,
  type Sandbox,
  type SandboxAdapter,
  type SandboxEnd,
  type SandboxEvent,
  type SandboxJob,
  type SandboxStats,
} from '#shared/sandbox/sandbox.ts'
import { prepareWasmFiles, type WasmFiles } from './files.ts'
import { WasmProcess } from './process.ts'

const BACKOFF: Backoff = { baseMs: 250, maxMs: 10_000 }

/** Maximum crashes within `WINDOW_MS`. After more crashes, no process is started until the oldest crash is older than `WINDOW_MS`. */
const CRASHES_MAX = 5
const WINDOW_MS = 5 * 60_000

/** Maximum interpreters that are restored in advance. Each takes 110 MB. */
const READY_MAX = 2

const GUARANTEES = [
  'Isolation: each run is WebAssembly in its own thread, inside a process that can read five paths, write none and start no processes.',
  'Files: none of the host; 64 MB of scratch space in memory, 32 MB per file, 128 descriptors. No network, processes or signals: the system calls do not exist.',
  'Memory: 512 MiB beyond the warm interpreter, enforced by the engine. Time: the thread is terminated. CPU: one core per run, as many runs as cores.',
  'Not supported: threads, subprocesses, symbolic links, warnings of floating-point errors; sys.maxsize is 2**31 - 1. Computation takes about twice as long as in other sandboxes.',
  'Not supported: a hash seed per run. All runs have the same one; random, numpy.random and os.urandom are seeded for each run.',
  'Not provided: isolation by the operating system. Code that escapes WebAssembly through a V8 vulnerability runs in the confined process with other runs, as the user of the service and with its network.',
] as const

export interface WasmOptions {
  /** Directory of the library and the image, which take 270 MB. */
  readonly directory: string
  readonly python?: string | undefined
  readonly log: Log
}

/**
 * The sandbox for machines with neither containers nor namespaces, and for macOS and Windows: CPython as WebAssembly in a confined Node
 * process.
 *
 *     service ── frames ── confined process ── a thread per run ── WebAssembly ── Python
 *
 * The first barrier is WebAssembly: the program has its own memory and only the calls of shared/sandbox/wasm/inside/interpreter.ts. The
 * second barrier is the confined process.
 */
export function wasmAdapter({ directory, python, log }: WasmOptions): SandboxAdapter {
  const prepare = (signal: AbortSignal, onProgress?: (fraction: number, message: string) => void) =>
    prepareWasmFiles(directory, { python, signal, onProgress })
  return {
    name: 'wasm',
    guarantees: GUARANTEES,
    prepare: async (onProgress, signal) => void (await prepare(signal, onProgress)),
    check: async (signal) => void (await prepareWasmFiles(directory, { python, signal, checksOnly: true })),
    open: async (signal) => {
      const sandbox = new WasmSandbox(await prepare(signal), log)
      try {
        return await probed(sandbox, signal)
      } catch (cause) {
        signal.throwIfAborted()
        const { message } = ServiceError.from(cause)
        const advice = 'The WebAssembly sandbox needs Node.js 24.15 or newer and 1 GB of memory.'
        throw new ServiceError('sandbox_unavailable', `${message} ${advice}`, { cause })
      }
    },
  }
}

class WasmSandbox implements Sandbox {
  readonly name = 'wasm'
  readonly libraries: Sandbox['libraries']
  readonly #files: WasmFiles
  readonly #log: Log
  readonly #slots = new Semaphore({ permits: availableParallelism() })
  readonly #closing = new AbortController()
  readonly #restarts = new Restarts()
  #running: WasmProcess | undefined
  #starting: Promise<WasmProcess> | undefined

  constructor(files: WasmFiles, log: Log) {
    this.#files = files
    this.#log = log
    this.libraries = files.facts.libraries
  }

  async run(
    job: SandboxJob,
    onEvent: (event: SandboxEvent) => void,
    signal: AbortSignal,
    onStart?: () => void,
  ): Promise<SandboxEnd> {
    const either = AbortSignal.any([signal, this.#closing.signal])
    await this.#slots.take(either)
    try {
      const wasm = await abortable(this.#process(), either)
      onStart?.()
      return await wasm.run(job, onEvent, either)
    } finally {
      this.#slots.release()
    }
  }

  stats(): SandboxStats {
    return { idle: this.#running?.idle ?? 0, busy: this.#slots.taken }
  }

  async close(): Promise<void> {
    this.#closing.abort(new ServiceError('sandbox_lost', 'The sandbox was closed.'))
    await this.#starting?.catch(() => {})
    await this.#running?.stop()
  }

  async #process(): Promise<WasmProcess> {
    if (this.#running?.isRunning) return this.#running
    this.#starting ??= this.#start().finally(() => {
      this.#starting = undefined
    })
    return await this.#starting
  }

  async #start(): Promise<WasmProcess> {
    if (this.#running) this.#restarts.note()
    this.#running = undefined
    await sleep(this.#restarts.delayMs(Math.random()), undefined, { signal: this.#closing.signal })
    const startedMs = performance.now()
    try {
      const ready = Math.min(READY_MAX, availableParallelism())
      this.#running = await WasmProcess.start(this.#files, ready, this.#log, this.#closing.signal)
    } catch (cause) {
      this.#closing.signal.throwIfAborted()
      this.#restarts.note()
      throw new ServiceError('sandbox_lost', 'The sandbox did not start.', { cause })
    }
    const duration_ms = Math.round(performance.now() - startedMs)
    this.#log.info({ pid: this.#running.pid, duration_ms }, 'sandbox process started')
    return this.#running
  }
}

export class Restarts {
  readonly #now: () => number
  #crashesMs: number[] = []

  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  note(): void {
    this.#crashesMs.push(this.#now())
  }

  /**
   * Returns the time in ms to wait before the next start. 0 if there was no recent crash.
   *
   * @throws ServiceError `sandbox_unavailable` after too many crashes
   */
  delayMs(random: number): number {
    const now = this.#now()
    this.#crashesMs = this.#crashesMs.filter((atMs) => now - atMs < WINDOW_MS)
    const [oldest, count] = [this.#crashesMs[0], this.#crashesMs.length]
    if (oldest === undefined) return 0
    if (count < CRASHES_MAX) return backoffMs(count, BACKOFF, random)
    const retryAfterMs = oldest + WINDOW_MS - now
    throw new ServiceError('sandbox_unavailable', 'The WebAssembly sandbox crashed too often.', { retryAfterMs })
  }
}
