/** Many harmless and hostile programs in each sandbox must leave no resources. */
import Docker from 'dockerode'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { LABEL } from '#shared/sandbox/docker/container.ts'
import type { Sandbox, SandboxName } from '#shared/sandbox/sandbox.ts'
import { openSandbox, PREPARE_MS } from '../../support/sandbox/adapters.ts'
import { leftSince, type Resources, resources } from '../../support/sandbox/resources.ts'
import { type RunResult, runCode } from '../../support/sandbox/runs.ts'
import { until } from '../../support/stack.ts'

/**
 * Runs per sandbox, unless SANDBOX_RUNS sets the number. Each program runs several times. A run takes most CPU time in wasm, and a second in docker, so
 * these have fewer runs.
 */
const RUNS: Record<SandboxName, number> = { zygote: 168, wasm: 27, docker: 40 }
const RUNS_ASKED = Number(process.env.SANDBOX_RUNS ?? 0)
const AT_ONCE = 8
const WITHIN_MS = 15 * 60_000
/** Timeout of a short program, on a machine where eight of them and other tests share two cores. */
const PROGRAM_MS = 120_000

/** Programs with their expected end. Most are short, so that starts and ends dominate. */
type Program = readonly [code: string, end: Partial<RunResult>, options?: Parameters<typeof runCode>[2]]
const PROGRAMS: readonly Program[] = [
  ["print('good')", { exit_code: 0, stdout: 'good\n' }],
  ['import pandas as pd; print(pd.Series([1, 2]).sum())', { exit_code: 0, stdout: '3\n' }, { scan: true }],
  ['import matplotlib.pyplot as plt; plt.plot([1]); plt.show()', { exit_code: 0 }, { scan: true }],
  ['1 / 0', { exit_code: 1 }, { scan: true }],
  ['import os', { exit_code: -1, violations: ["line 1: import of 'os' is not allowed"] }, { scan: true }],
  ['x = [bytearray(10**8) for _ in range(100)]', { success: true, exit_code: 1 }],
  ["for i in range(500): open('/tmp/%d' % i, 'w').write('x' * 1000)", { exit_code: 0 }],
  ["print('x' * 3_000_000)", { exit_code: 0 }],
  ['while True: pass', { success: false, exit_code: -1 }, { timeoutMs: 300 }],
]

/** Programs only for sandboxes with processes and threads. */
const NATIVE: readonly Program[] = [
  ['import os\nwhile True:\n    try: os.fork()\n    except OSError: break', { exit_code: 0 }],
  ['import os; os._exit(7)', { exit_code: 7 }],
  ['import ctypes; ctypes.string_at(0)', { exit_code: 139 }],
  ['import os; os.kill(os.getppid(), 9)', { success: true }],
  [
    'import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()',
    { exit_code: 0 },
  ],
]

const socketPath = inject('docker') ?? undefined

describe.each(['zygote', 'wasm', 'docker'] as const)('the sandbox %s', (name) => {
  const programs = name === 'wasm' ? PROGRAMS : [...PROGRAMS, ...NATIVE]
  const runs = RUNS_ASKED || RUNS[name]
  let sandbox: Sandbox | string
  beforeAll(async () => {
    sandbox = await openSandbox(name)
  }, PREPARE_MS)
  afterAll(async () => {
    if (typeof sandbox !== 'string') await sandbox.close()
  })

  it(`leaves no processes, files or containers after ${runs} runs, ${AT_ONCE} at once`, {
    timeout: WITHIN_MS,
  }, async (context) => {
    if (typeof sandbox === 'string') return context.skip(sandbox)
    const opened = sandbox
    await runCode(opened, 'print(1)')
    // The interpreter of this run may still be replaced, so the test waits until one is idle.
    await until(() => opened.stats().idle > 0, { withinMs: WITHIN_MS })
    const before = resources()
    const stats = opened.stats()

    const wrong: string[] = []
    let started = 0
    const work = async () => {
      while (started < runs) {
        const [code, end, options] = programs[started++ % programs.length] as Program
        const result = await runCode(opened, code, { timeoutMs: PROGRAM_MS, ...options })
        const differs = Object.entries(end).some(([key, value]) => !equal(result[key as keyof RunResult], value))
        const shown = { code, result: { ...result, plots: result.plots.length } }
        if (differs) wrong.push(JSON.stringify(shown).slice(0, 500))
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, work))

    expect(wrong.slice(0, 3)).toEqual([])
    // Used interpreters were replaced, so the processes differ, but their number must be equal.
    await until(() => leftOf(before).length === 0).catch(() => undefined)
    expect(leftOf(before)).toEqual([])
    if (name !== 'docker') {
      // The last used interpreters may still be replaced, so the test waits.
      await until(() => equal(opened.stats(), stats), { withinMs: WITHIN_MS }).catch(() => undefined)
      return expect(opened.stats()).toEqual(stats)
    }
    // The number of ready containers depends on the load, so it is compared with the pool's own number.
    await until(async () => (await containers()) === opened.stats().idle, { withinMs: 60_000 })
    expect(opened.stats().busy).toBe(0)
    await opened.close()
    expect(await containers()).toBe(0)
  })
})

/** Containers of this process. */
async function containers(): Promise<number> {
  const docker = new Docker(socketPath === undefined ? {} : { socketPath })
  return (await docker.listContainers({ all: true, filters: { label: [`${LABEL}=${process.pid}`] } })).length
}

function leftOf(before: Resources): string[] {
  const now = resources()
  const left = leftSince(before, { ...now, processes: before.processes })
  return now.processes.length > before.processes.length ? [...left, ...leftSince(before)] : left
}

function equal(value: unknown, expected: unknown): boolean {
  return JSON.stringify(value) === JSON.stringify(expected)
}
