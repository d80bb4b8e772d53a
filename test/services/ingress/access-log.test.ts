/* Tests of the access log and the metrics of HTTP calls, especially of calls that fail after the response head with status 200 was sent. */

import { spawn } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { stringify } from 'yaml'
import { ENVIRONMENT } from '../../support/processes/environment.ts'
import { openRaw, rawRequest } from '../../support/raw-http.ts'
import { ECHO_MODEL, TEST_KEY, until } from '../../support/stack.ts'

const CHAT = '/v1/chat/completions'
const MESSAGES = '/v1/messages'
const KEY = { authorization: `Bearer ${TEST_KEY}` }
const say = (content: string, more: object = {}) => ({
  model: 'echo-1',
  max_tokens: 100_000,
  messages: [{ role: 'user', content }],
  ...more,
})
const STREAM = { stream: true }

type Line = Readonly<Record<string, unknown>>

/** The service, which runs in a child process. `lines` are the log lines that it wrote to standard output. */
const service = { url: '', lines: [] as Line[], stop: async () => {} }

beforeAll(async () => {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-log-'))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models: [ECHO_MODEL] }))
  const env = {
    ...{ ...ENVIRONMENT, PORT: '0', DATA_DIR: dataDir, MODELS_FILE: modelsFile, SLUICE_API_KEY: TEST_KEY },
    ...{ SANDBOX: 'off', SLOW_READER_MS: '1000' },
  }
  const child = spawn(process.execPath, ['services/main.js'], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  let [rest, stderr] = ['', '']
  child.stderr.on('data', (chunk) => {
    stderr += chunk
  })
  child.stdout.on('data', (chunk) => {
    const lines = (rest + chunk).split('\n')
    rest = lines.pop() ?? ''
    for (const line of lines) service.lines.push(JSON.parse(line))
  })
  service.stop = async () => {
    const exited = new Promise((resolve) => child.once('exit', resolve))
    child.kill('SIGKILL')
    await exited
    await rm(dataDir, { recursive: true, force: true })
  }
  await until(() => /http:\/\/[\d.:]+/.test(stderr), { withinMs: 90_000 })
  service.url = /http:\/\/[\d.:]+/.exec(stderr)?.[0] ?? ''
})
afterAll(() => service.stop())

async function post(path: string, body: object, headers: Record<string, string> = {}) {
  const response = await fetch(service.url + path, {
    method: 'POST',
    headers: { ...KEY, 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  })
  return { response, text: await response.text(), line: await lineOf(response.headers.get('x-request-id')) }
}

async function lineOf(requestId: unknown): Promise<Line> {
  const found = () => service.lines.find((line) => line.msg === 'request' && line.request_id === requestId)
  return (await until(found)) as Line
}

async function counted(route: string, status: string): Promise<number> {
  const text = await (await fetch(`${service.url}/metrics`)).text()
  const line = text
    .split('\n')
    .find((each) => each.includes(`_total{route="${route}",status="${status}",model="echo-1"`))
  return Number(line?.split(' ').at(-1) ?? 0)
}

/**
 * Requests a response that is larger than all buffers, reads nothing, and calls `leave` with the socket. Returns the log line of the call.
 */
async function unread(leave: (socket: { destroy(): void }) => void): Promise<Line> {
  using client = await openRaw(service.url)
  const body = JSON.stringify(say('!echo tokens=20000', { ...STREAM, logprobs: true, top_logprobs: 20 }))
  client.send(
    rawRequest(`POST ${CHAT}`, [`authorization: ${KEY.authorization}`, 'content-type: application/json'], body),
  )
  const id = await until(() => /x-request-id: (req_\w+)/i.exec(client.received)?.[1])
  client.socket.pause()
  leave(client.socket)
  return await lineOf(id)
}

describe('the access log', () => {
  it.each([
    [CHAT, 'upstream_error', 502, {}],
    [MESSAGES, 'upstream_error', 502, {}],
    [MESSAGES, 'overloaded', 529, {}],
    [CHAT, 'worker_lost', 500, { 'idempotency-key': 'stored-once' }],
  ])(
    'logs a stream from %s that fails with %s after the first token as status %i',
    async (path, code, status, headers) => {
      const before = [await counted(path, String(status)), await counted(path, '200')]
      const { response, text, line } = await post(
        path,
        say(`!echo fail=${code} after=2\none two three four`, STREAM),
        headers,
      )
      expect([response.status, text.includes('one')]).toEqual([200, true])
      expect(line).toMatchObject({ status, sent_status: 200, error_code: code })
      const after = [await counted(path, String(status)), await counted(path, '200')]
      expect(after).toEqual([Number(before[0]) + 1, before[1]])
    },
  )

  it('logs a failure response with the status that was sent', async () => {
    const { response, line } = await post(CHAT, say('!echo fail=upstream_refused', STREAM))
    expect([response.status, line]).toMatchObject([502, { status: 502, error_code: 'upstream_refused' }])
    expect(line).not.toHaveProperty('sent_status')
  })

  it('logs a completed stream as 200 without an error', async () => {
    const { line } = await post(CHAT, say('hi', STREAM))
    expect(line.status).toBe(200)
    expect(line).not.toHaveProperty('error_code')
    expect(line).not.toHaveProperty('sent_status')
  })

  it('distinguishes a caller that reads too slowly from a caller that disconnected', async () => {
    expect(await unread(() => {})).toMatchObject({ status: 408, sent_status: 200, error_code: 'slow_reader' })
    const left = await unread((socket) => socket.destroy())
    expect(left.status).toBe('aborted')
    expect(left).not.toHaveProperty('error_code')
  })

  it('contains the error code of a failed job if the result of the job is requested', async () => {
    const made = await post('/v1/jobs', { endpoint: CHAT, body: say('!echo fail=upstream_refused') })
    const { id } = JSON.parse(made.text) as { id: string }
    await (await fetch(`${service.url}/v1/jobs/${id}?wait=20`, { headers: KEY })).text()
    const result = await fetch(`${service.url}/v1/jobs/${id}/result`, { headers: KEY })
    expect(result.status).toBe(502)
    expect(await lineOf(result.headers.get('x-request-id'))).toMatchObject({
      status: 502,
      error_code: 'upstream_refused',
    })
  })
})
