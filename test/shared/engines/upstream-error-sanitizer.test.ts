/*
 * Tests error messages of upstreams, which may quote prompts, keys and host names. The service must log none of these. Callers get only the part
 * that concerns their own request.
 */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type SingleProcess, startSingleProcess } from '../../support/processes/single-process.ts'
import { type Answer, type ScriptedUpstream, startUpstream } from '../../support/processes/upstream.ts'
import { TEST_KEY, until } from '../../support/stack.ts'

const KEY = 'upstream-key-0123456789'
const HEADER = 'upstream-header-0123456789'
const PROMPT = 'a prompt that nobody may log'

const bad = (status: number, code: string | null) => (answer: Answer, said: string) =>
  answer.json({ error: { message: said, type: 'invalid_request_error', code, param: null } }, status)
const failed = (status: number) => (answer: Answer, said: string) =>
  answer.json({ error: { message: said, type: 'api_error', code: said, param: said } }, status)

/** For each failure: behaviour of the upstream. There is a model for each of the two APIs, and an embeddings model for the first two failures. */
const CASES: Record<string, (answer: Answer, said: string) => void> = {
  'bad-request': bad(400, 'invalid_image_format'),
  'our-key': bad(401, 'invalid_api_key'),
  full: (answer, said) =>
    answer.json({ error: { message: `context length exceeded. ${said}`, code: 'context_length_exceeded' } }, 400),
  unprocessable: (answer, said) => answer.json({ detail: [{ loc: ['body', said], msg: said }] }, 422),
  'no-such-path': failed(404),
  forbidden: failed(403),
  busy: failed(429),
  broken: failed(500),
  'html-page': (answer, said) => answer.text(`<html>${said}</html>`, 'text/html', 502),
  'odd-type': (answer, said) => answer.text(said, `text/${said.replaceAll(/[^a-z0-9]/g, '-')}; a=b`),
  'no-json': (answer, said) => answer.text(said, 'application/json'),
  'in-answer': (answer, said) => answer.json({ error: { message: said, type: 'api_error', code: 500 } }),
  'in-stream': (answer, said) => {
    answer.open()
    answer.frame({ type: 'error', error: { message: said, type: 'invalid_request_error' } }, 'error')
    answer.end()
  },
  'odd-shape': (answer, said) => answer.json({ choices: said, content: { said }, data: said }),
  cut: (answer) => answer.cut(),
}

let upstream: ScriptedUpstream
let whole: SingleProcess

beforeAll(async () => {
  upstream = await startUpstream((call, answer) => {
    const name = call.path.split('/')[1] ?? ''
    const { host, href } = new URL(upstream.url)
    const said = `${PROMPT} refused, Authorization: Bearer ${KEY}, org ${HEADER}, at ${href}v1 on ${host}\n at run.py:7`
    CASES[name]?.(answer, said)
  })
  const models = Object.keys(CASES).flatMap((name) => [
    modelOf(`openai-${name}`, 'openai', `${upstream.url}/${name}/v1`),
    modelOf(`anthropic-${name}`, 'anthropic', `${upstream.url}/${name}`),
    { ...modelOf(`embed-${name}`, 'openai', `${upstream.url}/${name}/v1`), pool: 'embeddings' },
  ])
  const gone = modelOf('openai-gone', 'openai', 'http://127.0.0.1:9/v1')
  const chained = { ...modelOf('chained', 'openai', `${upstream.url}/our-key/v1`), fallbacks: ['openai-broken'] }
  whole = await startSingleProcess({
    models: [...models, gone, chained],
    settings: { LOG_LEVEL: 'trace', UPSTREAM_KEY: KEY },
  })
})
afterAll(async () => {
  await whole?.[Symbol.asyncDispose]()
  await upstream?.[Symbol.asyncDispose]()
})

function modelOf(id: string, type: string, base_url: string) {
  const breaker = { failures: 100 }
  return { id, engine: { type, base_url, api_key_env: 'UPSTREAM_KEY', headers: { 'x-org': HEADER }, breaker } }
}

async function post(path: string, body: object, headers: Record<string, string> = {}) {
  const response = await fetch(whole.url + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  })
  return { status: response.status, text: await response.text() }
}

const messages = [{ role: 'user', content: PROMPT }]
const chat = (model: string, more: object = {}) => post('/v1/chat/completions', { model, messages, ...more })

/** Waits until the log contains `count` calls. Everything that was logged before is then in the output, too. */
const logged = (count: number) =>
  until(() => whole.output.split('"msg":"request"').length > count, { withinMs: 30_000 })

const secrets = () => [KEY, HEADER, new URL(upstream.url).host, upstream.url]

test('the log contains no message, key or URL of a failed upstream, and no prompt', async () => {
  const names = Object.keys(CASES)
  const answers = await Promise.all([
    ...names.map((name) => chat(`openai-${name}`)),
    ...names.map((name) => chat(`openai-${name}`, { stream: true })),
    ...names.map((name) => post('/v1/messages', { model: `anthropic-${name}`, max_tokens: 9, messages })),
    ...names.map((name) => post('/v1/embeddings', { model: `embed-${name}`, input: PROMPT })),
    chat('openai-gone'),
    chat('chained'),
  ])
  await logged(answers.length)
  const output = whole.output
  expect(output).toContain('attempt of a job failed')
  const [fallback = ''] = /.*"model failed; calling its fallback".*/.exec(output) ?? []
  expect(JSON.parse(fallback).job_id).toMatch(/^job_\w+$/)
  for (const hidden of [...secrets(), PROMPT, '127.0.0.1:9', 'run.py']) expect(output).not.toContain(hidden)
  for (const { text } of answers) for (const hidden of secrets()) expect(text).not.toContain(hidden)
})

test('the log contains the status, the error code and the message length of a failed upstream call', async () => {
  await chat('openai-bad-request')
  const line = await until(() => /.*"model":"openai-bad-request".*"attempt of a job failed;.*/.exec(whole.output)?.[0])
  expect(JSON.parse(line)).toMatchObject({
    error_code: 'invalid_request',
    err: { code: 'invalid_request', cause: { status: 400, upstream_code: 'invalid_image_format' } },
  })
  expect(JSON.parse(line).err.cause.bytes).toBeGreaterThan(100)
})

test('a response with status 400 contains the message of the upstream without URLs and keys', async () => {
  const { status, text } = await chat('openai-bad-request')
  expect(status).toBe(400)
  expect(JSON.parse(text).error.message).toBe(
    `${PROMPT} refused, Authorization: [key], org [hidden], at [address] on [address] at run.py:7 (invalid_image_format)`,
  )
})

test.each(['our-key', 'no-such-path', 'forbidden', 'busy', 'broken', 'html-page', 'in-answer', 'odd-shape'])(
  'the response contains no message of the upstream after the server failure %s',
  async (name) => {
    const { status, text } = await chat(`openai-${name}`)
    expect(status).toBeGreaterThanOrEqual(500)
    expect(text).not.toContain(PROMPT)
    expect(text).toContain(`openai-${name}`)
  },
)

test('a durable job stores no key and no URL of a failed upstream', async () => {
  const { text } = await post('/v1/chat/completions', { model: 'openai-full', messages }, { prefer: 'respond-async' })
  const { id } = JSON.parse(text)
  const job = await until(async () => {
    const response = await fetch(`${whole.url}/v1/jobs/${id}`, { headers: { authorization: `Bearer ${TEST_KEY}` } })
    const found = (await response.json()) as { status: string; error: { code: string } }
    return found.status === 'failed' ? found : undefined
  })
  expect(job.error.code).toBe('context_length_exceeded')
  for (const hidden of secrets()) expect(JSON.stringify(job)).not.toContain(hidden)
})
