/*
 * Runs the programs of examples/ unchanged against a real service. Each program needs only Node.js or Python, except examples/job.ts, which uses
 * the SDK.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { createHmac } from 'node:crypto'
import { once } from 'node:events'
import { readFile, writeFile } from 'node:fs/promises'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { freePort } from './support/processes/free-ports.ts'
import { type Stack, startStack, TEST_KEY, until } from './support/stack.ts'

const execute = promisify(execFile)
const EXAMPLES = join(import.meta.dirname, '../examples')
/**
 * The proxy cuts the connection before the event with this number. The number is above 2, because the service sends the first two events of a job
 * together.
 */
const CUT_AT = 5
const PROGRAM_MS = 50_000
const LANGUAGES = [
  { language: 'TypeScript', command: process.execPath, extension: 'ts' },
  { language: 'Python', command: 'python3', extension: 'py' },
]

let stack: Stack
beforeAll(async () => {
  stack = await startStack({ settings: { WEBHOOK_ALLOW_PRIVATE: 'true' } })
})
afterAll(() => stack[Symbol.asyncDispose]())

describe.each(LANGUAGES)('example programs in $language', ({ command, extension }) => {
  const environment = (env: Record<string, string> = {}) => {
    return { PATH: process.env.PATH ?? '', SLUICE_URL: stack.url, SLUICE_API_KEY: TEST_KEY, ...env }
  }
  const sdk = (url: string, key = TEST_KEY) => {
    return { OPENAI_BASE_URL: `${url}/v1`, OPENAI_API_KEY: key }
  }
  async function run(name: string, args: readonly string[], env: Record<string, string> = {}, stdin = '') {
    const options = { env: environment(env), timeout: PROGRAM_MS }
    const running = execute(command, [join(EXAMPLES, `${name}.${extension}`), ...args], options)
    running.child.stdin?.end(stdin)
    return await running
  }

  it('submit a job, reconnect to its stream, receive each event once, and print the result', async () => {
    const breaking = await startBreakingProxy(stack.url)
    const { stdout, stderr } = await run('job', ['!echo tokens=12 delay_ms=50'], sdk(breaking.url))
    const events = stderr.trim().split('\n')
    expect(events.map((line) => Number(line.split(' ')[1]))).toEqual(events.map((_, i) => i + 1))
    expect(events.at(-1)).toMatch(/^job\.completed /)
    expect(breaking.follows).toHaveLength(2)
    expect(breaking.follows.at(-1)).toBe(`starting_after=${CUT_AT - 1}`)
    expect(JSON.parse(stdout)).toMatchObject({ object: 'chat.completion' })
  })

  it("exit with code 1 and the service's error message for a refused key or a failed job", async () => {
    const refused = run('job', ['x'], sdk(stack.url, 'sk-wrong-0123456789'))
    await expect(refused).rejects.toMatchObject({ code: 1, stderr: expect.stringMatching(/401/) })
    const failed = run('job', ['!echo fail=invalid_value'], sdk(stack.url))
    await expect(failed).rejects.toMatchObject({ code: 1, stderr: expect.stringMatching(/job\.failed/) })
  })

  it('accept a signed webhook once, and refuse wrong signatures, old timestamps and repeated deliveries', async () => {
    const { data } = (await (await stack.get('/v1/webhook-secrets')).json()) as { data: { secret: string }[] }
    const secret = String(data[0]?.secret)
    const port = await freePort()
    const script = join(EXAMPLES, `webhook.${extension}`)
    const child = spawn(command, [script], { env: environment({ WEBHOOK_SECRET: secret, PORT: String(port) }) })
    const said = listenTo(child)
    const hook = `http://127.0.0.1:${port}/hook`
    await until(() => fetch(hook).catch(() => undefined))

    const body = { model: 'echo-1', messages: [{ role: 'user', content: 'x' }] }
    const answer = await stack.post('/v1/jobs', { endpoint: '/v1/chat/completions', body, webhook: { url: hook } })
    const job = (await answer.json()) as { id: string }
    await until(() => said() === `job.completed ${job.id}\n`)

    const now = Math.floor(Date.now() / 1_000)
    const message = JSON.stringify({ id: 'evt_1', type: 'job.failed', data: { id: 'job_forged' } })
    const send = async (key: string, at: number, more = '') => {
      const bytes = Buffer.from(key.replace('whsec_', ''), 'base64')
      const signature = createHmac('sha256', bytes).update(`evt_1.${at}.${message}`).digest('base64')
      const signed = {
        'webhook-id': 'evt_1',
        'webhook-timestamp': String(at),
        'webhook-signature': `${more}v1,${signature}`,
      }
      return (await fetch(hook, { method: 'POST', body: message, headers: signed })).status
    }
    expect(await send('whsec_Zm9yZ2Vk', now)).toBe(400)
    expect(await send(secret, now - 1_000)).toBe(400)
    expect((await fetch(hook, { method: 'POST', body: message })).status).toBe(400)
    expect(said()).not.toContain('job_forged')
    expect(await send(secret, now, 'v1,b2xk ')).toBe(204)
    expect(await send(secret, now)).toBe(204)
    await until(() => said().includes('job_forged'))
    expect(said().match(/job_forged/g)).toHaveLength(1)
  })

  it('run a batch, print its id at once, and continue polling after the service was unavailable', async () => {
    const breaking = await startBreakingProxy(stack.url)
    const prompts = Array.from({ length: 12 }, (_, i) => `Prompt ${i + 1}`)
    const batchOf = extension === 'ts' ? batchOfLines : batchOfPrompts
    const { answers, stderr } = await batchOf(prompts, { SLUICE_URL: breaking.url })
    expect(answers).toEqual(prompts)
    expect(stderr).toMatch(/^(msg)?batch_\S+\n/)
    expect(breaking.polls.length).toBeGreaterThan(1)
  })

  it("exit with code 1 and the service's error message for a refused batch", async () => {
    const batchOf = extension === 'ts' ? batchOfLines : batchOfPrompts
    const refused = batchOf(['x'], { SLUICE_API_KEY: 'sk-wrong-0123456789' })
    await expect(refused).rejects.toMatchObject({ code: 1, stderr: expect.stringMatching(/Incorrect API key/) })
  })

  it.skipIf(extension === 'ts')(
    'report an undecodable prompt, a failed request and an unreachable service without a traceback',
    async () => {
      const fails = async (stdin: string | Buffer, env: Record<string, string> = {}) => {
        const options = { env: environment(env), timeout: PROGRAM_MS }
        const running = execute(command, [join(EXAMPLES, 'batch.py'), 'echo-1'], options)
        running.child.stdin?.end(stdin)
        return await running.then(
          () => expect.fail('the program succeeded'),
          ({ code, stderr }: { code: number; stderr: string }) => {
            expect([code, stderr]).toEqual([1, expect.not.stringContaining('Traceback')])
            return stderr
          },
        )
      }
      expect(await fails('\n\n')).toMatch(/^No prompts on standard input/)
      expect(await fails(Buffer.from('caf\xe9', 'latin1'))).toMatch(/^The prompts are not UTF-8/)
      expect(await fails('!echo fail=invalid_value')).toMatch(/line-1: The echo engine/)
      expect(await fails('x', { SLUICE_URL: `http://127.0.0.1:${await freePort()}` })).toMatch(/^Cannot reach /)
    },
  )

  async function batchOfLines(prompts: readonly string[], env: Record<string, string>) {
    const [from, to] = [join(stack.dataDir, 'requests.jsonl'), join(stack.dataDir, 'answers.jsonl')]
    const lines = prompts.map((content, i) => {
      const body = { model: 'echo-1', messages: [{ role: 'user', content }] }
      return JSON.stringify({ custom_id: `row-${i}`, method: 'POST', url: '/v1/chat/completions', body })
    })
    await writeFile(from, lines.join('\n'))
    const { stderr } = await run('batch', [from, to], env)
    const answers = (await readFile(to, 'utf8')).trim().split('\n')
    return { answers: answers.map((line) => JSON.parse(line).response.body.choices[0].message.content), stderr }
  }

  async function batchOfPrompts(prompts: readonly string[], env: Record<string, string>) {
    const { stdout, stderr } = await run('batch', ['echo-1'], env, prompts.join('\n'))
    const lines = stdout.trim().split('\n')
    return { answers: lines.map((line) => JSON.parse(line.split('\t')[1] ?? '')), stderr }
  }
})

/** Returns a function that reads the output of a process so far. The process is killed at the end of the test. */
function listenTo(child: ChildProcess): () => string {
  onTestFinished(() => void child.kill('SIGKILL'))
  let text = ''
  child.stdout?.on('data', (piece: Buffer) => {
    text += piece
  })
  return () => text
}

/**
 * Starts a proxy in front of the service. The proxy cuts one connection before event {@link CUT_AT} of a job, and one at the first poll of a
 * batch. `follows` contains the query string of each request for events.
 */
async function startBreakingProxy(to: string): Promise<{ url: string; follows: string[]; polls: string[] }> {
  const follows: string[] = []
  const polls: string[] = []
  let isCut = false
  const sockets = new Set<Socket>()
  const server = createServer((near) => {
    const far = connect(Number(new URL(to).port), '127.0.0.1')
    for (const socket of [near, far]) sockets.add(socket.on('error', () => socket.destroy()))
    near
      .on('close', () => far.destroy())
      .on('data', (bytes) => {
        const query = /\/events\?(\S+) HTTP/.exec(String(bytes))?.[1]
        if (query) follows.push(query)
        const [poll] = /^GET \S+\/batches\/\S+/.exec(String(bytes)) ?? []
        if (poll && polls.push(poll) === 1) return void near.destroy()
        far.write(bytes)
      })
    far
      .on('close', () => near.destroy())
      .on('data', (bytes) => {
        const cut = isCut ? -1 : bytes.indexOf(`id: ${CUT_AT}\n`)
        if (cut < 0) return void near.write(bytes)
        isCut = true
        near.end(bytes.subarray(0, cut))
      })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => {
    server.close()
    for (const socket of sockets) socket.destroy()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, follows, polls }
}
