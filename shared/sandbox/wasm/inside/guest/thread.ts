import { Worker } from 'node:worker_threads'
import { OUTPUT_BYTES_MAX } from '#shared/sandbox/limits.ts'
import type { Module } from '#shared/sandbox/wasm/inside/engine.ts'
import type { Image, Library } from '#shared/sandbox/wasm/inside/interpreter.ts'
import { OutputBuffers, SharedOutput } from '#shared/sandbox/wasm/inside/shared-output.ts'
import { WORKER_START, type WorkerCode } from '#shared/sandbox/wasm/inside/worker-code.ts'

/** The stack for WebAssembly: Python counts its own depth and must reach its limit first. */
const STACK_MB = 32
/** JavaScript objects of a thread: files, descriptors. The interpreter's memory and the bytes of files are not in it. */
const HEAP_MB = 64

const BUFFERS = new OutputBuffers(OUTPUT_BYTES_MAX)

/** What all threads share, and none changes. */
export interface Prepared {
  readonly module: Module
  readonly library: Library
  readonly image: Image
  readonly code: WorkerCode
}

/** What a thread begins with. */
export interface ThreadData extends Prepared {
  readonly output: { readonly stdout: SharedArrayBuffer; readonly stderr: SharedArrayBuffer }
}

/** What it runs. */
export interface ThreadJob {
  readonly code: string
  readonly timeoutMs: number
  readonly scan: boolean
  /** By their names, in base64. */
  readonly files: Readonly<Record<string, string>>
}

/** What it tells. */
export type ThreadMessage =
  | { readonly type: 'ready' }
  | { readonly type: 'output' }
  | { readonly type: 'plot'; readonly png: Uint8Array }
  | { readonly type: 'end'; readonly end: ThreadEnd }

/** How a run ended, in the words of a supervisor (shared/sandbox/channel.ts). */
export type ThreadEnd =
  | { readonly type: 'exit'; readonly exit_code: number }
  | { readonly type: 'violations'; readonly violations: readonly string[] }
  | { readonly type: 'timeout' }

/** What a run gives while it goes on. */
export type OnPart = (type: 'stdout' | 'stderr' | 'plot', bytes: Uint8Array) => void

/** One interpreter in a thread of its own, for one run. */
export class GuestThread {
  readonly #worker: Worker
  readonly #output = {
    stdout: new SharedOutput(BUFFERS.take()),
    stderr: new SharedOutput(BUFFERS.take()),
  }
  readonly #end = Promise.withResolvers<ThreadEnd>()
  #onPart: OnPart = () => {}
  /** Resolves when the interpreter is restored. Rejects when it cannot be. */
  readonly ready: Promise<void>

  constructor(prepared: Prepared) {
    const output = { stdout: this.#output.stdout.buffer, stderr: this.#output.stderr.buffer }
    this.#worker = new Worker(WORKER_START, {
      eval: true,
      workerData: { ...prepared, output } satisfies ThreadData,
      resourceLimits: { stackSizeMb: STACK_MB, maxOldGenerationSizeMb: HEAP_MB },
      env: {},
    })
    const ready = Promise.withResolvers<void>()
    this.ready = ready.promise
    this.#worker.on('message', (message: ThreadMessage) => {
      if (message.type === 'ready') ready.resolve()
      else this.#take(message)
    })
    const lost = (error: unknown) => {
      ready.reject(error)
      this.#end.reject(error)
    }
    // Not everyone waits for both.
    ready.promise.catch(() => {})
    this.#end.promise.catch(() => {})
    this.#worker.on('error', lost)
    this.#worker.on('exit', (code) => lost(new Error(`the thread ended with ${code}`)))
  }

  /** Runs a program, at most once. Output is complete when this resolves. @throws Error when the thread is lost */
  async run(job: ThreadJob, onPart: OnPart): Promise<ThreadEnd> {
    this.#onPart = onPart
    const timer = setTimeout(() => this.#end.resolve({ type: 'timeout' }), job.timeoutMs)
    this.#worker.postMessage(job)
    const end = await this.#end.promise.finally(() => clearTimeout(timer))
    const stopped = this.stop()
    // One that is in a loop still writes; one that told its end does not.
    if (end.type === 'timeout') await stopped
    this.#drain()
    for (const stream of ['stdout', 'stderr'] as const) {
      const { total } = this.#output[stream]
      if (total > OUTPUT_BYTES_MAX) onPart(stream, Buffer.from(`\n[output truncated: ${total} bytes in all]\n`))
    }
    void stopped.then(() => {
      for (const { buffer } of Object.values(this.#output)) BUFFERS.giveBack(buffer)
    })
    return end
  }

  /** Ends it, whatever it does, and waits for that. */
  async stop(): Promise<void> {
    await this.#worker.terminate()
  }

  #take(message: Exclude<ThreadMessage, { type: 'ready' }>): void {
    // What was written before a plot comes before it.
    this.#drain()
    if (message.type === 'plot') this.#onPart('plot', message.png)
    if (message.type === 'end') this.#end.resolve(message.end)
  }

  #drain(): void {
    for (const stream of ['stdout', 'stderr'] as const) {
      const bytes = this.#output[stream].take()
      if (bytes.length > 0) this.#onPart(stream, bytes)
    }
  }
}
