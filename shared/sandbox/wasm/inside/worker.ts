import { parentPort, workerData } from 'node:worker_threads'
import { GuestChannel } from './channel.ts'
import { Interpreter } from './interpreter.ts'
import { SharedOutput } from './shared-output.ts'
import type { ThreadData, ThreadJob, ThreadMessage } from './thread.ts'
import { GuestExit } from './wasi/abi.ts'

/*
 * The thread of one run: restores an interpreter, reports that it is ready, waits for a program, runs it and reports its end. The program
 * blocks the thread, so only terminating the thread interrupts the program.
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
    // The crash is reported like a fatal signal. Examples are an access out of bounds, a stack overflow, or an abort.
    stderr.write(Buffer.from(`Fatal error: the interpreter crashed: ${(error as Error).message}\n`))
    return 139
  }
}

function send(message: ThreadMessage): void {
  parentPort?.postMessage(message)
}
