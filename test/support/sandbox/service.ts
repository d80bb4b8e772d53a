/**
 * A process with a sandbox, for tests that kill it. Usage: `test/support/sandbox/service.ts DIRECTORY RUNS`. The process starts RUNS programs
 * that sleep, prints `RUNS runs` when all are running, and waits.
 */
import { openLog } from '#shared/log/log.ts'
import { zygoteAdapter } from '#shared/sandbox/zygote/zygote.ts'

const [directory = '', count = '0'] = process.argv.slice(2)
const signal = AbortSignal.timeout(60_000)
const sandbox = await zygoteAdapter({ directory, log: openLog('silent', 'test') }).open(signal)
const code = "print('on')\nimport time\ntime.sleep(60)"
const started = Array.from({ length: Number(count) }, async () => {
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  sandbox.run({ code, timeoutMs: 60_000, scan: false }, () => resolve(), signal).catch(reject)
  await promise
})
await Promise.all(started)
process.stdout.write(`${count} runs\n`)
if (started.length === 0) await sandbox.close()
