import { execFile, spawn } from 'node:child_process'
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, parse } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { pino } from 'pino'
import { describe, expect, test } from 'vitest'
import type { ServiceError } from '#shared/lib/error.ts'
import { getEnvironmentState } from '#shared/local-server/environment.ts'
import { LocalServer } from '#shared/local-server/local-server.ts'
import { findEnvironment, form, openServer, type TestServer } from '../../support/speech/running.ts'
import { findSpeech } from '../../support/speech/speech.ts'
import { join as joinSamples, samplesOf, waveOf } from '../../support/speech/wave.ts'
import { until } from '../../support/stack.ts'

const environment = await findEnvironment()
const clips = environment && (await findSpeech())
const model = 'whisper-tiny.en'
const isLinux = process.platform === 'linux'
const code = fileURLToPath(new URL('../../../shared/local-server/python', import.meta.url))

describe.skipIf(!clips)('the process of the local model server', { timeout: 120_000 }, () => {
  /** Returns a recording with a quarter of an hour of speech. */
  const longSpeech = async (local: TestServer) => {
    const { bytes } = await local.post('/audio/decode', clips?.['two-cities']?.bytes ?? Buffer.alloc(0))
    return waveOf(joinSamples(Array(20).fill(samplesOf(bytes))))
  }
  const health = async (local: TestServer) => (await local.post('/v1/embeddings', {})).status

  test('starts at the first call, and serves concurrent calls', async () => {
    await using local = openServer()
    expect(local.server.pid).toBeUndefined()
    const signal = AbortSignal.timeout(60_000)
    const [one, other] = await Promise.all([local.server.connect(signal), local.server.connect(signal)])
    expect(one.dispatcher).toBe(other.dispatcher)
    expect(isAlive(local.server.pid)).toBe(true)
  })

  test('stops when it is idle, and starts again at the next call', async () => {
    await using local = openServer({ idleMs: 100 })
    await health(local)
    const first = local.server.pid
    await until(() => local.server.pid === undefined && !isAlive(first))
    expect(await health(local)).toBe(404)
    expect(local.server.pid).not.toBe(first)
  })

  test('does not stop during a call that takes longer than the idle timeout', async () => {
    await using local = openServer({ idleMs: 40 })
    const file = clips?.['two-cities']?.bytes ?? Buffer.alloc(0)
    const { json } = await local.post('/v1/audio/transcriptions', form({ model, file }))
    expect(json.text).toContain('season of light')
  })

  test('is replaced at the next call after a crash', async () => {
    await using local = openServer()
    await health(local)
    const first = local.server.pid
    kill(first, 'SIGKILL')
    await until(() => local.server.pid === undefined)
    expect(await health(local)).toBe(404)
    expect(local.server.pid).not.toBe(first)
  })

  test('is not restarted for some time after repeated crashes, and calls fail with model_loading', async () => {
    await using local = openServer()
    const crash = async () => {
      await health(local)
      kill(local.server.pid, 'SIGKILL')
      await until(() => local.server.pid === undefined)
    }
    // Crashes the server until a call fails, which happens after at most five crashes. The delay before a restart grows with each crash, and a
    // call fails if this delay exceeds one second.
    const crashes = async () => {
      for (let count = 0; count < 6; count++) await crash()
    }
    const refusal = await crashes().catch((error: unknown) => error)
    expect(refusal).toMatchObject({ code: 'model_loading', message: expect.stringContaining('crashed') })
    expect((refusal as ServiceError).retryAfterMs).toBeGreaterThan(1_000)
  })

  test('continues to run after SIGINT, because its parent process may still need it', async () => {
    await using local = openServer()
    await health(local)
    const { pid } = local.server
    kill(pid, 'SIGINT')
    expect(await health(local)).toBe(404)
    expect(local.server.pid).toBe(pid)
  })

  test('ends when it is closed, and later calls fail with overloaded', async () => {
    const local = openServer()
    await health(local)
    const { pid } = local.server
    await local.server.close()
    expect(isAlive(pid)).toBe(false)
    await expect(health(local)).rejects.toMatchObject({ code: 'overloaded' })
    await local.server.close()
  })

  test.runIf(isLinux)('stops the work of a call whose caller disconnects', async () => {
    await using local = openServer()
    const file = await longSpeech(local)
    const leaving = new AbortController()
    const events = local.events('/v1/audio/transcriptions', form({ model, stream: 'true', file }), leaving.signal)
    for await (const { type } of events) if (type === 'sluice.segment') break
    const workers = () => descendants(local.server.pid ?? 0, 'speak')
    leaving.abort()
    await until(async () => (await workers()).length === 0)
    expect(await health(local)).toBe(404)
  })

  test.runIf(isLinux)('ends with its child processes when its parent process is killed', async () => {
    await using local = openServer()
    const directory = await mkdtemp(join(tmpdir(), 'holder-'))
    const file = join(directory, 'speech.wav')
    await writeFile(file, await longSpeech(local))
    const holder = spawn(process.execPath, [
      fileURLToPath(new URL('../../support/speech/holder.ts', import.meta.url)),
      file,
    ])
    let printed = ''
    holder.stdout.on('data', (chunk) => {
      printed += chunk
    })
    const pid = Number(await until(() => printed.split('\n')[0], { withinMs: 60_000 }))
    const all = [pid, ...(await descendants(pid, 'main.py'))]
    expect(all.length).toBeGreaterThanOrEqual(3)
    holder.kill('SIGKILL')
    await until(() => !all.some(isAlive))
    await rm(directory, { recursive: true })
  })

  test.runIf(isLinux)('logs how it is isolated, and has no secrets in its environment', async () => {
    const lines: string[] = []
    await using local = openServer({ log: pino({ level: 'info' }, { write: (line) => lines.push(line) }) })
    process.env.SLUICE_TEST_SECRET = 'not for the server'
    await health(local)
    const confined = await until(() => lines.map((line) => JSON.parse(line)).find(({ network }) => network))
    expect(confined.network).toContain('seccomp')
    expect(confined.msg).toBe('local model server confined')
    // The test can read the environment of the process only as root, because the process runs as another user.
    const environ = await readFile(`/proc/${local.server.pid}/environ`, 'utf8').catch(() => '')
    expect(environ).not.toContain('not for the server')
  })

  test.runIf(isLinux)('is confined: it has no access to the network, other files or other processes', async () => {
    const home = await mkdtemp(join(tmpdir(), 'confined-'))
    const scratch = join(home, 'scratch')
    await mkdir(scratch)
    const probe = fileURLToPath(new URL('../../support/speech/confined.py', import.meta.url))
    const args = ['-I', '-B', probe, code, scratch]
    const { stdout } = await promisify(execFile)(environment?.python.executable ?? '', args, { timeout: 30_000 })
    await rm(home, { recursive: true, force: true })
    const { can, ...report } = JSON.parse(stdout)
    expect(can).toMatchObject({ open_socket: false, open_unix_socket: false, be_root: false, write_scratch: true })
    expect(can).toMatchObject({ open_any_file: false, fork: false })
    if (report.files === 'open') return
    expect(can).toMatchObject({ read_passwd: false, child_reads_passwd: false, see_processes: false, write_tmp: false })
    if (Number(report.files.split(' ')[1]) >= 6) expect(can.signal_parent).toBe(false)
    if (process.getuid?.() === 0) expect(report).toMatchObject({ uid: 65_534, is_complete: true })
  })
})

describe('the Python environment of the local model server', () => {
  test('fails with an error that names the package to install if Python is missing', async () => {
    await using place = await temporary()
    const server = new LocalServer({ directory: place.path, log: pino({ level: 'silent' }), python: '/no/python' })
    await expect(server.prepare()).rejects.toThrow(/need Python 3\.10 or newer with pip: install python3/)
    expect(await server.state()).toMatchObject({ state: 'failed', reason: expect.stringContaining('Python 3.10') })
    await expect(server.connect(AbortSignal.timeout(5_000))).rejects.toMatchObject({
      code: 'model_loading',
      message: expect.stringContaining('Python 3.10'),
      retryAfterMs: 60_000,
    })
    await server.close()
  })

  test('is prepared by the first call, while further calls wait', async () => {
    await using place = await temporary()
    const python = join(place.path, 'slow-python')
    await writeFile(python, '#!/bin/sh\nexec sleep 60\n')
    await chmod(python, 0o755)
    const server = new LocalServer({ directory: place.path, log: pino({ level: 'silent' }), python })
    const connect = () => server.connect(AbortSignal.timeout(60_000))
    expect((await server.state()).state).toBe('absent')
    const waiting = connect().catch((error: unknown) => error)
    await until(async () => (await server.state()).state === 'preparing')
    await expect(server.connect(AbortSignal.abort('aborted'))).rejects.toBe('aborted')
    await server.close()
    expect(await waiting).toMatchObject({ code: 'overloaded' })
    // An interrupted preparation does not count as failed, so that the next one may start at once.
    expect((await server.state()).state).toBe('absent')
  })

  test('fails with advice to check the network if the package index has no packages', async () => {
    await using place = await temporary()
    const python = join(place.path, 'python')
    const real = environment?.python.executable ?? 'python3'
    const described = JSON.stringify({ executable: python, tag: 'cpython-311', version: [3, 11, 2], has_pip: true })
    const cutOff = `PIP_NO_INDEX=1 PIP_FIND_LINKS=/none exec ${real} "$@"`
    await writeFile(python, `#!/bin/sh\nif [ "$1" = -I ]; then echo '${described}'; else ${cutOff}; fi\n`)
    await chmod(python, 0o755)
    const server = new LocalServer({ directory: place.path, log: pino({ level: 'silent' }), python })
    await expect(server.prepare()).rejects.toThrow('check the network')
    await server.close()
  })

  test.skipIf(!environment)('is created again if its Python interpreter no longer exists', async () => {
    await using place = await temporary()
    await writeEnvironment(place.path, '/gone/python')
    const server = new LocalServer({ directory: place.path, log: pino({ level: 'silent' }), python: '/no/python' })
    expect((await server.state()).state).toBe('ready')
    await expect(server.connect(AbortSignal.timeout(5_000))).rejects.toMatchObject({ code: 'model_loading' })
    await until(async () => (await getEnvironmentState(place.path)).state === 'failed')
    await server.close()
  })

  test.skipIf(!environment)('is not created again if its Python interpreter exists but fails', async () => {
    await using place = await temporary()
    const [python, checks] = [join(place.path, 'python'), join(place.path, 'checks')]
    await writeFile(python, `#!/bin/sh\necho check >> ${checks}\nsleep 1\nexit 1\n`)
    await chmod(python, 0o755)
    await writeEnvironment(place.path, python)
    const server = new LocalServer({ directory: place.path, log: pino({ level: 'silent' }), python: '/no/python' })
    const connect = () => server.connect(AbortSignal.timeout(60_000), model).catch((error: unknown) => error)
    const failure = { code: 'model_loading', message: expect.stringContaining('could not be run') }
    expect(await Promise.all([connect(), connect(), connect()])).toMatchObject([failure, failure, failure])
    expect([(await server.state()).state, await readFile(checks, 'utf8')]).toEqual(['ready', 'check\n'])
    const closing = connect()
    await until(async () => (await readFile(checks, 'utf8')).length > 'check\n'.length)
    await server.close()
    expect(await closing).toMatchObject({ code: 'overloaded' })
    expect((await server.state()).state).toBe('ready')
  })
})

/** Writes a Python environment that another version of Python has created, without packages and models. */
async function writeEnvironment(parent: string, executable: string): Promise<void> {
  const { base } = parse(environment?.directory ?? '')
  await mkdir(join(parent, base))
  await writeFile(join(parent, base, 'ready.json'), JSON.stringify({ executable, tag: 'cpython-39' }))
}

async function temporary(): Promise<AsyncDisposable & { path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'local-server-'))
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) }
}

/** Sends a signal to the server. The pid must not be 0, because 0 is the process group of the tests themselves. */
function kill(pid: number | undefined, signal: NodeJS.Signals): void {
  if (pid === undefined) throw new Error('the server is not running')
  process.kill(pid, signal)
}

function isAlive(pid: number | undefined): boolean {
  if (pid === undefined) return false
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

/** Returns the pids of all descendants of a process whose command line contains the word. */
async function descendants(pid: number, word: string): Promise<number[]> {
  const children = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8').catch(() => '')
  const tasks = await readdir(`/proc/${pid}/task`).catch(() => [])
  const lists = await Promise.all(
    tasks.map((task) => readFile(`/proc/${pid}/task/${task}/children`, 'utf8').catch(() => '')),
  )
  const found: number[] = []
  for (const child of new Set([children, ...lists].join(' ').split(/\s+/).filter(Boolean).map(Number))) {
    const command = await readFile(`/proc/${child}/cmdline`, 'utf8').catch(() => '')
    if (command.includes(word)) found.push(child)
    found.push(...(await descendants(child, word)))
  }
  return found
}
