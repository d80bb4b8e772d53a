import { execFile } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { loadExtensions } from '#shared/ports/extensions.ts'
import { type Stack, startStack, until } from '../../../support/stack.ts'
import { openWs } from '../../../support/ws.ts'

const SHOUT = 'examples/custom-kind/shout.ts'
const BODY = { text: 'hello there' }
const RESULT = { object: 'shout', text: 'HELLO THERE' }

describe('the example of a custom kind of job in an extension module', () => {
  let stack: Stack

  beforeAll(async () => {
    stack = await startStack({ settings: { EXTENSIONS: SHOUT } })
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  it('answers an attached call', async () => {
    const answer = await stack.post('/v1/shout', BODY)
    expect([answer.status, await answer.json()]).toEqual([200, RESULT])
  })

  it('streams its events', async () => {
    const answer = await stack.post('/v1/shout', { ...BODY, stream: true })
    expect(answer.headers.get('content-type')).toContain('text/event-stream')
    expect(await answer.text()).toBe('data: {"word":"HELLO"}\n\ndata: {"word":"THERE"}\n\ndata: [DONE]\n\n')
  })

  it('runs as a durable job, submitted to POST /v1/jobs or with Prefer: respond-async', async () => {
    for (const submitted of [
      await stack.post('/v1/jobs', { endpoint: '/v1/shout', body: BODY }),
      await stack.post('/v1/shout', BODY, { headers: { prefer: 'respond-async' } }),
    ]) {
      expect(submitted.status).toBe(202)
      const { id } = (await submitted.json()) as { id: string }
      const result = await until(async () => {
        const answer = await stack.get(`/v1/jobs/${id}/result`)
        return answer.status === 200 && (await answer.json())
      })
      expect(result).toEqual(RESULT)
    }
  })

  it('streams over a WebSocket', async () => {
    using client = await openWs(stack)
    client.send({ type: 'request.create', id: 'r1', endpoint: '/v1/shout', body: BODY })
    expect((await client.end('r1')).type).toBe('request.completed')
    const events = client.about('r1').flatMap((frame) => (frame.type === 'request.event' ? [frame.event] : []))
    expect(events).toEqual([{ word: 'HELLO' }, { word: 'THERE' }])
  })

  it('refuses a body that does not match the schema, and reports an error of the handler', async () => {
    const refused = await stack.post('/v1/shout', { text: 1 })
    expect([refused.status, await refused.json()]).toMatchObject([400, { error: { param: 'text' } }])
    const failed = await stack.post('/v1/shout', { text: ' ' })
    expect([failed.status, await failed.json()]).toMatchObject([400, { error: { message: 'The text has no words.' } }])
  })

  it('is part of the API reference', async () => {
    const document = (await (await stack.get('/openapi.json')).json()) as { paths: Record<string, { post: object }> }
    expect(document.paths['/v1/shout']?.post).toMatchObject({
      tags: ['Extensions'],
      requestBody: { content: { 'application/json': { schema: { $ref: '#/components/schemas/shout_request' } } } },
    })
  })

  it('can be the only endpoint that a key permits', async () => {
    const asked = ['keys', 'create', '--name', 'shouting', '--endpoints', '/v1/shout', '--json']
    const env = { PATH: process.env.PATH, DATA_DIR: stack.dataDir, EXTENSIONS: SHOUT }
    const { stdout } = await promisify(execFile)(process.execPath, ['services/cli/sluice.js', ...asked], { env })
    const { secret } = JSON.parse(stdout) as { secret: string }
    const headers = { authorization: `Bearer ${secret}` }
    await until(async () => (await stack.post('/v1/shout', BODY, { headers })).status === 200)
    expect((await stack.post('/v1/chat/completions', BODY, { headers })).status).toBe(403)
  })
})

describe('a module of the setting EXTENSIONS', () => {
  let directory: string

  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'sluice-extension-'))
  })
  afterAll(() => rm(directory, { recursive: true, force: true }))

  const VALID = `name: 'kind', pool: 'code', path: '/v1/kind', summary: 'Run', request: z.object({}), run() {}, merge() {}, isOutput() {}, answer: () => ({ whole() {} })`

  it.each([
    ['that throws', 'throw new Error("No weights.")', 'No weights.'],
    ['without the export', 'export const a = 1', "must export a function named 'extension'"],
    ['with an unknown pool', `export const extension = ({ z }) => ({ ${VALID}, pool: 'gpu' })`, /pool: Invalid option/],
    [
      'with the path of another endpoint',
      `export const extension = ({ z }) => ({ ${VALID}, path: '/v1/rerank' })`,
      /path: The path/,
    ],
    [
      'with a path below another endpoint',
      `export const extension = ({ z }) => ({ ${VALID}, path: '/v1/jobs/a' })`,
      /path: The path/,
    ],
    [
      'with a path above another endpoint',
      `export const extension = ({ z }) => ({ ${VALID}, path: '/v1/chat' })`,
      /path: The path/,
    ],
    [
      'with a path of the admin API',
      `export const extension = ({ z }) => ({ ${VALID}, path: '/v1/admin/a' })`,
      /path: The path/,
    ],
    [
      'without a schema',
      `export const extension = ({ z }) => ({ ${VALID}, request: {} })`,
      /request: Expected a zod schema/,
    ],
    ['without an encoder', `export const extension = ({ z }) => ({ ${VALID}, answer() {} })`, /answer: Expected/],
    ['without a handler', `export const extension = ({ z }) => ({ ${VALID}, run: 1 })`, /run: Expected a function/],
  ])('%s is refused with the file and the reason', async (_, source, reason) => {
    const file = join(directory, `${crypto.randomUUID()}.ts`)
    await writeFile(file, source)
    await expect(loadExtensions([file])).rejects.toThrow(file)
    await expect(loadExtensions([file])).rejects.toThrow(reason)
  })

  it('that does not exist is refused, even if the setting is a URL', async () => {
    await expect(loadExtensions([join(directory, 'none.ts')])).rejects.toThrow('No such file exists.')
    await expect(loadExtensions([resolve('data:text/javascript,1')])).rejects.toThrow('No such file exists.')
  })

  it('is refused if another extension module has an equal name', async () => {
    await expect(loadExtensions([resolve(SHOUT), resolve(SHOUT)])).rejects.toThrow('already has this name or path')
  })

  it('is refused if the pool already has a kind of job with an equal name', async () => {
    const file = join(directory, 'execute.ts')
    await writeFile(file, `export const extension = ({ z }) => ({ ${VALID}, name: 'execute' })`)
    await expect(startStack({ settings: { EXTENSIONS: file } })).rejects.toThrow("already has a kind named 'execute'")
  })
})
