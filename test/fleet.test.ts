import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { logText } from '#shared/log/log.ts'
import { openPostgresDatabase } from './support/jobs/stores.ts'
import { ENVIRONMENT } from './support/processes/environment.ts'
import { type Fleet, jobsHeld, openFleet, type RoleProcess } from './support/processes/fleet.ts'
import { startUpstream } from './support/processes/upstream.ts'
import { ECHO_MODEL, TEST_KEY, until } from './support/stack.ts'

const [kafka, postgres] = [inject('kafka'), inject('postgres')]
const USAGE = { prompt_tokens: 1, completion_tokens: 1 }

/** Outcome of one call, as its caller observed it. */
interface Ending {
  status: number
  text: string
  /** True if the response is complete: a JSON body, or a stream that ended with [DONE]. */
  isWhole: boolean
  isErrorFrame: boolean
  afterMs: number
}

// Each test starts about three processes, which takes up to a minute on a busy machine.
describe.skipIf(!kafka)('a fleet of processes on Kafka', { timeout: 240_000 }, () => {
  it('retries calls without output if their worker is killed, and ends begun streams with an error frame', async () => {
    await using fleet = await openFleet(kafka ?? '')
    const ingress = await fleet.start('ingress')
    // One worker has too few slots for all calls. Both workers therefore run streamed calls and calls without streaming.
    const slots = { INFERENCE_SLOTS: '30' }
    const [doomed] = [await fleet.start('inference', slots), await fleet.start('inference', slots)]
    const silent: Promise<Ending>[] = []
    const talking: Promise<Ending>[] = []
    for (let i = 0; i < 25; i++) {
      silent.push(callOnce(fleet, ingress, '!echo first_ms=6000\nanswer', false))
      talking.push(callOnce(fleet, ingress, '!echo tokens=60 delay_ms=100', true))
    }
    await untilRunning(ingress, 50)
    doomed.kill('SIGKILL')
    const [whole, streams] = [await Promise.all(silent), await Promise.all(talking)]
    for (const ending of whole) expect(ending).toMatchObject({ status: 200, isWhole: true })
    for (const ending of streams)
      expect(
        Number(ending.isWhole) + Number(ending.isErrorFrame),
        `final events of the stream that ends with ${ending.text.slice(-300)}`,
      ).toBe(1)
    const retried = ingress.log.filter((line) => line.msg === 'job retried' && line.reason === 'lost')
    expect(retried.length).toBeGreaterThan(0)
    expect(streams.some((ending) => ending.isErrorFrame)).toBe(true)
    expect(streams.some((ending) => ending.isWhole)).toBe(true)
  })

  it('loses no call when a worker receives SIGTERM under load', async () => {
    await using fleet = await openFleet(kafka ?? '')
    const ingress = await fleet.start('ingress')
    const leaving = await fleet.start('inference')
    await fleet.start('inference')
    const calls = [
      ...callMany(fleet, ingress, 40, '!echo first_ms=800\nanswer', false),
      ...callMany(fleet, ingress, 20, '!echo tokens=30 delay_ms=50', true),
    ]
    await until(async () => (await jobsHeld(ingress, 'running')) > 0, { withinMs: 60_000 })
    leaving.kill('SIGTERM')
    calls.push(...callMany(fleet, ingress, 20, 'late', false))
    for (const ending of await Promise.all(calls)) expect(ending).toMatchObject({ status: 200, isWhole: true })
    expect(await leaving.exited).toBe(0)
  })

  it('finishes the calls of an ingress that received SIGTERM, and refuses new calls with 503', async () => {
    await using fleet = await openFleet(kafka ?? '')
    const ingress = await fleet.start('ingress')
    await fleet.start('inference')
    const calls = [
      ...callMany(fleet, ingress, 20, '!echo first_ms=1500\nanswer', false),
      ...callMany(fleet, ingress, 20, '!echo tokens=30 delay_ms=50', true),
    ]
    await until(async () => (await jobsHeld(ingress, 'running')) + (await jobsHeld(ingress, 'queued')) === 40)
    ingress.kill('SIGTERM')
    await until(async () => (await callOnce(fleet, ingress, 'new', false)).status === 503)
    for (const ending of await Promise.all(calls)) expect(ending).toMatchObject({ status: 200, isWhole: true })
    expect(await ingress.exited).toBe(0)
  })

  it("requeues a job to another worker when the worker's drain times out", async () => {
    await using fleet = await openFleet(kafka ?? '')
    const ingress = await fleet.start('ingress')
    const leaving = await fleet.start('inference', { DRAIN_MS: '300' })
    const calls = callMany(fleet, ingress, 5, '!echo first_ms=8000\nanswer', false)
    await untilRunning(ingress, 5)
    // The second worker is started only after the first one has requeued its jobs. Until then, the jobs run on the first worker.
    leaving.kill('SIGTERM')
    await leaving.exited
    await fleet.start('inference')
    for (const ending of await Promise.all(calls)) expect(ending).toMatchObject({ status: 200, isWhole: true })
    expect(ingress.log.filter((line) => line.reason === 'handed_back')).toHaveLength(5)
  })

  it.skipIf(!postgres)(
    'reserves interactive_slots of each worker for calls while jobs of low priority run',
    async () => {
      const released = Promise.withResolvers<void>()
      const lines = () => upstream.calls.filter(({ body }) => JSON.stringify(body).includes('line')).length
      await using upstream = await startUpstream(async ({ body }, answer) => {
        if (JSON.stringify(body).includes('line')) await released.promise
        const message = { role: 'assistant', content: 'ok' }
        answer.json({ choices: [{ index: 0, message, finish_reason: 'stop' }], usage: USAGE })
      })
      const engine = { type: 'openai', base_url: `${upstream.url}/v1` }
      await using database = await openPostgresDatabase(postgres ?? '')
      await using fleet = await openFleet(kafka ?? '', [{ id: 'm', interactive_slots: 1, engine }])
      const settings = { DATABASE_URL: database.url, INFERENCE_SLOTS: '2' }
      const ingress = await fleet.start('ingress', settings)
      await Promise.all([fleet.start('inference', settings), fleet.start('inference', settings)])
      const bodyOf = (content: string) => ({ model: 'm', messages: [{ role: 'user', content }] })
      const submit = async (_: unknown, nth: number) => {
        const job = { endpoint: '/v1/chat/completions', body: bodyOf(`line ${nth}`), priority: 'low' }
        return ((await (await fleet.post(ingress, '/v1/jobs', job)).json()) as { id: string }).id
      }
      const jobs = await Promise.all(Array.from({ length: 8 }, submit))
      await until(() => lines() === 2, { withinMs: 60_000 })
      for (const content of ['first call', 'second call', 'third call'])
        expect((await fleet.post(ingress, '/v1/chat/completions', bodyOf(content))).status, content).toBe(200)
      expect(lines(), 'jobs of low priority that run').toBe(2)
      released.resolve()
      for (const id of jobs)
        await until(
          async () => {
            const headers = { authorization: `Bearer ${TEST_KEY}` }
            const response = await fetch(`${ingress.url}/v1/jobs/${id}?wait=10`, { headers })
            return ((await response.json()) as { status: string }).status === 'completed'
          },
          { withinMs: 60_000 },
        )
    },
  )

  it('has workers that exit with code 1 immediately at a second signal during a drain', async () => {
    await using fleet = await openFleet(kafka ?? '')
    const ingress = await fleet.start('ingress')
    const worker = await fleet.start('inference')
    const call = callOnce(fleet, ingress, '!echo first_ms=60000\nanswer', false)
    call.catch(() => {})
    await untilRunning(ingress, 1)
    worker.kill('SIGTERM')
    await new Promise((resolve) => setTimeout(resolve, 1_200))
    worker.kill('SIGTERM')
    expect(await worker.exited).toBe(1)
  })
})

describe('a process of all roles', () => {
  it('drains once at two simultaneous signals, as sent by Ctrl-C under npm', async () => {
    const { child, output } = await startMain([], { SLUICE_API_KEY: TEST_KEY })
    const url = await until(() => /http:\/\/[\d.:]+/.exec(output())?.[0], { withinMs: 50_000 })
    const answer = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json' },
      body: JSON.stringify({
        model: 'echo-1',
        messages: [{ role: 'user', content: '!echo tokens=20 delay_ms=50' }],
        stream: true,
      }),
    })
    const exited = once(child, 'exit')
    // The test sends two different signals, because the system may deliver two equal pending signals as one.
    child.kill('SIGINT')
    child.kill('SIGTERM')
    expect((await answer.text()).endsWith('data: [DONE]\n\n')).toBe(true)
    expect(await exited).toEqual([0, null])
  })

  it('prints its address and an example call, without the configured API key', async () => {
    const { output } = await startMain([], { SLUICE_API_KEY: TEST_KEY })
    await until(() => output().includes('What is the capital'), { withinMs: 50_000 })
    expect(output()).toMatch(/Sluice listens on http:\/\/127\.0\.0\.1:\d+/)
    expect(output()).toContain('-H "Authorization: Bearer $SLUICE_API_KEY"')
    expect(output()).not.toContain(TEST_KEY)
  })

  it('prints a generated API key at the first start only', async () => {
    const directory = await emptyDirectory()
    const first = await startMain([], {}, directory)
    await until(() => first.output().includes('What is the capital'), { withinMs: 50_000 })
    expect(first.output()).toMatch(/export SLUICE_API_KEY=sk-[\w-]{40}\n/)
    first.child.kill('SIGTERM')
    await once(first.child, 'exit')
    const second = await startMain([], {}, directory)
    await until(() => second.output().includes('What is the capital'), { withinMs: 50_000 })
    expect(second.output()).not.toContain('sk-')
    expect(second.output()).toContain('sluice keys create')
  })

  it('creates no key and no file if its port is in use', async () => {
    const taken = createServer().listen(0, '127.0.0.1')
    onTestFinished(() => void taken.close())
    await once(taken, 'listening')
    const port = String((taken.address() as AddressInfo).port)
    const directory = await emptyDirectory()
    const { child, output } = await startMain([], { PORT: port }, directory)
    expect(await once(child, 'exit')).toEqual([2, null])
    expect(output()).toContain(`PORT: ${port} is in use`)
    expect(await readdir(directory)).not.toContain('keys.json')
  })

  it.each([
    { name: 'KAFKA_BROKERS', address: '127.0.0.1:1', remediation: 'deploy/kafka-local.sh start' },
    { name: 'DATABASE_URL', address: 'postgres://127.0.0.1:1/x', remediation: 'in DATABASE_URL' },
  ])(
    'prints the command or setting to change if no server listens at the address in $name',
    async ({ name, address, remediation }) => {
      const { output } = await startMain([], { [name]: address })
      await until(() => output().includes(remediation), { withinMs: 50_000 })
    },
  )
})

describe('log output on a terminal', () => {
  const line = (more: object) =>
    logText(JSON.stringify({ level: 30, time: '2026-11-21T14:39:43Z', service: 's', ...more }))

  it('prints one line of text per JSON record', () => {
    const text = line({ role: 'ingress', step: 'two words', count: 2, msg: 'service ready' })
    expect(text).toMatch(/\d\d:39:43.* service ready role=ingress step="two words" count=2\n$/)
  })

  it('labels warnings and errors with their level, and includes the stack of an error', () => {
    const err = { message: 'No.', stack: 'Error: No.\n    at here' }
    expect(line({ level: 40, msg: 'cut', err })).toMatch(/WARN .*cut: No\.\n$/)
    expect(line({ level: 50, msg: 'broken', err })).toMatch(/ERROR .*broken: No\.\n {4}Error: No\.\n {8}at here\n$/)
  })

  it('strips terminal control sequences from values', () => {
    const text = line({ path: '/\x1b[2J\x9b1A', msg: 'request', err: { message: '\x1b]0;title\x07x' } })
    // biome-ignore lint/suspicious/noControlCharactersInRegex: the test searches for control characters
    expect(text.replace(/^\S+ /, '')).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/)
  })
})

async function emptyDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-start-'))
  onTestFinished(() => rm(directory, { recursive: true, force: true }))
  return directory
}

/** Starts the service with the given roles, or with all roles, in a child process. `output` returns the text that the process has printed so far. */
async function startMain(roles: string[], settings: Record<string, string>, directory?: string) {
  const dataDir = directory ?? (await emptyDirectory())
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, JSON.stringify({ models: [ECHO_MODEL] }))
  const own = { PORT: '0', DATA_DIR: dataDir, MODELS_FILE: modelsFile, SANDBOX: 'off' }
  const env = { ...ENVIRONMENT, ...own, ...settings }
  const child = spawn(process.execPath, ['services/main.js', ...roles], { env })
  let text = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk) => {
      text += chunk
    })
  }
  onTestFinished(async () => {
    if (child.exitCode !== null) return
    const exited = once(child, 'exit')
    child.kill('SIGKILL')
    await exited
  })
  return { child, output: () => text }
}

async function untilRunning(ingress: RoleProcess, count: number): Promise<void> {
  await until(async () => (await jobsHeld(ingress, 'running')) === count, { withinMs: 60_000 })
}

function callMany(
  fleet: Fleet,
  ingress: RoleProcess,
  count: number,
  script: string,
  stream: boolean,
): Promise<Ending>[] {
  return Array.from({ length: count }, () => callOnce(fleet, ingress, script, stream))
}

async function callOnce(fleet: Fleet, ingress: RoleProcess, script: string, stream: boolean): Promise<Ending> {
  const startedAt = Date.now()
  const messages = [{ role: 'user', content: script }]
  const response = await fleet.post(ingress, '/v1/chat/completions', { model: 'echo-1', messages, stream })
  const text = await response.text()
  return {
    status: response.status,
    text,
    isWhole: stream ? text.endsWith('data: [DONE]\n\n') : response.status === 200,
    isErrorFrame: text.includes('data: {"error":'),
    afterMs: Date.now() - startedAt,
  }
}
