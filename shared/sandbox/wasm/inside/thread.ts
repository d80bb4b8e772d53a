import { Worker } from 'node:worker_threads'
import { OUTPUT_BYTES_MAX } from '#shared/sandbox/protocol/limits.ts'
import type { Image, Library } from './interpreter.ts'
import { OutputBuffers, SharedOutput } from './shared-output.ts'
import type { Module } from './wasi/engine.ts'
import { WORKER_START, type WorkerCode } from './worker-code.ts'

/** Stack size in MB for WebAssembly. Python counts its own recursion depth, and must reach its limit before the stack is full. */
const STACK_MB = 32
/** Heap size in MB of a thread for JavaScript objects. The interpreter's memory and the contents of files are outside the heap. */
const HEAP_MB = 64

const BUFFERS = new OutputBuffers(OUTPUT_BYTES_MAX)

export interface Prepared {
  readonly module: Module
  readonly library: Library
  readonly image: Image
  readonly code: WorkerCode
}

export interface ThreadData extends Prepared {
  readonly output: { readonly stdout: SharedArrayBuffer; readonly stderr: SharedArrayBuffer }
}

export interface ThreadJob {
  readonly code: string
  readonly timeoutMs: number
  readonly scan: boolean
  readonly files: Readonly<Record<string, string>>
}

export type ThreadMessage =
  | { readonly type: 'ready' }
  | { readonly type: 'output' }
  | { readonly type: 'plot'; readonly png: Uint8Array }
  | { readonly type: 'end'; readonly end: ThreadEnd }

export type ThreadEnd =
  | { readonly type: 'exit'; readonly exit_code: number }
  | { readonly type: 'violations'; readonly violations: readonly string[] }
  | { readonly type: 'timeout' }

export type OnPart = (type: 'stdout' | 'stderr' | 'plot', bytes: Uint8Array) => void

export class GuestThread {
  readonly #worker: Worker
  readonly #output = {
    stdout: new SharedOutput(BUFFERS.take()),
    stderr: new SharedOutput(BUFFERS.take()),
  }
  readonly #end = Promise.withResolvers<ThreadEnd>()
  #onPart: OnPart = () => {}
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
    // A caller may wait for only one of the two promises. Without this handler, a rejection of the other promise would
    // end the process.
    ready.promise.catch(() => {})
    this.#end.promise.catch(() => {})
    this.#worker.on('error', lost)
    this.#worker.on('exit', (code) => lost(new Error(`the thread ended with ${code}`)))
  }

  /**
   * Runs a program. May be called once. When the promise resolves, all output was emitted.
   *
   * @throws Error if the thread is lost
   */
  async run(job: ThreadJob, onPart: OnPart): Promise<ThreadEnd> {
    this.#onPart = onPart
    const timer = setTimeout(() => this.#end.resolve({ type: 'timeout' }), job.timeoutMs)
    this.#worker.postMessage(job)
    const end = await this.#end.promise.finally(() => clearTimeout(timer))
    const stopped = this.stop()
    // After a timeout, the thread may still write output until it has stopped. After any other end, all output is written.
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

  async stop(): Promise<void> {
    await this.#worker.terminate()
  }

  #take(message: Exclude<ThreadMessage, { type: 'ready' }>): void {
    // The output that precedes the plot is emitted first, so that both arrive in the order in which the program
    // produced them.
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
