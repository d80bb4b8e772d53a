import { writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { newId } from '#shared/lib/id.ts'
import { loadModels } from '#shared/models/models.ts'
import { startSingleProcess } from '../../../support/processes/single-process.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

const MODELS = [
  { ...ECHO_MODEL, aliases: ['echo-latest'] },
  { id: 'vectors', pool: 'embeddings', engine: { type: 'openai', base_url: 'http://127.0.0.1:9/v1' } },
  ...Array.from({ length: 12 }, (_, i) => ({ id: `model-${i}`, engine: { type: 'echo' } })),
]

let stack: Stack
beforeAll(async () => {
  stack = await startStack({ models: MODELS })
})
afterAll(() => stack[Symbol.asyncDispose]())

async function messageOf(response: Response): Promise<string> {
  expect(response.status).toBe(404)
  return ((await response.json()) as { error: { message: string } }).error.message
}

describe('a request to an unknown path', () => {
  test.each([
    ['/chat/completions', '/v1/chat/completions'],
    ['/v1/chat/completion', '/v1/chat/completions'],
    ['/v1/chat/completions/', '/v1/chat/completions'],
    ['/v1/v1/messages', '/v1/messages'],
    ['//v1//embeddings', '/v1/embeddings'],
    ['/messages/count_tokens', '/v1/messages/count_tokens'],
    ['/v1/embedings', '/v1/embeddings'],
    ['/jobs/job_1/result', '/v1/jobs/job_1/result'],
    ['/models/echo-1', '/v1/models/echo-1'],
    ['/responses/resp_1/cancel', '/v1/responses/resp_1/cancel'],
  ])('is refused with the name of the most similar endpoint: %s', async (path, meant) => {
    expect(await messageOf(await stack.post(path, {}))).toBe(`Invalid URL (POST ${path}). Did you mean ${meant}?`)
  })

  test('gets links to the API, its reference and the console if the path is /', async () => {
    const answer = await fetch(`${stack.url}/`, { headers: { accept: '*/*' } })
    expect(answer.status).toBe(404)
    expect(await answer.json()).toMatchObject({ error: { type: 'invalid_request_error' } })
    const message = await messageOf(await stack.get('/'))
    const paths = message.match(/(?<= )\/[a-z0-9/.]*[a-z]/g) ?? []
    expect(paths).toEqual(
      expect.arrayContaining(['/v1/chat/completions', '/v1/jobs', '/docs', '/console', '/openapi.json']),
    )
    for (const path of ['/docs', '/openapi.json']) expect((await fetch(stack.url + path)).status).toBe(200)
  })

  test('is refused with a plain-text message if the path names a file of another build of the console', async () => {
    const answer = await fetch(`${stack.url}/console/assets/index-0.js`)
    expect([answer.status, answer.headers.get('content-type')]).toEqual([404, 'text/plain; charset=utf-8'])
    expect(await answer.text()).toContain('Reload the page')
  })

  test.each(['/nothing/like/it', `/${'x'.repeat(5_000)}`])(
    'is refused with a list of all endpoints if no endpoint is similar: %.30s',
    async (path) => {
      const message = await messageOf(await stack.post(path, {}))
      expect(message).toMatch(
        /^Invalid URL \(POST .{0,200}\)\. Available endpoints: \/v1\/chat\/completions, .*\/v1\/jobs, /,
      )
    },
  )

  test.each([
    ['/v1/complete', '/v1/completions'],
    ['/v1/requests/req_1', '/v1/admin/requests/{id}'],
    ['/v2/rerank', '/v1/rerank'],
    ['/v1/uploads', '/v1/files'],
    ['/v1/assistants', '/v1/chat/completions'],
    ['/v1/threads/thread_1/runs', '/v1/chat/completions'],
    ['/v1/images/generations', 'not supported'],
    ['/v1/realtime', '/v1/ws'],
  ])('is refused with the name of the replacement if the path belongs to another API: %s', async (path, hint) => {
    expect(await messageOf(await stack.post(path, {}))).toContain(hint)
  })

  test('is refused in the error format of the calling SDK', async () => {
    const anthropic = new Anthropic({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
    const body = { model: 'echo-1', max_tokens: 9, messages: [{ role: 'user' as const, content: 'hi' }] }
    await expect(anthropic.messages.create(body)).rejects.toMatchObject({
      status: 404,
      error: { type: 'error', error: { message: expect.stringContaining('Did you mean /v1/messages?') } },
    })
    const openai = new OpenAI({ apiKey: TEST_KEY, baseURL: stack.url, maxRetries: 0 })
    await expect(openai.embeddings.create({ model: 'vectors', input: 'x' })).rejects.toThrow('/v1/embeddings?')
  })
})

describe('the error of an unknown model', () => {
  const chat = (model: string) => ({ model, messages: [{ role: 'user', content: 'hi' }] })

  test('suggests at most ten models for the task, the most similar first', async () => {
    const message = await messageOf(await stack.post('/v1/chat/completions', chat('ecko-1')))
    expect(message).toMatch(
      /^The model 'ecko-1' does not exist or you do not have access to it\. Did you mean echo-1\? This key may use: echo-1, /,
    )
    expect(message).toMatch(/ and 4 more\.$/)
    expect(message).not.toContain('vectors')
    expect(await messageOf(await stack.post('/v1/embeddings', { model: 'x', input: 'x' }))).toMatch(/use: vectors\.$/)
    const unsupported = await stack.post('/v1/embeddings', { model: 'echo-1', input: 'x' })
    expect(await unsupported.text()).toContain(
      "The model 'echo-1' does not make embeddings. This key may use: vectors.",
    )
    expect(await messageOf(await stack.get('/v1/models/vectorz'))).toMatch(/This key may use: vectors, /)
  })

  test('contains the suggestions after the model name in the Anthropic format', async () => {
    const body = { ...chat('ecko-1'), max_tokens: 9 }
    expect(await messageOf(await stack.post('/v1/messages', body))).toMatch(
      /^model: ecko-1\. Did you mean echo-1\? This key may use: echo-1, /,
    )
  })
})

describe("an unset environment variable of an upstream's API key", () => {
  test('is logged at the start, and is named by the error of each call', async () => {
    const engine = (type: string) => ({ type, base_url: 'http://127.0.0.1:9/v1', api_key_env: 'NOT_SET_ANYWHERE' })
    const models = [
      { id: 'o', engine: engine('openai') },
      { id: 'a', engine: engine('anthropic') },
      { id: 'e', pool: 'embeddings', engine: engine('openai') },
    ]
    await using whole = await startSingleProcess({ models })
    await until(() => whole.output.split('cache_salt_env is not set').length === 4)
    const headers = { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json' }
    const post = (path: string, body: object) =>
      fetch(whole.url + path, { method: 'POST', headers, body: JSON.stringify(body) })
    const messages = [{ role: 'user', content: 'hi' }]
    const answers = await Promise.all([
      post('/v1/chat/completions', { model: 'o', messages }),
      post('/v1/messages', { model: 'a', messages, max_tokens: 9 }),
      post('/v1/embeddings', { model: 'e', input: 'x' }),
    ])
    for (const answer of answers) {
      expect([answer.status, await answer.text()]).toEqual([
        502,
        expect.stringContaining('NOT_SET_ANYWHERE is not set'),
      ])
    }
  })
})

describe('an error in models.yaml', () => {
  async function problemsOf(yaml: string): Promise<string> {
    const path = join(tmpdir(), newId('models-'))
    await writeFile(path, yaml)
    try {
      loadModels(path)
    } catch (error) {
      return (error as Error).message.replaceAll(path, 'FILE')
    }
    return ''
  }
  const model = (engine: string, more = '') => `models: [{ id: a, engine: { ${engine} }${more} }]`

  test.each([
    [model('type: opanai'), /models\[0\]\.engine\.type: .*, got 'opanai'/],
    [model('type: echo', ', pool: inferense'), /models\[0\]\.pool: .*, got 'inferense'/],
    [model('type: echo', ', limits: { context_tokens: -5 }'), /limits\.context_tokens: .*, got -5/],
    [model('type: openai, base_url: "not a url"'), /engine\.base_url: .*, got 'not a url'/],
  ])('is reported with the field and its value: %s', async (yaml, problem) => {
    expect(await problemsOf(yaml)).toMatch(problem)
  })

  test.each([
    model('type: openai, base_url: "http://h/v1", api_key_env: sk-secret-0123'),
    model('type: openai, base_url: "http://h/v1", headers: { x-a: { b: sk-secret-0123 } }'),
    model('type: openai, base_url: "http://h/v1", api_key: sk-secret-0123'),
    model('type: openai, base_url: "::http://user:sk-secret-0123@h/v1"'),
    'models:\n  - id: "sk-secret-0123\n    engine: {',
  ])('is reported without a value that may be secret: %#', async (yaml) => {
    const problems = await problemsOf(yaml)
    expect(problems).toContain('MODELS_FILE: FILE: ')
    expect(problems).not.toContain('sk-secret')
  })
})
