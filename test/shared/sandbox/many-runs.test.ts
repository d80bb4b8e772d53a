/** Tests that many harmless and hostile programs leave no resources behind, in each sandbox. */
import Docker from 'dockerode'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { LABEL } from '#shared/sandbox/docker/container.ts'
import type { Sandbox, SandboxName } from '#shared/sandbox/sandbox.ts'
import { openSandbox, PREPARE_MS } from '../../support/sandbox/adapters.ts'
import { leftSince, type Resources, resources } from '../../support/sandbox/resources.ts'
import { type RunResult, runCode } from '../../support/sandbox/runs.ts'
import { until } from '../../support/stack.ts'

/**
 * Number of runs per sandbox; SANDBOX_RUNS overrides it. Each program runs several times. The sandboxes wasm and docker have fewer runs, because
 * a run takes more CPU time there.
 */
const RUNS: Record<SandboxName, number> = { zygote: 168, wasm: 27, docker: 40 }
const RUNS_ASKED = Number(process.env.SANDBOX_RUNS ?? 0)
const AT_ONCE = 8
const WITHIN_MS = 15 * 60_000
/** Timeout of a short program in ms. On two cores, eight of these programs and other tests may run at the same time. */
const PROGRAM_MS = 120_000

/** Programs with the expected result. Most programs are short, so that the test mostly starts and ends runs. */
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

/** Programs that need processes or threads, which the sandbox wasm does not have. */
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
    // The sandbox may still be replacing the interpreter of the first run, so the test waits until one is idle.
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
    // The processes may differ, because used interpreters were replaced. Their number must be equal.
    await until(() => leftOf(before).length === 0).catch(() => undefined)
    expect(leftOf(before)).toEqual([])
    if (name !== 'docker') {
      // The sandbox may still be replacing the interpreters of the last runs, so the test waits.
      await until(() => equal(opened.stats(), stats), { withinMs: WITHIN_MS }).catch(() => undefined)
      return expect(opened.stats()).toEqual(stats)
    }
    // The pool adapts the number of ready containers to the load. The number of existing containers must equal the number that the pool reports.
    await until(async () => (await containers()) === opened.stats().idle, { withinMs: 60_000 })
    expect(opened.stats().busy).toBe(0)
    await opened.close()
    expect(await containers()).toBe(0)
  })
})

/** Returns the number of containers that this process has started. */
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
