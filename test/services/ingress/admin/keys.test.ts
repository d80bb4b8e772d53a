/* Tests of the admin API for keys and projects: responses, changes, permissions and refusals. */

import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { parseConfig } from '#shared/config/config.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { openKeyStore } from '#shared/ports.ts'
import { openPostgresDatabase } from '../../../support/jobs/stores.ts'
import { ECHO_MODEL, startStack, until } from '../../../support/stack.ts'

const postgres = inject('postgres')
const ADAPTERS = [
  { name: 'SQLite and a key file', isHere: true, open: async () => ({}) },
  {
    name: 'Postgres',
    isHere: postgres !== null,
    open: async () => {
      const database = await openPostgresDatabase(postgres ?? '')
      onTestFinished(() => database[Symbol.asyncDispose]())
      return { DATABASE_URL: database.url }
    },
  },
]

// biome-ignore lint/suspicious/noExplicitAny: JSON responses of several endpoints, whose fields the assertions read
type Json = any
const secretOf = (who: string) => `sk-${who}-0123456789`
const bearer = (secret: string) => ({ headers: { authorization: `Bearer ${secret}` } })
const CHAT = { model: 'echo-1', max_tokens: 20, messages: [{ role: 'user', content: 'hi' }] }
const HOUR = 3_600
const seconds = () => Math.floor(Date.now() / 1_000)

/**
 * Starts a service with four keys. `boss` has all permissions, `op` only the admin scope, `few` both scopes for one endpoint and one model.
 * `alice` may only make calls.
 */
async function openWith(settings: Readonly<Record<string, string>> = {}) {
  const stack = await startStack({ settings, models: [ECHO_MODEL, { ...ECHO_MODEL, id: 'echo-2' }] })
  onTestFinished(() => stack[Symbol.asyncDispose]())
  const store = await openKeyStore(parseConfig({ DATA_DIR: stack.dataDir, ...settings }), () => undefined)
  const scopes = ['calls', 'admin'] as const
  await store.create(keyOf(secretOf('boss'), { id: 'boss', scopes }))
  await store.create(keyOf(secretOf('op'), { id: 'op', scopes: ['admin'] }))
  const few = { endpoints: ['/v1/chat/completions'], models: ['echo-1'], expires_at: seconds() + HOUR }
  await store.create(keyOf(secretOf('few'), { id: 'few', scopes, ...few }))
  await store.create(keyOf(secretOf('alice'), { id: 'alice' }))
  await store.close()
  await until(async () => (await stack.get('/v1/usage', bearer(secretOf('alice')))).status === 200)
  const asked = async (response: Response) => ({ status: response.status, json: (await response.json()) as Json })
  return {
    stack,
    get: async (who: string, path: string) => asked(await stack.get(path, bearer(secretOf(who)))),
    post: async (who: string, path: string, body: unknown = {}) =>
      asked(await stack.post(path, body, bearer(secretOf(who)))),
    chat: async (secret: string) => asked(await stack.post('/v1/chat/completions', CHAT, bearer(secret))),
  }
}

describe.each(ADAPTERS)('the admin API for keys on $name', ({ isHere, open }) => {
  const openDoor = async () => await openWith(await open())

  it.skipIf(!isHere)('creates a key whose secret is returned once, updates, rotates and revokes the key', async () => {
    const door = await openDoor()
    const project = await door.post('boss', '/v1/admin/projects', {
      name: 'search',
      limits: { budget_usd_per_month: 5 },
    })
    expect(project).toMatchObject({ status: 201, json: { object: 'project', name: 'search', keys: 0 } })
    const body = { name: 'laptop', project: 'search', models: ['echo-1'], limits: { running: 2, queued: 5 } }
    const made = await door.post('boss', '/v1/admin/keys', body)
    expect(made).toMatchObject({ status: 201, json: { name: 'laptop', project: project.json.id, state: 'valid' } })
    const { id, secret } = made.json
    expect((await door.chat(secret)).status).toBe(200)
    const changed = await door.post('boss', `/v1/admin/keys/${id}`, {
      name: null,
      limits: { running: null, queued: 7 },
    })
    expect(changed.json).toMatchObject({ name: null, limits: { queued: 7 }, models: ['echo-1'] })
    expect(changed.json.limits.running).toBeUndefined()
    const rotated = await door.post('boss', `/v1/admin/keys/${id}/rotate`, { grace_period_seconds: 60 })
    expect(rotated).toMatchObject({ status: 201, json: { project: project.json.id, replaces: { id, state: 'valid' } } })
    expect(rotated.json.replaces.expires_at).toBeGreaterThan(seconds())
    expect([(await door.chat(secret)).status, (await door.chat(rotated.json.secret)).status]).toEqual([200, 200])
    const revoked = await door.post('boss', `/v1/admin/keys/${id}/revoke`)
    expect(revoked).toMatchObject({ status: 200, json: { id, state: 'revoked' } })
    expect(await door.chat(secret)).toMatchObject({ status: 401, json: { error: { code: 'invalid_api_key' } } })
    const { json: list } = await door.get('boss', '/v1/admin/keys?project=search')
    // Keys that were created in the same second may be listed in any order, so the test compares them by id.
    const states = Object.fromEntries(list.data.map((key: Json) => [key.id, key.state]))
    expect(states).toEqual({ [rotated.json.id]: 'valid', [id]: 'revoked' })
    expect(JSON.stringify(list)).not.toContain(secret)
    const { json: audit } = await door.get('boss', '/v1/admin/audit?limit=5')
    expect(audit.data.map(({ author, action }: Json) => `${author} ${action}`)).toEqual([
      'key:boss key.revoked',
      'key:boss key.rotated',
      'key:boss key.updated',
      'key:boss key.created',
      'key:boss project.created',
    ])
  })

  it.skipIf(!isHere)('reports the last use of a key and its usage by day', async () => {
    const door = await openDoor()
    const today = new Date().toISOString().slice(0, 10)
    expect((await door.get('op', '/v1/admin/keys/alice')).json).toMatchObject({
      last_used_on: null,
      month: { calls: 0 },
    })
    expect((await door.chat(secretOf('alice'))).status).toBe(200)
    const used = async () => (await door.get('op', '/v1/admin/keys/alice')).json
    await until(async () => (await used()).month.calls === 1)
    expect(await used()).toMatchObject({ last_used_on: today, month: { calls: 1 } })
    const usage = await door.get('op', '/v1/usage?key=alice&group_by=day')
    expect(usage.json).toMatchObject({ data: [{ group: today, calls: 1 }], total: { calls: 1 } })
    expect((await door.get('op', '/v1/usage?key=boss')).json.data).toEqual([])
  })

  it.skipIf(!isHere)('lists keys in pages, including the key from SLUICE_API_KEY', async () => {
    const door = await openDoor()
    const seen: string[] = []
    let after = ''
    for (let hasMore = true; hasMore; ) {
      const { json } = await door.get('op', `/v1/admin/keys?limit=2${after && `&after=${after}`}`)
      seen.push(...json.data.map(({ id }: Json) => id))
      after = json.last_id
      hasMore = json.has_more
    }
    expect(seen.toSorted()).toEqual(['alice', 'boss', 'few', 'key_env', 'op'])
    expect((await door.get('op', '/v1/admin/keys/key_env')).json).toMatchObject({ is_setting: true, state: 'valid' })
    expect((await door.get('op', '/v1/admin/keys?state=revoked')).json.data).toEqual([])
    expect(await door.post('boss', '/v1/admin/keys/key_env/revoke')).toMatchObject({ status: 400 })
  })
})

describe('the admin API for permissions', () => {
  it('refuses to grant a permission that the caller lacks', async () => {
    const door = await openWith()
    const refused = async (who: string, path: string, body: object) => {
      const { status, json } = await door.post(who, path, body)
      return [status, json.error?.code, json.error?.param]
    }
    const no = (param: string) => [403, 'permission_denied', param]
    expect(await refused('op', '/v1/admin/keys', {})).toEqual(no('scopes'))
    expect(await refused('op', '/v1/admin/keys', { scopes: ['admin'] })).toEqual([201, undefined, undefined])
    expect(await refused('op', '/v1/admin/keys/alice/rotate', {})).toEqual(no('scopes'))
    const own = { endpoints: ['/v1/chat/completions'], models: ['echo-1'], expires_at: seconds() + 60 }
    expect(await refused('few', '/v1/admin/keys', { ...own, endpoints: null })).toEqual(no('endpoints'))
    expect(await refused('few', '/v1/admin/keys', { ...own, endpoints: ['/v1/models'] })).toEqual(no('endpoints'))
    expect(await refused('few', '/v1/admin/keys', { ...own, models: ['echo-2'] })).toEqual(no('models'))
    expect(await refused('few', '/v1/admin/keys', { ...own, expires_at: null })).toEqual(no('expires_at'))
    expect((await refused('few', '/v1/admin/keys', own))[0]).toBe(201)
    // A caller may update a key that has more permissions than the caller, if the update only keeps or reduces these permissions.
    expect((await refused('few', '/v1/admin/keys/alice', { models: ['echo-2'] }))[0]).toBe(200)
    expect(await refused('few', '/v1/admin/keys/alice', { models: null })).toEqual(no('models'))
    expect(await refused('few', '/v1/admin/keys/alice', { scopes: ['calls', 'admin'] })).toEqual([
      200,
      undefined,
      undefined,
    ])
  })

  it('reports the permissions of the calling key to that key', async () => {
    const door = await openWith()
    const own = async (who: string) => (await door.get(who, '/v1/key')).json
    expect(await own('op')).toMatchObject({ id: 'op', project: 'op', scopes: ['admin'], endpoints: null })
    expect(await own('few')).toMatchObject({ endpoints: ['/v1/chat/completions'], models: ['echo-1'] })
    expect(await own('alice')).toMatchObject({ scopes: ['calls'], expires_at: null, models: null })
    expect(Object.keys(await own('alice'))).not.toContain('hash')
  })

  it('reports the lowest of the limits of the key, the project and the settings', async () => {
    const door = await openWith({ RATE_LIMIT_REQUESTS: '100', RATE_LIMIT_TOKENS: '5000' })
    const limits = { requests_per_minute: 20, running: 3, queued: 7, budget_usd_per_month: 1.5 }
    const project = (await door.post('boss', '/v1/admin/projects', { name: 'team', limits })).json
    const wide = { requests_per_minute: 50, running: 2, scheduled: 9, budget_usd_per_month: 10 }
    const made = (await door.post('boss', '/v1/admin/keys', { project: project.id, limits: wide })).json
    const own = async () => {
      const answer = await door.stack.get('/v1/key', bearer(made.secret))
      const { limits, project_name } = (await answer.json()) as Json
      return { status: answer.status, limits, project: project_name }
    }
    await until(async () => (await own()).status === 200)
    await until(async () => (await own()).limits.requests_per_minute === 20)
    expect((await own()).project).toBe('team')
    expect((await own()).limits).toEqual({
      ...{ requests_per_minute: 20, tokens_per_minute: 5_000, running: 2 },
      ...{ queued: 7, scheduled: 9, budget_usd_per_month: 1.5 },
    })
    expect((await door.get('alice', '/v1/key')).json.limits).toEqual({
      requests_per_minute: 100,
      tokens_per_minute: 5_000,
    })
  })

  it('refuses keys without the admin scope with 403', async () => {
    const door = await openWith()
    for (const path of ['keys', 'keys/alice', 'projects', 'audit']) {
      const { status, json } = await door.get('alice', `/v1/admin/${path}`)
      expect([status, json.error.code]).toEqual([403, 'permission_denied'])
      expect(json.error.message).toContain("lacks the scope 'admin'")
    }
    expect((await door.post('alice', '/v1/admin/keys', {})).status).toBe(403)
    expect((await door.post('alice', '/v1/admin/keys/alice/revoke')).status).toBe(403)
  })

  it('names the invalid parameter of a request', async () => {
    const door = await openWith()
    const wrong = async (path: string, body: object) => {
      const { status, json } = await door.post('boss', `/v1/admin/${path}`, body)
      return [status, json.error?.code, json.error?.param]
    }
    expect(await wrong('keys', { nme: 'x' })).toEqual([400, 'unsupported_parameter', 'nme'])
    expect(await wrong('keys', { limits: { requests: 1 } })).toEqual([400, 'unsupported_parameter', 'limits.requests'])
    expect((await wrong('keys', { limits: { running: -1 } }))[2]).toBe('limits.running')
    expect(await wrong('keys', { endpoints: ['/v1/chat'] })).toEqual([400, 'invalid_value', 'endpoints'])
    expect(await wrong('keys', { models: ['echo-9'] })).toEqual([400, 'invalid_value', 'models'])
    expect(await wrong('keys', { project: 'none' })).toEqual([400, 'invalid_value', 'project'])
    expect(await wrong('keys', { project: 'proj_none' })).toEqual([400, 'invalid_value', 'project'])
    expect(await wrong('keys', { expires_at: 1_000 })).toEqual([400, 'invalid_value', 'expires_at'])
    expect((await wrong('keys/alice', {}))[0]).toBe(400)
    expect((await wrong('keys/nobody', { name: 'x' }))[0]).toBe(404)
    expect((await wrong('keys/nobody/revoke', {}))[0]).toBe(404)
    expect(await wrong('keys/few/rotate', {})).toEqual([400, 'missing_required_parameter', 'expires_at'])
    expect((await wrong('projects/none', { name: 'x' }))[0]).toBe(404)
    expect((await wrong('projects/alice', { limits: { running: 1 } }))[0]).toBe(200)
    expect((await door.get('boss', '/v1/admin/projects/alice')).json).toMatchObject({ keys: 1, limits: { running: 1 } })
  })
})
