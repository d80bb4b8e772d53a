import { parentPort, workerData } from 'node:worker_threads'
import { PLOT_BYTES_MAX, PLOTS_BYTES_MAX, PLOTS_MAX } from '#shared/sandbox/limits.ts'
import { FrameReader } from './frames.ts'
import type { ThreadData, ThreadJob, ThreadMessage } from './guest/thread.ts'
import { Interpreter } from './interpreter.ts'
import { SharedOutput } from './shared-output.ts'
import { GuestExit } from './wasi/abi.ts'

const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])

/**
 * The supervisor's end of the channel to which the guest writes: one verdict, then plots.
 *
 * Both our own code in the guest and the hostile program can write to it. Only the first verdict counts, which was written before the
 * program started. A plot must be a PNG within the limits. After an invalid frame all further bytes are ignored.
 */
export class GuestChannel {
  readonly #reader = new FrameReader(PLOT_BYTES_MAX)
  readonly #onPlot: (png: Buffer) => void
  #violations: readonly string[] | undefined
  #plots = 0
  #plotsBytes = 0
  #isBroken = false

  constructor(onPlot: (png: Buffer) => void) {
    this.#onPlot = onPlot
  }

  /** Violations that the scan found; undefined before the verdict. */
  get violations(): readonly string[] | undefined {
    return this.#violations
  }

  /** Adds bytes of the guest, which may change after the call. */
  write(bytes: Uint8Array): void {
    if (this.#isBroken) return
    try {
      for (const { type, payload } of this.#reader.push(Buffer.from(bytes))) this.#take(type, payload)
    } catch {
      this.#isBroken = true
    }
  }

  #take(type: string, payload: Buffer): void {
    if (type === 'V') this.#violations ??= readVerdict(payload)
    else if (type === 'P' && this.#violations) this.#takePlot(payload)
    else throw new RangeError('not a frame of the guest')
  }

  #takePlot(png: Buffer): void {
    if (!png.subarray(0, PNG.length).equals(PNG)) return
    if (this.#plots >= PLOTS_MAX || this.#plotsBytes + png.length > PLOTS_BYTES_MAX) return
    this.#plots += 1
    this.#plotsBytes += png.length
    this.#onPlot(png)
  }
}

/** Trusted, because our code writes it before the program starts. */
function readVerdict(payload: Buffer): string[] {
  return (JSON.parse(payload.toString()) as { violations: string[] }).violations
}

/*
 * The thread of one run: restores an interpreter, reports that it is ready, waits for a program, runs it and reports its end. The thread is
 * blocked while the program runs; only its termination interrupts that.
 */

const { module, library, image, output } = workerData as ThreadData
const stdout = new SharedOutput(output.stdout)
const stderr = new SharedOutput(output.stderr)
const channel = new GuestChannel((png) => send({ type: 'plot', png }))
let stdin: Uint8Array = new Uint8Array(0)

const interpreter = new Interpreter(module, library, {
  stdin: (target) => {
    const part = stdin.subarray(0, target.length)
    target.set(part)
    stdin = stdin.subarray(part.length)
    return part.length
  },
  onStdout: (bytes) => stdout.write(bytes) && send({ type: 'output' }),
  onStderr: (bytes) => stderr.write(bytes) && send({ type: 'output' }),
  onChannel: (bytes) => channel.write(bytes),
})
interpreter.restore(image)
parentPort?.once('message', ({ code, scan, files }: ThreadJob) => {
  stdin = Buffer.from(JSON.stringify({ code, scan, files }))
  const exit_code = runToEnd()
  const { violations = [] } = channel
  send({ type: 'end', end: violations.length > 0 ? { type: 'violations', violations } : { type: 'exit', exit_code } })
})
send({ type: 'ready' })

function runToEnd(): number {
  try {
    return interpreter.run('raise SystemExit(wasm_main.run())')
  } catch (error) {
    if (error instanceof GuestExit) return error.status
    // Equivalent of a fatal signal: an access out of bounds, a stack overflow, an abort.
    stderr.write(Buffer.from(`Fatal error: the interpreter crashed: ${(error as Error).message}\n`))
    return 139
  }
}

function send(message: ThreadMessage): void {
  parentPort?.postMessage(message)
}
