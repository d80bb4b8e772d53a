/** Tests the zygote sandbox: the isolation of runs, the end of runs and of the zygote process, and its privileges. */
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { isDeepStrictEqual, promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Sandbox, SandboxEvent } from '#shared/sandbox/sandbox.ts'
import { resources } from '../../support/sandbox/resources.ts'
import { runCode } from '../../support/sandbox/runs.ts'
import { openTestZygote, SANDBOX_DIR, SANDBOX_MISSING } from '../../support/sandbox/sandbox.ts'
import { until } from '../../support/stack.ts'

const execute = promisify(execFile)
const SERVICE = fileURLToPath(new URL('../../support/sandbox/service.ts', import.meta.url))
/** Id of a user without privileges. */
const PLAIN_USER = '23456'
const NEVER = new AbortController().signal

/** Returns the descendants of this process that are not in `before`. */
const startedSince = (before: readonly number[]) => resources().processes.filter((pid) => !before.includes(pid))
const SLEEP = "print('on')\nimport time\ntime.sleep(60)"

/** Starts a run that lasts until it is cancelled, and waits for its start. */
async function startRun(sandbox: Sandbox, code = SLEEP) {
  const abort = new AbortController()
  const { promise, resolve } = Promise.withResolvers<void>()
  const end = sandbox.run({ code, timeoutMs: 60_000, scan: false }, () => resolve(), abort.signal)
  await Promise.race([promise, end])
  return { end, cancel: () => abort.abort(new Error('cancelled')) }
}

describe.skipIf(SANDBOX_MISSING !== undefined)('the zygote sandbox, which forks a process per run', () => {
  let sandbox: Sandbox
  beforeAll(async () => {
    sandbox = await openTestZygote()
  })
  afterAll(() => sandbox.close())

  test('gives a run no files, variables, modules or random state of the previous run', async () => {
    const leave = `
import builtins, random, sys, numpy
open('/tmp/left', 'w').write('x')
builtins.left = sys.left = 1
print(random.random(), numpy.random.random())`
    const look = `
import builtins, os, random, sys, numpy
assert os.listdir('/tmp') == [] and not hasattr(builtins, 'left') and not hasattr(sys, 'left')
print(random.random(), numpy.random.random())`
    const first = await runCode(sandbox, leave)
    const second = await runCode(sandbox, look)
    expect(second.stderr).toBe('')
    expect(second.stdout).not.toBe(first.stdout)
  })

  test('hides the file system, processes, users and variables of the machine from a run', async () => {
    const look = `
import os, json, platform
print(json.dumps([sorted(os.listdir('/')), os.listdir('/proc'), os.listdir('/run'), sorted(os.listdir('/dev')),
  os.listdir('/etc'), platform.node(), os.getuid(), os.getgid(), os.getgroups(), os.getppid(), sorted(os.environ)]))`
    const { stdout } = await runCode(sandbox, look)
    expect(JSON.parse(stdout)).toEqual([
      ['dev', 'etc', 'lib64', 'opt', 'proc', 'run', 'tmp'],
      [],
      [],
      ['full', 'null', 'random', 'urandom', 'zero'],
      expect.arrayContaining(['passwd', 'group']),
      'sandbox',
      65_534,
      65_534,
      [],
      0,
      expect.not.arrayContaining(['SLUICE_DATA_DIR', 'USER']),
    ])
  })

  test('delivers output while the program runs, each stream in order', async () => {
    const seen = { stdout: '', stderr: '' }
    const onEvent = (event: SandboxEvent) => {
      if (event.type === 'output') seen[event.stream] += event.text
    }
    const abort = new AbortController()
    const code = "import sys, time\nprint('a')\nprint('b', file=sys.stderr)\nprint('half', end='')\ntime.sleep(60)"
    const end = sandbox.run({ code, timeoutMs: 60_000, scan: false }, onEvent, abort.signal)
    const wanted = { stdout: 'a\nhalf', stderr: 'b\n' }
    await until(() => isDeepStrictEqual(seen, wanted)).catch(() => undefined)
    abort.abort(new Error('enough'))
    await expect(end).rejects.toThrow('enough')
    expect(seen).toEqual(wanted)
  })

  test('ends all processes of a cancelled run within a second', async () => {
    const before = resources().processes
    const stubborn = `
import signal, threading, time
signal.signal(15, signal.SIG_IGN)
for _ in range(5): threading.Thread(target=time.sleep, args=(60,)).start()
print('on')
while True: pass`
    const { end, cancel } = await startRun(sandbox, stubborn)
    expect(startedSince(before)).toHaveLength(2)
    cancel()
    await expect(end).rejects.toThrow('cancelled')
    await until(() => startedSince(before).length === 0, { withinMs: 1_000 })
  })

  test('truncates output above 1 MiB, and states the total size in the last line', async () => {
    const { stdout, exit_code } = await runCode(sandbox, "for _ in range(3000): print('ä' * 500)")
    expect(exit_code).toBe(0)
    expect(Buffer.byteLength(stdout)).toBeGreaterThan(1024 * 1024)
    expect(Buffer.byteLength(stdout)).toBeLessThan(1024 * 1024 + 100)
    expect(stdout.trimEnd().split('\n').at(-1)).toBe('[output truncated: 3003000 bytes in all]')
    expect(stdout).not.toContain('\uFFFD')
  })

  test('ignores frames that a program writes itself, except PNG plots', async () => {
    const forge = `
import os, struct
frame = lambda kind, data: os.write(3, kind + struct.pack('>I', len(data)) + data)
frame(b'V', b'{"violations": ["forged"]}')
frame(b'P', b'not a picture')
frame(b'P', b'\\x89PNG\\r\\n\\x1a\\nmine')
frame(b'X', b'{"type": "timeout"}')
frame(b'P', b'\\x89PNG\\r\\n\\x1a\\nlate')
raise SystemExit(7)`
    const result = await runCode(sandbox, forge)
    expect(result).toMatchObject({ exit_code: 7, violations: [], stderr: '' })
    expect(result.plots.map((png) => Buffer.from(png.subarray(8)).toString())).toEqual(['mine'])
  })

  test.each([
    ['exit(3)', 3, ''],
    ['quit()', 0, ''],
    ["import sys; sys.exit('no data')", 1, 'no data\n'],
    [
      'def f():\n  return 1 / 0\n\nf()',
      1,
      /^Traceback .*\n {2}File "main.py", line 4, in <module>\n(.|\n)*ZeroDivisionError/,
    ],
    ['x = (', 1, /^ {2}File "main.py", line 1\n(.|\n)*SyntaxError/],
    ['x = 1\nreturn x', 1, /line 2\n {4}return x\n(.|\n)*outside function/],
    [
      'import traceback\ntry:\n  import json.nope\nexcept ImportError: raise',
      1,
      /^Traceback .*\n.*line 3.*\n.*\nModuleNotFound/,
    ],
  ])('ends the program %j like a normal Python interpreter', async (code, exitCode, stderr) => {
    const result = await runCode(sandbox, code, { scan: true })
    expect(result).toMatchObject({ exit_code: exitCode, violations: [], stdout: '' })
    if (typeof stderr === 'string') expect(result.stderr).toBe(stderr)
    else expect(result.stderr).toMatch(stderr)
    expect(result.stderr).not.toContain('/opt/')
  })

  test('reports whether the time limit or the memory limit ended a run', async () => {
    const threads = `
import threading
def burn():
    while True: pass
for _ in range(3): threading.Thread(target=burn).start()
import time, numpy
a = numpy.ones((1500, 1500))
def multiply():
    while True: a @ a
for _ in range(3): threading.Thread(target=multiply).start()`
    const [burnt, filled] = await Promise.all([
      sandbox.run({ code: threads, timeoutMs: 1_000, scan: false }, () => {}, NEVER),
      runCode(sandbox, 'x = []\nwhile True: x.append(bytearray(10 ** 7))'),
    ])
    expect(['timeout', 'killed']).toContain(burnt.type)
    expect(filled).toMatchObject({ exit_code: 1, stderr: expect.stringContaining('MemoryError') })
  })
})

describe.skipIf(SANDBOX_MISSING !== undefined)('the zygote sandbox (life cycle of its zygotes)', () => {
  test('replaces a zygote after the maximum number of runs', async () => {
    const before = resources().processes
    const sandbox = await openTestZygote({ runsMax: 3 })
    try {
      const [first] = startedSince(before)
      const slow = await startRun(sandbox)
      for (let run = 0; run < 3; run++) expect((await runCode(sandbox, 'print(1)')).stdout).toBe('1\n')
      const isOther = async () => (await runCode(sandbox, 'print(2)')) && startedSince(before).length >= 6
      await until(isOther)
      expect(startedSince(before)).toContain(first)
      slow.cancel()
      await expect(slow.end).rejects.toThrow('cancelled')
      await until(() => !startedSince(before).includes(first as number))
    } finally {
      await sandbox.close()
    }
    expect(startedSince(before)).toEqual([])
  })

  test('fails the runs of a killed zygote with sandbox_lost, and uses another zygote for the next runs', async () => {
    const before = resources().processes
    const sandbox = await openTestZygote()
    try {
      const { end } = await startRun(sandbox)
      const [bubblewrap] = startedSince(before)
      process.kill(bubblewrap as number, 'SIGKILL')
      await expect(end).rejects.toMatchObject({ code: 'sandbox_lost' })
      await until(async () => (await runCode(sandbox, 'print(1)').catch(() => undefined))?.stdout === '1\n')
    } finally {
      await sandbox.close()
    }
  })

  test('ends all processes within 5 s after the service is killed during runs', async () => {
    const before = resources().processes
    const service = spawn(process.execPath, [SERVICE, SANDBOX_DIR, '20'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    const [line] = (await once(createInterface({ input: service.stdout }), 'line')) as [string]
    expect(line).toBe('20 runs')
    const alive = startedSince(before)
    expect(alive.length).toBeGreaterThan(2 * 20)
    service.kill('SIGKILL')
    await until(() => alive.every((pid) => !isAlive(pid)), { withinMs: 5_000 })
  })

  test.skipIf(process.getuid?.() !== 0)('runs programs even in a service without root privileges', async () => {
    const directory = await copyForOthers()
    const user = ['--reuid', PLAIN_USER, '--regid', PLAIN_USER, '--clear-groups', '--no-new-privs']
    try {
      const { stdout } = await execute('setpriv', [...user, process.execPath, SERVICE, directory, '0'], {
        timeout: 90_000,
        env: {},
      })
      expect(stdout).toBe('0 runs\n')
    } finally {
      await rm(directory, { recursive: true, force: true })
    }
  })
})

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

/** Copies the prepared files to a directory that every user can read. Uses hard links if the file system supports them. */
async function copyForOthers(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-sandbox-'))
  await execute('cp', ['-a', '--link', `${SANDBOX_DIR}/.`, directory]).catch(() =>
    execute('cp', ['-a', `${SANDBOX_DIR}/.`, directory]),
  )
  // The copy also copies the mode of the private directory, so the mode is set after the copy.
  await chmod(directory, 0o755)
  return directory
}
