import { createHash } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { JOB_ENDPOINTS } from '#services/ingress/endpoints/endpoints.ts'
import { routesOf } from '#services/ingress/routes.ts'
import { ConfigError, parseConfig } from '#shared/config/config.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import { ADMIN_PATH, coversPath, KEY_ENDPOINTS } from '#shared/keys/keys.ts'
import { ECHO_MODEL, startStack, until } from '../../../support/stack.ts'

const ROUTES = routesOf(JOB_ENDPOINTS)
/**
 * Whether a route of the admin API also accepts keys without the admin scope. Only the routes of the request log and of the findings accept
 * them. Their responses then contain only data of the key's own project.
 */
const isOfProject = ({ path }: { path: string }) => /^\/(requests|findings)\b/.test(path.slice(ADMIN_PATH.length))
const MESSAGES = '/v1/messages'

describe('the permissions of a key', () => {
  it('name only endpoints that exist, and cover every route', () => {
    const paths = ROUTES.filter((route) => route.scope !== 'admin' && !isOfProject(route)).map(({ path }) => path)
    expect(KEY_ENDPOINTS.filter((endpoint) => !paths.includes(endpoint))).toEqual([])
    expect(paths.filter((path) => !coversPath(KEY_ENDPOINTS, path))).toEqual([])
  })

  it('do not include the admin API, which requires the admin scope', () => {
    const isAdmin = ({ path }: { path: string }) => path.startsWith(`${ADMIN_PATH}/`)
    const ofProject = ROUTES.filter(isOfProject).map(
      ({ method, path, scope }) => `${scope} ${method} ${path.slice(ADMIN_PATH.length)}`,
    )
    expect(ofProject.sort()).toEqual([
      'any GET /findings',
      'any GET /requests',
      'any GET /requests/:id',
      'any GET /requests/active',
      'any GET /requests/failures',
      'any POST /requests/:id/cancel',
    ])
    expect(ROUTES.filter((route) => (isAdmin(route) && !isOfProject(route)) !== (route.scope === 'admin'))).toEqual([])
    expect(ROUTES.filter(isAdmin).length).toBeGreaterThan(10)
    expect(coversPath(KEY_ENDPOINTS, `${ADMIN_PATH}/jobs`)).toBe(false)
  })

  it('include all paths below an endpoint, and no other paths', async () => {
    await using stack = await startStack()
    const hash = (secret: string) => createHash('sha256').update(secret).digest('hex')
    const keyOf = (secret: string, endpoints: string[]) => ({
      ...{ id: `key_${secret}`, hash: hash(secret), hint: 'sk-...', created_at: 1_790_000_000, endpoints },
    })
    const keys = [
      keyOf('sk-models', ['/v1/models']),
      keyOf('sk-messages', [MESSAGES]),
      keyOf('sk-count', [`${MESSAGES}/count_tokens`]),
    ]
    await writeFile(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys }))
    const as = (secret: string) => ({ headers: { authorization: `Bearer ${secret}` } })
    await until(async () => (await stack.get('/v1/models', as('sk-models'))).status === 200)
    const body = { model: ECHO_MODEL.id, max_tokens: 5, messages: [{ role: 'user', content: 'hi' }] }
    const statuses = async (secret: string) => [
      (await stack.get('/v1/models/echo-1', as(secret))).status,
      (await stack.post(MESSAGES, body, as(secret))).status,
      (await stack.post(`${MESSAGES}/count_tokens`, body, as(secret))).status,
      (await stack.post('/v1/chat/completions', body, as(secret))).status,
    ]
    expect(await statuses('sk-models')).toEqual([200, 403, 403, 403])
    expect(await statuses('sk-messages')).toEqual([403, 200, 200, 403])
    expect(await statuses('sk-count')).toEqual([403, 403, 200, 403])
  })

  it('must include each tool that a response may run, also in a durable job', async () => {
    const research = { id: 'deep-research', pool: 'research', engine: { type: 'research' } }
    await using stack = await startStack({ models: [ECHO_MODEL, research] })
    const keyOf = (secret: string, endpoints: string[]) => ({
      ...{ id: `key_${secret}`, hash: createHash('sha256').update(secret).digest('hex'), hint: 'sk-...' },
      ...{ created_at: 1_790_000_000, project: 'team', endpoints },
    })
    const keys = [
      keyOf('sk-text', ['/v1/responses']),
      keyOf('sk-code', ['/v1/responses', '/v1/tools/code']),
      keyOf('sk-search', ['/v1/responses', '/v1/deep-research']),
    ]
    await writeFile(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys }))
    const as = (secret: string) => ({ headers: { authorization: `Bearer ${secret}` } })
    const ask = async (secret: string, ...tools: object[]) => {
      const body = { model: ECHO_MODEL.id, input: 'hi', tools }
      const plain = await stack.post('/v1/responses', body, as(secret))
      const job = await stack.post('/v1/jobs', { endpoint: '/v1/responses', body }, as(secret))
      return [plain.status, job.status]
    }
    const [code, files] = [{ type: 'code_interpreter', container: { type: 'auto' } }, { type: 'file_search' }]
    const search = [{ type: 'web_search' }, { ...files, vector_store_ids: ['local'] }]
    await until(async () => (await ask('sk-text'))[0] === 200)
    const asked = async (secret: string) => [
      await ask(secret, code),
      ...(await Promise.all(search.map((tool) => ask(secret, tool)))),
    ]
    const [no, yes] = [
      [403, 403],
      [200, 202],
    ]
    expect(await asked('sk-text')).toEqual([no, no, no])
    expect(await asked('sk-code')).toEqual([yes, no, no])
    expect(await asked('sk-search')).toEqual([no, yes, yes])
    expect(await ask('sk-code', code, { type: 'web_search' })).toEqual(no)

    const body = { model: ECHO_MODEL.id, input: '!echo fail=invalid_request', tools: [code] }
    const made = await stack.post('/v1/jobs', { endpoint: '/v1/responses', body }, as('sk-code'))
    const { id } = (await made.json()) as { id: string }
    await until(async () => {
      const { status } = (await (await stack.get(`/v1/jobs/${id}?wait=20`, as('sk-code'))).json()) as { status: string }
      return status === 'failed'
    })
    const again = async (secret: string) => (await stack.post(`/v1/jobs/${id}/redrive`, undefined, as(secret))).status
    expect([await again('sk-text'), await again('sk-search'), await again('sk-code')]).toEqual([403, 403, 202])
  })
})

describe('an invalid key', () => {
  it.each(['sk-with a space', ' sk-leading', 'sk-trailing ', 'sk-tab\there', 'sk-schlüssel', 'sk-line\nbreak'])(
    'is refused in SLUICE_API_KEY: %j',
    (secret) => {
      const parse = () => parseConfig({ SLUICE_API_KEY: secret })
      expect(parse).toThrow(ConfigError)
      expect(parse).toThrow(/^SLUICE_API_KEY: must consist of visible ASCII characters without spaces/)
      expect(parse).not.toThrow(secret)
    },
  )

  it.each([' '.repeat(64), 'A'.repeat(64), `${'a'.repeat(63)} `, 'sk-a-secret-instead-of-its-hash'])(
    'is refused in the key file if its hash is %j',
    async (hash) => {
      const directory = await mkdtemp(join(tmpdir(), 'sluice-keys-'))
      onTestFinished(() => rm(directory, { recursive: true, force: true }))
      const key = { id: 'key_1', hash, hint: 'sk-...', created_at: 1 }
      await writeFile(join(directory, 'keys.json'), JSON.stringify({ keys: [key] }))
      await expect(openFileKeys(directory).list()).rejects.toThrow(
        /keys\.json cannot be used: .*SHA-256 of the secret/s,
      )
    },
  )
})
