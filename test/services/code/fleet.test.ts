import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, inject, it } from 'vitest'
import { type Fleet, openFleet, type RoleProcess } from '../../support/processes/fleet.ts'
import { CODE, framesOf } from '../../support/sandbox/code-calls.ts'
import { SANDBOX_DIR, SANDBOX_MISSING } from '../../support/sandbox/sandbox.ts'
import { until } from '../../support/stack.ts'

const kafka = inject('kafka')
/** Timeout of a test in ms. Processes start slowly if many tests share the cores. */
const TEST_MS = 120_000

/** Number of operating-system processes that a code run starts: the program and its supervisor. */
const PROCESSES_A_RUN = 2
/**
 * Minimum and maximum duration of the Python code that runs when its worker is killed. On a slow machine, programs start late, so the code
 * runs longer.
 */
const RUN_SECONDS = 3
const RUN_SECONDS_MAX = 20
/** Maximum concurrent calls: more than the 20 slots of the worker that is killed, but fewer than the 120 slots of both workers. */
const OPEN_MAX = 80

/** The response of a call, and the time at which the caller had received it completely. */
interface Ended {
  readonly status: number
  readonly text: string
  readonly atMs: number
}

/** Starts a worker for code that uses the sandbox directory shared by all tests, and waits until its sandbox is open. */
async function startWorker(fleet: Fleet, slots = 20): Promise<RoleProcess> {
  const settings = {
    SANDBOX: 'zygote',
    DATA_DIR: dirname(SANDBOX_DIR),
    BLOB_DIR: join(fleet.dataDir, 'blobs'),
    CODE_SLOTS: String(slots),
  }
  const worker = await fleet.start('code', settings)
  await until(() => worker.log.some(({ msg }) => msg === 'sandbox opened'), { withinMs: 60_000 })
  return worker
}

/** Returns the process ids of all descendants that have not ended. */
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

/** Returns the parent of a process, or undefined if the process has ended. A zombie counts as ended. */
function parentOf(pid: number): number | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const [state, parent] = text.slice(text.lastIndexOf(')') + 2).split(' ')
    return state === 'Z' || state === 'X' ? undefined : Number(parent)
  } catch {
    return undefined
  }
}

/** Returns the error code if the last frame of the stream is an error. */
function lastCode(text: string): string | undefined {
  const last = framesOf(text).at(-1)
  return typeof last === 'object' ? (last as { error?: { code: string } }).error?.code : undefined
}

describe.skipIf(!kafka || SANDBOX_MISSING !== undefined)('code workers that run in child processes', () => {
  it(
    'leave no interpreter behind when killed, and each caller gets a response or an error',
    async ({ annotate }) => {
      await using fleet = await openFleet(kafka ?? '')
      const ingress = await fleet.start('ingress')
      const doomed = await startWorker(fleet, 20)
      // The second worker needs slots for its own calls and for the calls of the worker that is killed later.
      await startWorker(fleet, 100)
      const idle = startedBy(doomed.pid).length
      let ended = 0
      const call = async (code: string, stream: boolean): Promise<Ended> => {
        const response = await fleet.post(ingress, CODE, { code, lang: 'python', stream, timeout: 3 * RUN_SECONDS_MAX })
        const end = { status: response.status, text: await response.text(), atMs: performance.now() }
        ended++
        return end
      }
      const whole: Promise<Ended>[] = []
      const streams: Promise<Ended>[] = []
      const beganAtMs = performance.now()
      // Either worker may receive a call, so the test adds calls until the worker `doomed` runs 20. On a slow machine, the code runs
      // longer, so that the first program still runs when the last one starts.
      const interpreters = await until(
        () => {
          const pids = startedBy(doomed.pid)
          if (pids.length >= idle + 20 * PROCESSES_A_RUN) return pids
          if (whole.length + streams.length - ended >= OPEN_MAX) return
          const seconds = Math.min(RUN_SECONDS_MAX, RUN_SECONDS + (performance.now() - beganAtMs) / 1_000)
          whole.push(call(`import time\ntime.sleep(${seconds})\nprint(1)`, false))
          streams.push(call(`print('begun', flush=True)\nimport time\ntime.sleep(2 * ${seconds})`, true))
        },
        { withinMs: 60_000 },
      )
      const killedAtMs = performance.now()
      doomed.kill('SIGKILL')
      await until(() => interpreters.every((pid) => parentOf(pid) === undefined), { withinMs: 5_000 })
      const answers = await Promise.all(whole)
      for (const { status, text } of answers) {
        expect(status).toBe(200)
        expect(JSON.parse(text)).toMatchObject({ success: true, stdout: '1\n' })
      }
      const again = ingress.log.filter(({ msg, reason }) => msg === 'job retried' && reason === 'lost').length
      expect(again).toBeGreaterThan(0)
      const ends = await Promise.all(streams)
      const failed = ends.filter(({ text }) => lastCode(text) === 'worker_lost')
      expect(failed.length).toBeGreaterThan(0)
      expect(ends.filter((end) => !failed.includes(end)).map(({ text }) => framesOf(text).at(-1))).toEqual(
        Array(ends.length - failed.length).fill('[DONE]'),
      )
      const last = (all: Ended[]) => `${((Math.max(...all.map(({ atMs }) => atMs)) - killedAtMs) / 1_000).toFixed(2)} s`
      await annotate(
        `${again} calls of ${RUN_SECONDS} s ran again, the last answered ${last(answers)} after the kill; ${failed.length} streams failed, the last after ${last(failed)}`,
      )
    },
    TEST_MS,
  )

  it(
    'finish their runs after SIGTERM',
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
