/** Good and hostile programs by the hundred in one sandbox: nothing of them may be left. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { Sandbox } from '#shared/sandbox/sandbox.ts'
import { until } from './stack.ts'
import { type Holdings, holdings, leftSince } from './support/leftovers.ts'
import { openSandbox, PREPARE_MS } from './support/sandbox-adapters.ts'
import { type RunResult, runCode } from './support/sandbox-runs.ts'

const RUNS = Number(process.env.SANDBOX_RUNS ?? 1_000)
const AT_ONCE = 8
const WITHIN_MS = 15 * 60_000

/** Each with what must come of it. Most of them are short: the machine is to be kept busy with starts and ends. */
const PROGRAMS: readonly (readonly [code: string, end: Partial<RunResult>, options?: Parameters<typeof runCode>[2]])[] =
  [
    ["print('good')", { exit_code: 0, stdout: 'good\n' }],
    ['import pandas as pd; print(pd.Series([1, 2]).sum())', { exit_code: 0, stdout: '3\n' }, { scan: true }],
    ['import matplotlib.pyplot as plt; plt.plot([1]); plt.show()', { exit_code: 0 }, { scan: true }],
    ['1 / 0', { exit_code: 1 }, { scan: true }],
    ['import os', { exit_code: -1, violations: ["line 1: import of 'os' is not allowed"] }, { scan: true }],
    ['import os\nwhile True:\n    try: os.fork()\n    except OSError: break', { exit_code: 0 }],
    ['import os; os._exit(7)', { exit_code: 7 }],
    ['import ctypes; ctypes.string_at(0)', { exit_code: 139 }],
    ['import os; os.kill(os.getppid(), 9)', { success: true }],
    ['x = [bytearray(10**8) for _ in range(100)]', { success: true, exit_code: 1 }],
    ["for i in range(500): open('/tmp/%d' % i, 'w').write('x' * 1000)", { exit_code: 0 }],
    [
      'import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()',
      { exit_code: 0 },
    ],
    ["print('x' * 3_000_000)", { exit_code: 0 }],
    ['while True: pass', { success: false, exit_code: -1 }, { timeoutMs: 300 }],
  ]

let sandbox: Sandbox | string
beforeAll(async () => {
  sandbox = await openSandbox('zygote')
}, PREPARE_MS)
afterAll(async () => {
  if (typeof sandbox !== 'string') await sandbox.close()
})

it(`${RUNS} runs, ${AT_ONCE} at once, leave nothing behind`, { timeout: WITHIN_MS }, async (context) => {
  if (typeof sandbox === 'string') return context.skip(sandbox)
  const opened = sandbox
  await runCode(opened, 'print(1)')
  const before = holdings()
  const stats = opened.stats()

  const wrong: string[] = []
  let started = 0
  const work = async () => {
    while (started < RUNS) {
      const [code, end, options] = PROGRAMS[started++ % PROGRAMS.length] as (typeof PROGRAMS)[number]
      const result = await runCode(opened, code, options)
      const differs = Object.entries(end).some(([key, value]) => !equal(result[key as keyof RunResult], value))
      if (differs) wrong.push(JSON.stringify({ code, result: { ...result, plots: result.plots.length } }).slice(0, 500))
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work))

  expect(wrong.slice(0, 3)).toEqual([])
  // The zygote was replaced on the way: other processes, as many.
  await until(() => leftOf(before).length === 0, { withinMs: 20_000 }).catch(() => undefined)
  expect(leftOf(before)).toEqual([])
  expect(opened.stats()).toEqual(stats)
})

function leftOf(before: Holdings): string[] {
  const now = holdings()
  const left = leftSince(before, { ...now, processes: before.processes })
  return now.processes.length > before.processes.length ? [...left, ...leftSince(before)] : left
}

function equal(value: unknown, expected: unknown): boolean {
  return JSON.stringify(value) === JSON.stringify(expected)
}
