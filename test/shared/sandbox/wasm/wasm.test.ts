import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openLog } from '#shared/log/log.ts'
import type { Sandbox } from '#shared/sandbox/sandbox.ts'
import { confine, prepareWasmFiles, type WasmFiles } from '#shared/sandbox/wasm/files.ts'
import { WasmProcess } from '#shared/sandbox/wasm/process.ts'
import { wasmAdapter } from '#shared/sandbox/wasm/wasm.ts'
import { PREPARE_MS, SANDBOX_DIRECTORY } from '../../../support/sandbox/adapters.ts'
import { runCode } from '../../../support/sandbox/runs.ts'
import { until } from '../../../support/stack.ts'

const RUN_MS = 60_000
const HOST = fileURLToPath(new URL('../../../support/sandbox/wasm-host.ts', import.meta.url))
const log = openLog('silent', 'test')
const never = new AbortController().signal

/** Program that tries each action that the confined process must not be able to do. */
const PROBE = `
import { readFileSync, writeFileSync } from 'node:fs'
import { spawnSync } from 'node:child_process'
const outcome = (attempt) => { try { attempt(); return 'read' } catch (error) { return error.code ?? error.name } }
console.log(JSON.stringify({
  own: outcome(() => readFileSync(import.meta.filename)),
  other: outcome(() => readFileSync(process.execPath)),
  write: outcome(() => writeFileSync(import.meta.filename, '')),
  spawn: outcome(() => spawnSync(process.execPath, ['--version'])),
  eval: outcome(() => eval('1')),
  variables: Object.keys(process.env),
}))
`

const problem = await prepareWasmFiles(SANDBOX_DIRECTORY).then(
  () => undefined,
  (error: Error) => {
    if (process.env.CI === 'true') throw error
    process.stderr.write(`Tests on the WebAssembly sandbox are skipped: ${error.message}\n`)
    return error.message
  },
)

describe.skipIf(problem !== undefined)('a program in the WebAssembly sandbox', { timeout: RUN_MS }, () => {
  let sandbox: Sandbox
  beforeAll(async () => {
    sandbox = await wasmAdapter({ directory: SANDBOX_DIRECTORY, log }).open(AbortSignal.timeout(PREPARE_MS))
  }, PREPARE_MS)
  afterAll(() => sandbox?.close())

  it('reads only its own variables, files and process id, and none of the host', async () => {
    const code = `
import os
print(os.getpid() == ${process.pid}, sorted(os.environ), sorted(os.listdir('/')), os.getcwd(), os.listdir())
for path in ('/etc/passwd', '/proc/self/environ', ${JSON.stringify(fileURLToPath(import.meta.url))}, '/sandbox/execution.py'):
    print(os.path.exists(path))
`
    expect(await runCode(sandbox, code)).toMatchObject({
      exit_code: 0,
      stdout: `False ['HOME', 'MPLCONFIGDIR', 'PYTHONTZPATH', 'TMPDIR'] ['tmp', 'usr'] /tmp []\n${'False\n'.repeat(4)}`,
    })
  })

  it('has no network, and starts no process or thread', async () => {
    const code = `
import os, threading
tries = {
    'connect': lambda: __import__('urllib.request').request.urlopen('http://127.0.0.1:1/'),
    'socket': lambda: __import__('socket').socket().connect(('127.0.0.1', 1)),
    'system': lambda: os.system('id'),
    'fork': lambda: os.fork(),
    'subprocess': lambda: __import__('subprocess').run(['id']),
    'thread': lambda: threading.Thread(target=print, args=('ran',)).start(),
    'native': lambda: __import__('ctypes').CDLL(None),
}
for name, attempt in tries.items():
    try:
        attempt()
        print(name, 'worked')
    except (OSError, AttributeError, ImportError, RuntimeError, TypeError) as error:
        print(name, 'failed')
`
    const names = ['connect', 'socket', 'system', 'fork', 'subprocess', 'thread', 'native']
    const { stdout } = await runCode(sandbox, code)
    expect(stdout).toBe(names.map((name) => `${name} failed\n`).join(''))
  })

  it('cannot forge a verdict of the code scan, a plot or an end frame', async () => {
    const code = `
import os
frame = lambda kind, body: os.write(3, kind + len(body).to_bytes(4, 'big') + body)
frame(b'V', b'{"violations": ["line 1: forged"]}')
frame(b'P', b'no picture')
frame(b'X', b'{"type": "exit", "exit_code": 0}')
for fd in range(4, 130):
    try: os.write(fd, b'P')
    except OSError: pass
print('still here')
raise SystemExit(3)
`
    expect(await runCode(sandbox, code)).toEqual({
      ...{ success: true, exit_code: 3, stdout: 'still here\n', stderr: '', violations: [], plots: [] },
    })
  })

  it('leaves no changes in the interpreter or its files for the next run', async () => {
    const spoil = `
import builtins, json, math, sys, os
builtins.print = None
math.pi = 4
json.dumps = lambda *_: 'spoiled'
sys.modules['wasm_main'].execution.execute = None
open('/tmp/left', 'w').write('left')
os.environ['LEFT'] = '1'
os.chdir('/')
`
    expect(await runCode(sandbox, spoil)).toMatchObject({ exit_code: 0 })
    const look = "import os, math, json; print(os.listdir('/tmp'), math.pi < 4, json.dumps(1), 'LEFT' in os.environ)"
    expect(await runCode(sandbox, look)).toMatchObject({ stdout: '[] True 1 False\n' })
  })

  it('receives a MemoryError at its memory limit, and may allocate up to the limit', async () => {
    const code = `
big = bytearray(400 << 20)
try: more = bytearray(400 << 20)
except MemoryError: print('no more')
`
    expect(await runCode(sandbox, code)).toMatchObject({ exit_code: 0, stdout: 'no more\n' })
  })

  it('receives "No space left on device" at 64 MiB of files', async () => {
    const code = `
wrote = 0
try:
    for i in range(100):
        with open(f'/tmp/{i}', 'wb') as file:
            for _ in range(8): wrote += file.write(bytes(1 << 20))
except OSError as error: print(error.strerror, wrote <= 64 << 20)
`
    expect(await runCode(sandbox, code)).toMatchObject({ exit_code: 0, stdout: 'No space left on device True\n' })
  })

  it('ends with exit code 139 if it crashes its interpreter', async () => {
    const result = await runCode(sandbox, "print('before', flush=True)\nimport os; os.abort()")
    expect(result).toMatchObject({ success: true, exit_code: 139, stdout: 'before\n' })
    expect(result.stderr).toMatch(/interpreter crashed/)
  })

  it('can use asyncio and sleep without threads', async () => {
    const code = `
import asyncio, time
async def work(n):
    await asyncio.sleep(0.05 * n)
    return n
async def main():
    began = time.monotonic()
    print(await asyncio.gather(work(2), work(1)), time.monotonic() - began >= 0.1)
asyncio.run(main())
`
    expect(await runCode(sandbox, code)).toMatchObject({ exit_code: 0, stdout: '[2, 1] True\n' })
  })

  it('is stopped at its timeout in a loop and in a sleep', async () => {
    for (const code of ['while True: pass', 'import time; time.sleep(60)', 'sum(x for x in iter(int, 1))']) {
      expect(await runCode(sandbox, `print('began')\n${code}`, { timeoutMs: 1_500 })).toMatchObject({
        success: false,
        exit_code: -1,
        stdout: 'began\n',
      })
    }
  })

  it('does not use up its timeout while it waits for an interpreter', async () => {
    const runs = Array.from({ length: 3 * availableParallelism() }, () =>
      runCode(sandbox, 'import time; time.sleep(2)', { timeoutMs: 5_500 }),
    )
    expect((await Promise.all(runs)).map(({ exit_code }) => exit_code)).toEqual(runs.map(() => 0))
  })
})

describe.skipIf(problem !== undefined)('the process with the WebAssembly interpreters', { timeout: RUN_MS }, () => {
  let files: WasmFiles
  beforeAll(async () => {
    files = await prepareWasmFiles(SANDBOX_DIRECTORY)
  }, PREPARE_MS)

  const job = (code: string) => ({ code, timeoutMs: 30_000, scan: false })

  it('cannot read other files, write files, start processes or evaluate code', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'sluice-wasm-'))
    const probe = join(directory, 'probe.mjs')
    await writeFile(probe, PROBE)
    const child = spawn(process.execPath, [...confine([probe]), probe], {
      env: {},
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    expect(JSON.parse(await firstLine(child))).toEqual({
      ...{ own: 'read', other: 'ERR_ACCESS_DENIED', write: 'ERR_ACCESS_DENIED', spawn: 'ERR_ACCESS_DENIED' },
      ...{ eval: 'EvalError', variables: [] },
    })
    await rm(directory, { recursive: true })
  })

  it('fails its runs with sandbox_lost when it is killed, and accepts no further runs', async () => {
    const wasm = await WasmProcess.start(files, 1, log, never)
    const began = Promise.withResolvers<void>()
    const run = wasm.run(job("print('began')\nwhile True: pass"), () => began.resolve(), never)
    await began.promise
    process.kill(wasm.pid as number, 'SIGKILL')
    await expect(run).rejects.toMatchObject({ code: 'sandbox_lost' })
    await expect(wasm.run(job('print(1)'), () => {}, never)).rejects.toMatchObject({ code: 'sandbox_lost' })
    await wasm.stop()
  })

  it('fails its runs with sandbox_lost when it is stopped', async () => {
    const wasm = await WasmProcess.start(files, 1, log, never)
    const began = Promise.withResolvers<void>()
    const run = wasm.run(job("print('began')\nwhile True: pass"), () => began.resolve(), never)
    const lost = expect(run).rejects.toMatchObject({ code: 'sandbox_lost' })
    await began.promise
    await wasm.stop()
    await lost
    expect(isAlive(wasm.pid as number)).toBe(false)
  })

  it('ends when the service is killed, even if all of its threads are busy', async () => {
    const host = spawn(process.execPath, [HOST, SANDBOX_DIRECTORY], { stdio: ['ignore', 'pipe', 'inherit'] })
    const pid = Number(await firstLine(host))
    expect(isAlive(pid)).toBe(true)
    host.kill('SIGKILL')
    await once(host, 'close')
    await until(() => !isAlive(pid), { withinMs: 5_000 })
  })

  it('is replaced after a crash, and the next run succeeds', async () => {
    const pids: number[] = []
    const noting = openLog('silent', 'test')
    noting.info = ((fields: { pid?: number }) => fields.pid && pids.push(fields.pid)) as typeof noting.info
    const sandbox = await wasmAdapter({ directory: SANDBOX_DIRECTORY, log: noting }).open(
      AbortSignal.timeout(PREPARE_MS),
    )
    process.kill(pids[0] as number, 'SIGKILL')
    await until(() => sandbox.stats().idle === 0, { withinMs: 5_000 })
    const leaving = runCode(sandbox, 'print(1)', { signal: AbortSignal.timeout(1) })
    await expect(leaving).rejects.toMatchObject({ name: 'TimeoutError' })
    expect(sandbox.stats()).toEqual({ idle: 0, busy: 0 })
    expect(await runCode(sandbox, 'print(1)')).toMatchObject({ stdout: '1\n' })
    expect(pids).toHaveLength(2)
    await sandbox.close()
    await expect(runCode(sandbox, 'print(1)')).rejects.toMatchObject({ code: 'sandbox_lost' })
    expect(pids.filter(isAlive)).toEqual([])
  })
})

it('the WebAssembly sandbox names the package to install if Python is missing', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-wasm-'))
  const adapter = wasmAdapter({ directory, log, python: join(directory, 'no-python') })
  await expect(adapter.prepare(() => {}, never)).rejects.toMatchObject({
    code: 'sandbox_unavailable',
    message: expect.stringMatching(/Python 3\.10.*pip/),
  })
  await expect(adapter.open(never)).rejects.toMatchObject({ code: 'sandbox_unavailable' })
  expect((await readdir(directory)).filter((name) => !name.startsWith('.'))).toEqual([])
  await rm(directory, { recursive: true })
})

async function firstLine(child: ChildProcess): Promise<string> {
  if (!child.stdout) throw new Error('no output')
  const [line] = await once(createInterface({ input: child.stdout }), 'line')
  return String(line)
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
