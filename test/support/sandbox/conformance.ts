/**
 * Tests that every sandbox adapter must pass. The first part checks each guarantee that `sandbox.ts` documents. The second part runs the programs
 * of the corpora (attacks and harmless programs), with the code scan on and off.
 */
import { afterAll, beforeAll, describe, expect, it, type TestContext } from 'vitest'
import { RUN_FILES_BYTES_MAX } from '#schemas/kinds/code.ts'
import type { Sandbox, SandboxName } from '#shared/sandbox/sandbox.ts'
import { until } from '../stack.ts'
import { openSandbox, PREPARE_MS } from './adapters.ts'
import { snippets } from './corpus.ts'
import { expectationOf } from './differences.ts'
import { leftSince, type Resources, resources } from './resources.ts'
import { brokenBy, runCode } from './runs.ts'

/** Additional timeout in ms for the start of a container on a busy machine. */
const WAIT_MS = 90_000
const CLOSED_MS = 10_000
/** Program that leaves files behind. A later run must not find them. */
const LEAVE_FILES = "open('/tmp/left', 'w').write('x'); open('left-too', 'w').write('x')"
/**
 * Programs that test whether a run can detect another run by its file locks. F_GETLK is used, because the sandbox refuses flock and other lock
 * calls.
 */
const HOLD_LOCK = `
import fcntl, os, time
try: fcntl.lockf(os.open('/etc/passwd', os.O_RDONLY), fcntl.LOCK_SH)
except OSError: pass
print('held')
time.sleep(60)`
const LOOK_FOR_LOCK = `
import fcntl, os, struct
shape = 'hhqqi4x'
try:
    lock = fcntl.fcntl(os.open('/etc/passwd', os.O_RDONLY), fcntl.F_GETLK, struct.pack(shape, fcntl.F_WRLCK, 0, 0, 0, 0))
    print('free' if struct.unpack(shape, lock)[0] == fcntl.F_UNLCK else 'locked')
except OSError as error: print(error)`
const LIST_FILES = "import os; print(sorted(name for name in os.listdir('/tmp') if name.startswith('left')))"

export interface ConformanceOptions {
  /**
   * If true, then a harmless program runs after each attack, to check that the sandbox still works. Default: true. False for adapters that start
   * new processes for each run, because there the check would prove nothing.
   */
  readonly isAliveAsked?: boolean
  /**
   * With the value n, only every nth program runs. Attacks without the code scan all run, whatever the value. Default: 1. Used for sandboxes in which
   * a run costs a second of CPU time. `SANDBOX_EACH=1` runs all programs.
   */
  readonly each?: number
}

/** Runs the suite on one adapter, or skips it if the adapter cannot run here. */
export function describeSandbox(name: SandboxName, options: ConformanceOptions = {}): void {
  const { isAliveAsked = true } = options
  const each = Number(process.env.SANDBOX_EACH ?? options.each ?? 1)
  const attacks = snippets('attacks')
  const legit = snippets('legit')

  describe(`the sandbox ${name}`, () => {
    let opened: Sandbox | string = 'not opened'
    let before: Resources
    const sandbox = (context: TestContext): Sandbox => {
      if (typeof opened === 'string') context.skip(opened)
      return opened as Sandbox
    }

    beforeAll(async () => {
      before = resources()
      opened = await openSandbox(name)
    }, PREPARE_MS)
    afterAll(async () => {
      if (typeof opened !== 'string') await opened.close()
    }, WAIT_MS)

    describe('like every sandbox,', () => {
      describePromises(sandbox)
    })

    describe.each([
      ['on', true],
      ['off', false],
    ] as const)('with the scan of code before a run %s', (_word, scan) => {
      const some = <T>(programs: readonly T[]) => programs.filter((_, at) => at % each === 0)
      it.concurrent.for(scan ? some(attacks) : attacks)(
        'stops the attack $id',
        { timeout: WAIT_MS },
        async (snippet, context) => {
          const expectation = expectationOf(snippet, name, scan)
          expect(await brokenBy(sandbox(context), snippet, { scan, expectation })).toEqual([])
          if (!isAliveAsked) return
          expect(await runCode(sandbox(context), "print('alive')")).toMatchObject({ exit_code: 0, stdout: 'alive\n' })
        },
      )
      it.concurrent.for(some(legit))(
        'runs the harmless program $id',
        { timeout: WAIT_MS },
        async (snippet, context) => {
          const expectation = expectationOf(snippet, name, scan)
          expect(await brokenBy(sandbox(context), snippet, { scan, expectation })).toEqual([])
        },
      )
    })

    // Programs as models write them. The test knows the number of figures that each one draws.
    it.concurrent.for(snippets('figures').filter((_, at) => at % each === 0))(
      'returns every figure of the program $id once',
      { timeout: WAIT_MS },
      async (snippet, context) => {
        const expectation = expectationOf(snippet, name, true)
        expect(await brokenBy(sandbox(context), snippet, { scan: true, expectation })).toEqual([])
      },
    )

    it('ends running programs and removes their processes and files when it is closed', {
      timeout: WAIT_MS,
    }, async (context) => {
      const closing = sandbox(context)
      const lost = expect(runCode(closing, 'while True: pass', { timeoutMs: 60_000 })).rejects.toMatchObject({
        code: 'sandbox_lost',
      })
      await until(() => closing.stats().busy === 1, { withinMs: WAIT_MS })
      await closing.close()
      await closing.close()
      await lost
      await until(() => leftSince(before).length === 0, { withinMs: CLOSED_MS }).catch(() => undefined)
      expect(leftSince(before)).toEqual([])
    })
  })
}

function describePromises(sandbox: (context: TestContext) => Sandbox): void {
  it('reports the version of the interpreter and of each library', (context) => {
    const { libraries } = sandbox(context)
    const names = ['python', 'numpy', 'pandas', 'scipy', 'matplotlib', 'seaborn']
    expect(libraries).toEqual(Object.fromEntries(names.map((name) => [name, expect.stringMatching(/^\d+\.\d+/)])))
  })

  it('streams output while the program runs, and ends the program if the caller disconnects', {
    timeout: WAIT_MS,
  }, async (context) => {
    const leaving = new AbortController()
    const texts: string[] = []
    const run = sandbox(context).run(
      { code: "print('first')\nimport time; time.sleep(60)", timeoutMs: 60_000, scan: false },
      (event) => {
        if (event.type === 'output') texts.push(event.text)
        if (texts.join('') === 'first\n') leaving.abort(new Error('the caller disconnected'))
      },
      leaving.signal,
    )
    await expect(run).rejects.toThrow('the caller disconnected')
    expect(sandbox(context).stats().busy).toBe(0)
  })

  it('starts no program if the caller has already disconnected', { timeout: WAIT_MS }, async (context) => {
    const signal = AbortSignal.abort(new Error('disconnected before'))
    await expect(runCode(sandbox(context), 'print(1)', { signal })).rejects.toThrow('disconnected before')
  })

  it('runs no part of a program with violations', { timeout: WAIT_MS }, async (context) => {
    const result = await runCode(sandbox(context), "print('ran')\nimport os", { scan: true })
    expect(result).toEqual({
      success: false,
      exit_code: -1,
      stdout: '',
      stderr: '',
      violations: ["line 2: import of 'os' is not allowed"],
      plots: [],
    })
  })

  it('returns the output and figures from before a timeout', { timeout: WAIT_MS }, async (context) => {
    const draw = 'import matplotlib.pyplot as plt, sys\nplt.plot([1]); plt.show()'
    const print = "print('drawn'); print('half', end=''); sys.stderr.write('a line')"
    const result = await runCode(sandbox(context), `${draw}\n${print}\nwhile True: pass`, { timeoutMs: 4_000 })
    const kept = { stdout: 'drawn\nhalf', stderr: 'a line', plots: [expect.anything()] }
    expect(result).toMatchObject({ success: false, exit_code: -1, ...kept })
  })

  it('isolates the files, processes and memory of each run', { timeout: WAIT_MS }, async (context) => {
    expect(await runCode(sandbox(context), LEAVE_FILES)).toMatchObject({ exit_code: 0 })
    expect(await runCode(sandbox(context), LIST_FILES)).toMatchObject({ exit_code: 0, stdout: '[]\n' })
  })

  it('copies the files of a run into the directory of that run only', {
    timeout: WAIT_MS,
  }, async (context) => {
    const large = Buffer.alloc(RUN_FILES_BYTES_MAX - 6, 7)
    const files = [
      { name: 'left large.bin', bytes: large },
      { name: 'left-é', bytes: Buffer.from('Grüße') },
    ]
    const code = 'data = open("left large.bin", "rb").read(); print(len(data), sum(data[-9:]), open("left-é").read())'
    const read = await runCode(sandbox(context), code, { scan: true, files, timeoutMs: WAIT_MS / 3 })
    expect(read).toMatchObject({ exit_code: 0, stdout: `${large.length} 63 Grüße\n` })
    expect(await runCode(sandbox(context), LIST_FILES)).toMatchObject({ exit_code: 0, stdout: '[]\n' })
  })

  it('lets numpy read and write files by C functions', { timeout: WAIT_MS }, async (context) => {
    const code = `import numpy as np
np.arange(3, dtype="u1").tofile("/tmp/a.bin")
print(np.fromfile("/tmp/a.bin", dtype="u1"))
np.fromfile("/tmp/none", dtype="u1")`
    const { stdout, stderr } = await runCode(sandbox(context), code, { scan: true })
    if (sandbox(context).name === 'wasm') return expect(stderr).toContain('Not supported')
    expect(stdout).toBe('[0 1 2]\n')
    expect(stderr).toContain('FileNotFoundError')
  })

  it('has a default locale, and draws Chinese, Japanese and Korean text', {
    timeout: WAIT_MS,
  }, async (context) => {
    const code = `import locale, warnings
import matplotlib.pyplot as plt
print(locale.setlocale(locale.LC_ALL, "") != "")
warnings.simplefilter("error")
plt.title("温度 気温 기온")
plt.show()`
    const { stdout, stderr, plots } = await runCode(sandbox(context), code, { scan: true, timeoutMs: WAIT_MS / 3 })
    expect({ stdout, stderr, plots: plots.length }).toEqual({ stdout: 'True\n', stderr: '', plots: 1 })
  })

  it('hides the load of the machine', { timeout: WAIT_MS }, async (context) => {
    const code = 'import os\ntry: print(max(os.getloadavg()))\nexcept (AttributeError, OSError): print("unknown")'
    expect((await runCode(sandbox(context), code)).stdout).toMatch(/^(?:0\.0|unknown)\n$/)
  })

  it('hides the file locks of a run from other runs', { timeout: WAIT_MS }, async (context) => {
    if (sandbox(context).name === 'wasm') context.skip('this sandbox has no file locks')
    const leaving = new AbortController()
    const { promise: isHeld, resolve } = Promise.withResolvers<void>()
    const holder = sandbox(context).run(
      { code: HOLD_LOCK, timeoutMs: 60_000, scan: false },
      () => resolve(),
      leaving.signal,
    )
    await Promise.race([isHeld, holder])
    expect(await runCode(sandbox(context), LOOK_FOR_LOCK)).toMatchObject({ stderr: '', stdout: 'free\n' })
    leaving.abort(new Error('seen'))
    await expect(holder).rejects.toThrow('seen')
  })

  it('seeds random numbers differently in each run', { timeout: WAIT_MS }, async (context) => {
    const code = 'import random, numpy; print(random.random(), numpy.random.rand())'
    const both = await Promise.all([runCode(sandbox(context), code), runCode(sandbox(context), code)])
    expect(both[0]?.stdout).toMatch(/^0\.\d+ 0\.\d+\n$/)
    const [first, second] = both.map(({ stdout }) => stdout.trim().split(' '))
    expect(first?.filter((number) => second?.includes(number))).toEqual([])
  })

  it('returns the output of each of several concurrent runs to its own caller', {
    timeout: WAIT_MS,
  }, async (context) => {
    const outputs = await Promise.all(
      Array.from({ length: 6 }, (_, i) => runCode(sandbox(context), `print('run', ${i})`)),
    )
    expect(outputs.map(({ stdout }) => stdout)).toEqual(Array.from({ length: 6 }, (_, i) => `run ${i}\n`))
  })

  it('truncates stdout and stderr at 1 MiB each, with a remark in the last line', {
    timeout: WAIT_MS,
  }, async (context) => {
    const code = "import sys\nfor s in (sys.stdout, sys.stderr): s.write('é' * 1_000_000); s.flush()"
    const { stdout, stderr } = await runCode(sandbox(context), code)
    for (const text of [stdout, stderr]) {
      const lines = text.split('\n')
      expect(lines.at(-2)).toMatch(/truncated/)
      expect(lines[0]).toMatch(/^é{524288}$/)
    }
  })
}
