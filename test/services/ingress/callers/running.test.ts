/*
 * Tests of the concurrency limit of a project, which counts calls and durable jobs together. The tests cover one service, and a fleet whose
 * processes start work at the same time.
 */

import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { describe, expect, inject, it } from 'vitest'
import { hashOf } from '#shared/keys/keys.ts'
import { openPostgresDatabase } from '../../../support/jobs/stores.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../../../support/stack.ts'

const postgres = inject('postgres')
const CHAT = '/v1/chat/completions'
const RUN = '!echo tokens=8 delay_ms=20'
const RUN_MS = 200
const say = (content: string, model: string) => ({ model, messages: [{ role: 'user', content }] })
const as = (secret: string, more: object = {}) => ({ headers: { authorization: `Bearer ${secret}`, ...more } })
const keyOf = (id: string, more: object = {}) => ({
  ...{ id, hash: hashOf(`sk-${id}`), hint: 'sk-...', created_at: 1_790_000_000 },
  ...more,
})
const projectOf = (id: string, limits: object) => ({ id, created_at: 1_790_000_000, limits })

/** Starts a model server that responds after a delay, and records how many requests ran at the same time at most. */
async function startUpstream() {
  const seen = { now: 0, most: 0 }
  const server = createServer((req, res) => {
    seen.most = Math.max(seen.most, ++seen.now)
    req.resume().on('end', () => {
      setTimeout(() => {
        seen.now--
        res.setHeader('content-type', 'application/json')
        const message = { role: 'assistant', content: 'hi' }
        res.end(JSON.stringify({ id: 'c', choices: [{ index: 0, message, finish_reason: 'stop' }] }))
      }, RUN_MS)
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const model = { id: 'up-1', engine: { type: 'openai', base_url: `http://127.0.0.1:${port}/v1` } }
  return {
    seen,
    models: [ECHO_MODEL, model],
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}

/** Makes a call and returns its status: 200, or 429 with a Retry-After of 1 s. */
async function call(stack: Stack, secret: string, model = 'echo-1'): Promise<number> {
  const response = await stack.post(CHAT, say(RUN, model), as(secret))
  await response.text()
  if (response.status !== 200) expect([response.status, response.headers.get('retry-after')]).toEqual([429, '1'])
  return response.status
}

async function submit(stack: Stack, secret: string, model = 'echo-1', content = RUN): Promise<string> {
  const response = await stack.post('/v1/jobs', { endpoint: CHAT, body: say(content, model) }, as(secret))
  expect(response.status).toBe(202)
  return ((await response.json()) as { id: string }).id
}

async function hasEnded(stack: Stack, secret: string, id: string): Promise<boolean> {
  const response = await stack.get(`/v1/jobs/${id}`, as(secret))
  return ((await response.json()) as { status: string }).status === 'completed'
}

/** Submits `jobs` jobs of a project, and makes calls at every service until all jobs have ended. Returns the statuses of the calls. */
async function load(stacks: readonly Stack[], secret: string, jobs: number): Promise<Set<number>> {
  const stackOf = (nth: number) => stacks[nth % stacks.length] as Stack
  const ids = await Promise.all(Array.from({ length: jobs }, (_, nth) => submit(stackOf(nth), secret, 'up-1')))
  const statuses = new Set<number>()
  let isOver = false
  const callers = stacks.map(async (stack) => {
    while (!isOver) {
      statuses.add(await call(stack, secret, 'up-1'))
      await new Promise((resolve) => setTimeout(resolve, RUN_MS))
    }
  })
  for (const [nth, id] of ids.entries()) await until(() => hasEnded(stackOf(nth), secret, id), { withinMs: 60_000 })
  isOver = true
  await Promise.all(callers)
  return statuses
}

describe('the concurrency limit of a project', () => {
  it('includes calls and durable jobs, refuses further calls, and delays further jobs', async () => {
    await using upstream = await startUpstream()
    await using stack = await startStack({ models: upstream.models })
    const keys = [keyOf('a', { project: 'proj' }), keyOf('other')]
    const projects = [projectOf('proj', { running: 3 })]
    writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys, projects }))
    await until(async () => (await stack.get('/v1/models', as('sk-other'))).status === 200)
    expect(await load([stack, stack, stack, stack], 'sk-a', 8)).toEqual(new Set([200, 429]))
    expect(upstream.seen.most).toBe(3)
  })

  it('does not delay other projects, and is reported as the reason why a job waits', async () => {
    await using stack = await startStack()
    const keys = [
      keyOf('a', { project: 'proj' }),
      keyOf('alone', { limits: { running: 1 } }),
      keyOf('root', { scopes: ['admin'] }),
      keyOf('other'),
    ]
    const projects = [projectOf('proj', { running: 1 })]
    const keep = (all: object[]) =>
      writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys, projects: all }))
    keep(projects)
    await until(async () => (await stack.get('/v1/models', as('sk-other'))).status === 200)
    const endless = '!echo tokens=100000 delay_ms=40'
    for (const whose of ['a', 'alone']) {
      const held = await submit(stack, `sk-${whose}`, 'echo-1', endless)
      const waits = async (id: string) => {
        const response = await stack.get(`/v1/admin/jobs/${id}`, as('sk-root'))
        return ((await response.json()) as { waits: { reason: string; message: string } | null }).waits
      }
      await until(async () => (await waits(held)) === null)
      const next = await submit(stack, `sk-${whose}`)
      expect(await call(stack, `sk-${whose}`)).toBe(429)
      const others = await submit(stack, 'sk-other')
      await until(() => hasEnded(stack, 'sk-other', others))
      expect(await waits(next)).toMatchObject({
        reason: 'project_full',
        message: expect.stringContaining(
          'at its concurrency limit: 0 calls and 1 job are running, and 1 may run at once.',
        ),
      })
      // With a limit of two, the project can run one more job. A call with an Idempotency-Key runs as a durable job, and waits for its end. Only the
      // job counts against the limit, not the waiting call, so the job must start.
      if (whose === 'a') {
        keep([projectOf('proj', { running: 2 })])
        await until(() => hasEnded(stack, 'sk-a', next))
        const whole = await stack.post(CHAT, say(RUN, 'echo-1'), as('sk-a', { 'idempotency-key': 'once' }))
        expect(whole.status).toBe(200)
      } else {
        await stack.post(`/v1/jobs/${held}/cancel`, {}, as('sk-alone'))
        await until(() => hasEnded(stack, 'sk-alone', next))
      }
    }
  })
})

describe.skipIf(!postgres)('the concurrency limit of a project in a fleet', () => {
  it('applies to calls and jobs of three ingresses, three workers and three schedulers together', async () => {
    await using upstream = await startUpstream()
    await using database = await openPostgresDatabase(postgres ?? '')
    const options = { settings: { DATABASE_URL: database.url }, models: upstream.models }
    await using one = await startStack(options)
    await using two = await startStack(options)
    await using three = await startStack(options)
    await database.query(`INSERT INTO projects VALUES ('proj', NULL, 0, '{"queued":100,"running":3}')`)
    await database.query(
      `INSERT INTO api_keys (id, hash, hint, created_at, revoked, project)
       VALUES ('a', '${hashOf('sk-a')}', 'sk-...', 0, FALSE, 'proj')`,
    )
    const all = [one, two, three]
    for (const stack of all) await until(async () => (await stack.get('/v1/models', as('sk-a'))).status === 200)
    expect(await load(all, 'sk-a', 8)).toContain(200)
    expect(upstream.seen.most).toBe(3)
  })
})
