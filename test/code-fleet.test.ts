import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, inject, it } from 'vitest'
import { until } from './stack.ts'
import { CODE, framesOf } from './support/code-calls.ts'
import { type Fleet, openFleet, type RoleProcess } from './support/processes.ts'
import { SANDBOX_DIR, SANDBOX_MISSING } from './support/sandbox.ts'

const kafka = inject('kafka')
/** Processes start slowly where many tests share the cores. */
const TEST_MS = 120_000

/** A worker with the sandbox that all tests share. */
async function startWorker(fleet: Fleet): Promise<RoleProcess> {
  const settings = {
    SANDBOX: 'zygote',
    DATA_DIR: dirname(SANDBOX_DIR),
    BLOB_DIR: join(fleet.dataDir, 'blobs'),
    CODE_SLOTS: '20',
  }
  const worker = await fleet.start('code', settings)
  await until(() => worker.log.some(({ msg }) => msg === 'sandbox open'), { withinMs: 60_000 })
  return worker
}

/** Processes below one, and below those, that have not ended. */
function startedBy(pid: number): number[] {
  const parents = new Map<number, number[]>()
  for (const child of readdirSync('/proc').map(Number).filter(Number.isInteger)) {
    const parent = parentOf(child)
    if (parent !== undefined) parents.set(parent, [...(parents.get(parent) ?? []), child])
  }
  const found = [...(parents.get(pid) ?? [])]
  for (const each of found) found.push(...(parents.get(each) ?? []))
  return found
}

/** Undefined for one that has ended, also while it waits to be reaped. */
function parentOf(pid: number): number | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const [state, parent] = text.slice(text.lastIndexOf(')') + 2).split(' ')
    return state === 'Z' || state === 'X' ? undefined : Number(parent)
  } catch {
    return undefined
  }
}

describe.skipIf(!kafka || SANDBOX_MISSING !== undefined)('code workers in processes of their own', () => {
  it(
    'a killed worker leaves no interpreter behind, and its callers get an answer or an error',
    async () => {
      await using fleet = await openFleet(kafka ?? '')
      const ingress = await fleet.start('ingress')
      const doomed = await startWorker(fleet)
      const idle = startedBy(doomed.pid).length
      const call = async (code: string, stream: boolean) => {
        const response = await fleet.post(ingress, CODE, { code, lang: 'python', stream })
        return { status: response.status, text: await response.text() }
      }
      const whole = Array.from({ length: 10 }, () => call('import time\ntime.sleep(2)\nprint(1)', false))
      const streams = Array.from({ length: 10 }, () =>
        call("print('begun', flush=True)\nimport time\ntime.sleep(100)", true),
      )
      const interpreters = await until(() => {
        const pids = startedBy(doomed.pid)
        return pids.length >= idle + 20 ? pids : undefined
      })
      await startWorker(fleet)
      const again = Array.from({ length: 4 }, () =>
        call("print('begun', flush=True)\nimport time\ntime.sleep(4)", true),
      )
      doomed.kill('SIGKILL')
      await until(() => interpreters.every((pid) => parentOf(pid) === undefined), { withinMs: 5_000 })
      for (const { status, text } of await Promise.all(whole)) {
        expect(status).toBe(200)
        expect(JSON.parse(text)).toMatchObject({ success: true, stdout: '1\n' })
      }
      for (const { text } of await Promise.all([...streams, ...again])) {
        const last = framesOf(text).at(-1)
        expect(last === '[DONE]' || (last as { error: { code: string } }).error.code).toEqual(
          expect.toSatisfy((end) => end === true || end === 'worker_lost'),
        )
      }
    },
    TEST_MS,
  )

  it(
    'a worker that is told to end lets its runs end first',
    async () => {
      await using fleet = await openFleet(kafka ?? '')
      const ingress = await fleet.start('ingress')
      const worker = await startWorker(fleet)
      const idle = startedBy(worker.pid).length
      const run = fleet.post(ingress, CODE, { code: 'import time\ntime.sleep(2)\nprint(1)', lang: 'python' })
      await until(() => startedBy(worker.pid).length > idle)
      worker.kill('SIGTERM')
      expect(await (await run).json()).toMatchObject({ success: true, stdout: '1\n' })
      expect(await worker.exited).toBe(0)
    },
    TEST_MS,
  )
})
