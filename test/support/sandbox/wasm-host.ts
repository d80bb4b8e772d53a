/**
 * A process with a WebAssembly sandbox, for tests that kill it. The process runs endless programs in the sandbox, and prints the pid of the
 * sandbox process.
 */
import { openLog } from '#shared/log/log.ts'
import { prepareWasmFiles } from '#shared/sandbox/wasm/files.ts'
import { WasmProcess } from '#shared/sandbox/wasm/process.ts'

const files = await prepareWasmFiles(process.argv[2] as string)
const never = new AbortController().signal
const wasm = await WasmProcess.start(files, 1, openLog('silent', 'test'), never)
const job = { code: "print('began')\nwhile True: pass", timeoutMs: 120_000, scan: false }
const began = [1, 2].map(async () => {
  const { promise, resolve } = Promise.withResolvers<void>()
  void wasm.run(job, () => resolve(), never)
  await promise
})
await Promise.all(began)
process.stdout.write(`${wasm.pid}\n`)
