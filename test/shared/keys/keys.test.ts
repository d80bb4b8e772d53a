/** Tests each guarantee that every key store must keep (shared/keys/keys.ts), and features of single adapters. */
import { execFile } from 'node:child_process'
import { chmod, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { openFileKeys } from '#shared/keys/file.ts'
import { FIRST_KEY_ID, hashOf, type KeyStore, newKey, newProject } from '#shared/keys/keys.ts'
import { openPostgresKeys } from '#shared/keys/postgres.ts'
import { newWebhookSecret, webhookSecretsOf } from '#shared/keys/webhook-secrets.ts'
import { openPostgresDatabase } from '../../support/jobs/stores.ts'
import { startLocalPostgres, whyNoLocalPostgres } from '../../support/processes/postgres.ts'
import { until } from '../../support/stack.ts'

const postgres = inject('postgres')
const noLocal = postgres ? whyNoLocalPostgres() : 'no Postgres'
if (noLocal && process.env.CI === 'true') throw new Error(`The outage test cannot run: ${noLocal}`)

/** Opens a key store as another process does. All stores of one opener share their data, which is empty at first. */
type Opener = () => Promise<KeyStore>

async function filePlace(): Promise<{ open: Opener; directory: string }> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-keys-'))
  onTestFinished(() => rm(directory, { recursive: true, force: true }))
  return { directory: join(directory, 'made'), open: async () => openFileKeys(join(directory, 'made')) }
}

async function postgresPlace(): Promise<{ open: Opener; url: string }> {
  const database = await openPostgresDatabase(postgres ?? '')
  const opened: KeyStore[] = []
  onTestFinished(async () => {
    await Promise.all(opened.map((store) => store.close()))
    await database[Symbol.asyncDispose]()
  })
  const open = async () => {
    const store = await openPostgresKeys(database.url)
    opened.push(store)
    return store
  }
  return { open, url: database.url }
}

const ADAPTERS: { name: string; isThere: boolean; place: () => Promise<{ open: Opener }> }[] = [
  { name: 'file', isThere: true, place: filePlace },
  { name: 'postgres', isThere: postgres !== null, place: postgresPlace },
]

describe.each(ADAPTERS)('the key store: $name', ({ place, isThere }) => {
  it.skipIf(!isThere)('returns created keys to every instance, oldest first', async () => {
    const { open } = await place()
    const [one, other] = [await open(), await open()]
    expect(await other.list()).toEqual([])
    const plain = newKey().key
    const limited = { ...newKey({ name: 'ci "1"', endpoints: ['/v1/jobs'], models: ['echo-1', 'ü:x'] }).key }
    await one.create({ ...limited, created_at: 1_790_000_001 })
    await one.create({ ...plain, created_at: 1_790_000_002 })
    const expected = [
      { ...limited, created_at: 1_790_000_001 },
      { ...plain, created_at: 1_790_000_002 },
    ]
    expect(await other.list()).toEqual(expected)
    expect(await (await open()).list()).toEqual(expected)
  })

  it.skipIf(!isThere)('returns the same list object until a key changes', async () => {
    const { open } = await place()
    const store = await open()
    await store.create(newKey({ id: 'key_a' }).key)
    const list = await store.list()
    expect(await store.list()).toBe(list)
    await (await open()).revoke('key_a')
    expect(await store.list()).not.toBe(list)
  })

  it.skipIf(!isThere)('revokes a key permanently for every instance', async () => {
    const { open } = await place()
    const [one, other] = [await open(), await open()]
    const keys = [newKey({ id: 'key_a' }).key, newKey({ id: 'key_b' }).key]
    for (const key of keys) await one.create(key)
    expect(await one.revoke('key_a')).toEqual({ ...keys[0], revoked: true })
    expect(await one.revoke('key_a')).toEqual({ ...keys[0], revoked: true })
    expect(await one.revoke('key_c')).toBeUndefined()
    const revoked = (await other.list()).map(({ id, revoked }) => [id, revoked])
    expect(revoked).toEqual([
      ['key_a', true],
      ['key_b', false],
    ])
  })

  it.skipIf(!isThere)('refuses a key with an existing id or secret', async () => {
    const { open } = await place()
    const store = await open()
    const { key } = newKey({ id: 'key_a' })
    await store.create(key)
    await expect(store.create({ ...newKey().key, id: 'key_a' })).rejects.toThrow()
    await expect(store.create({ ...key, id: 'key_b' })).rejects.toThrow()
    expect(await store.list()).toEqual([key])
  })

  it.skipIf(!isThere)(
    'creates the first key in only one of five concurrent processes, and never if a key exists',
    async () => {
      const { open } = await place()
      const stores = await Promise.all(Array.from({ length: 5 }, open))
      const first = () => newKey({ id: FIRST_KEY_ID }).key
      const won = await Promise.all(stores.map((store) => store.createFirst(first())))
      expect(won.filter(Boolean)).toHaveLength(1)
      await stores[0]?.revoke(FIRST_KEY_ID)
      expect(await (await open()).createFirst(newKey().key)).toBe(false)
      expect(await stores[1]?.list()).toHaveLength(1)
    },
  )

  it.skipIf(!isThere)('keeps all keys of four concurrent writers', async () => {
    const { open } = await place()
    const stores = await Promise.all(Array.from({ length: 4 }, open))
    const keys = Array.from({ length: 20 }, () => newKey().key)
    await Promise.all(keys.map((key, i) => stores[i % 4]?.create(key)))
    const ids = (await stores[0]?.list())?.map(({ id }) => id)
    expect(ids?.toSorted()).toEqual(keys.map(({ id }) => id).toSorted())
  })

  it.skipIf(!isThere)('stores the project, expiry time, scopes and limits of a key for all instances', async () => {
    const { open } = await place()
    const [one, other] = [await open(), await open()]
    const project = newProject({ name: 'search', limits: { requests_per_minute: 600, budget_usd_per_month: 12.5 } })
    const rights = { project: project.id, expires_at: 1_900_000_000, scopes: ['calls', 'admin'] as const }
    const { key } = newKey({ ...rights, limits: { running: 0 } })
    await one.createProject(project)
    await one.create(key)
    const [keys, projects] = [await other.list(), await other.listProjects()]
    expect([keys, projects]).toEqual([[key], [project]])
    expect([await other.list(), await other.listProjects()]).toEqual([keys, projects])
    expect(await other.list()).toBe(keys)
    expect(await other.listProjects()).toBe(projects)
    await one.updateProject(project.id, { limits: {} })
    expect(await other.listProjects()).toEqual([{ ...project, limits: {} }])
    await expect(one.createProject(project)).rejects.toThrow()
    expect(await one.updateProject('proj_none', { name: 'x' })).toBeUndefined()
    expect(await (await open()).createFirst(newKey({ id: FIRST_KEY_ID }).key)).toBe(false)
  })

  it.skipIf(!isThere)('updates only the given fields, and removes fields set to undefined', async () => {
    const { open } = await place()
    const [one, other] = [await open(), await open()]
    const { key } = newKey({ id: 'key_a', name: 'old', models: ['echo-1'], limits: { running: 1 } })
    await one.create(key)
    const change = { name: 'new', models: undefined, expires_at: 1_900_000_000 }
    const { models: _, ...rest } = key
    const expected = { ...rest, name: 'new', expires_at: 1_900_000_000 }
    expect(await one.update('key_a', change)).toEqual(expected)
    expect(await other.list()).toEqual([expected])
    expect(await one.update('key_none', change)).toBeUndefined()
    await one.revoke('key_a')
    expect((await one.update('key_a', { name: undefined }))?.revoked).toBe(true)
  })

  it.skipIf(!isThere)('rotates a key atomically, and never extends the expiry of the old key', async () => {
    const { open } = await place()
    const store = await open()
    const { key } = newKey({ id: 'key_a', expires_at: 2_000 })
    await store.create(key)
    const successor = { ...newKey({ id: 'key_b', project: 'key_a' }).key, created_at: key.created_at }
    expect(await store.rotate('key_none', successor, 3_000)).toBeUndefined()
    await expect(store.rotate('key_a', { ...successor, id: 'key_a' }, 1_000)).rejects.toThrow()
    expect(await store.list()).toEqual([key])
    expect(await store.rotate('key_a', successor, 3_000)).toEqual(key)
    expect(await store.rotate('key_a', { ...newKey({ id: 'key_c' }).key, created_at: key.created_at }, 1_000)).toEqual({
      ...key,
      expires_at: 1_000,
    })
    expect((await store.list()).map(({ id, expires_at }) => [id, expires_at])).toEqual([
      ['key_a', 1_000],
      ['key_b', undefined],
      ['key_c', undefined],
    ])
  })

  it.skipIf(!isThere)('records one audit event per change, and lists the newest event first', async () => {
    const { open } = await place()
    const store = await open()
    const { key } = newKey({ id: 'key_a', project: 'proj_1', name: 'x' })
    await store.create(key, 'cli:ada')
    await store.update('key_a', { name: undefined, limits: { queued: 3 } }, 'key:key_admin')
    await store.revoke('key_a', 'cli:ada')
    await store.revoke('key_a', 'cli:ada')
    await store.createProject({ id: 'proj_1', created_at: 1, limits: {} })
    const of = { subject: 'key_a', project: 'proj_1', at: expect.any(Number) }
    const { hint } = key
    expect(await (await open()).listAudit(10)).toEqual([
      { ...of, subject: 'proj_1', author: 'service', action: 'project.created', change: { limits: {} } },
      { ...of, author: 'cli:ada', action: 'key.revoked', change: {} },
      { ...of, author: 'key:key_admin', action: 'key.updated', change: { name: null, limits: { queued: 3 } } },
      { ...of, author: 'cli:ada', action: 'key.created', change: { hint, name: 'x', project: 'proj_1' } },
    ])
    expect(await store.listAudit(1)).toHaveLength(1)
  })

  it.skipIf(!isThere)(
    'creates one root secret for all instances, and allows one or two webhook secrets per project',
    async () => {
      const { open } = await place()
      const stores = await Promise.all(Array.from({ length: 4 }, open))
      const roots = new Set(await Promise.all(stores.map((store) => store.webhookRoot())))
      expect([...roots]).toEqual([expect.stringMatching(/^whsec_[A-Za-z0-9+/]{43}=$/)])
      const [one, other] = stores as [KeyStore, KeyStore]
      const [given, derived] = [await webhookSecretsOf(one, 'proj_2'), await webhookSecretsOf(one, 'proj_1')]
      expect(given[0].secret).not.toBe(derived[0].secret)
      expect(await webhookSecretsOf(other, 'proj_1')).toEqual(derived)
      const first = { ...newWebhookSecret('proj_1', derived[0].secret), created_at: 1 }
      const made = Array.from({ length: 4 }, () => newWebhookSecret('proj_1'))
      const won = await Promise.all(made.map((secret, i) => stores[i]?.createWebhookSecret(secret, first, 'cli:ada')))
      const winner = made[won.indexOf(true)]
      expect(won.filter(Boolean)).toHaveLength(1)
      expect(await webhookSecretsOf(other, 'proj_1')).toEqual([first, winner])
      expect(await other.deleteWebhookSecret('proj_2', first.id)).toBe('none')
      expect(await other.deleteWebhookSecret('proj_1', first.id)).toBe('deleted')
      expect(await other.deleteWebhookSecret('proj_1', winner?.id ?? '')).toBe('last')
      expect(await one.listWebhookSecrets('proj_1')).toEqual([winner])
      expect(await one.listWebhookSecrets('proj_2')).toEqual([])
      const [deleted, created] = await one.listAudit(2)
      expect(deleted).toMatchObject({
        action: 'webhook_secret.deleted',
        subject: first.id,
        project: 'proj_1',
        change: {},
      })
      expect(created).toMatchObject({
        action: 'webhook_secret.created',
        subject: winner?.id,
        author: 'cli:ada',
        change: {},
      })
    },
  )

  it.skipIf(!isThere)('can be closed twice', async () => {
    const store = await (await place()).open()
    await store.close()
    await store.close()
  })
})

describe('the file with the root secret of webhook secrets', () => {
  it('has mode 0600, and is refused if it contains no secret', async () => {
    const { open, directory } = await filePlace()
    const store = await open()
    const root = await store.webhookRoot()
    const path = join(directory, 'webhook-root')
    expect([(await stat(path)).mode & 0o777, await readFile(path, 'utf8')]).toEqual([0o600, `${root}\n`])
    expect(await store.createFirst(newKey({ id: FIRST_KEY_ID }).key)).toBe(true)
    await writeFile(path, 'nonsense')
    await expect(store.webhookRoot()).rejects.toThrow(`${path} contains no secret`)
  })
})

describe('the file keys.json', () => {
  it('has mode 0600 and contains no secret', async () => {
    const { open, directory } = await filePlace()
    const { key, secret } = newKey()
    await (await open()).create(key)
    await chmod(join(directory, 'keys.json'), 0o644)
    await (await open()).create(newKey().key)
    expect((await stat(join(directory, 'keys.json'))).mode & 0o777).toBe(0o600)
    const text = await readFile(join(directory, 'keys.json'), 'utf8')
    expect(text).toContain(hashOf(secret))
    expect(text).not.toContain(secret)
    expect((await readdir(directory)).toSorted()).toEqual(['audit.jsonl', 'keys.json', 'keys.lock'])
    expect((await stat(join(directory, 'audit.jsonl'))).mode & 0o777).toBe(0o600)
    expect(await readFile(join(directory, 'audit.jsonl'), 'utf8')).not.toMatch(
      new RegExp(`${secret}|${hashOf(secret)}`),
    )
  })

  it('is not overwritten if it is corrupt, and is read again after a repair', async () => {
    const { open, directory } = await filePlace()
    const store = await open()
    const { key } = newKey({ id: 'key_a' })
    await store.create(key)
    const path = join(directory, 'keys.json')
    const whole = await readFile(path, 'utf8')
    for (const broken of ['{"keys": [{"id":', '{"keys": [{"id": 1}]}', '[]', '']) {
      await writeFile(path, broken)
      await expect(store.list()).rejects.toThrow(path)
      await expect(store.create(newKey().key)).rejects.toThrow(path)
      await expect(store.revoke('key_a')).rejects.toThrow(path)
      expect(await store.createFirst(newKey().key)).toBe(false)
      expect(await readFile(path, 'utf8')).toBe(broken)
    }
    await writeFile(path, whole)
    expect(await store.list()).toEqual([key])
  })

  it('keeps unknown fields, but a key with an unknown scope or limit is invalid', async () => {
    const { directory } = await filePlace()
    const problems: string[] = []
    const store = openFileKeys(directory, (problem) => problems.push(problem))
    const [plain, member, newer] = [newKey().key, newKey({ project: 'proj_1' }).key, newKey().key]
    await store.create(plain)
    const kept = {
      keys: [plain, member, { ...newer, scopes: ['calls', 'dance'] }, { ...newer, id: 'key_x', limits: { dances: 1 } }],
      projects: [{ id: 'proj_1', created_at: 1, limits: { dances: 2 } }],
      later: { version: 2 },
    }
    await writeFile(join(directory, 'keys.json'), JSON.stringify(kept))
    expect(await store.list()).toEqual([plain])
    expect(await store.listProjects()).toEqual([])
    expect(problems).toHaveLength(3)
    expect(problems[0]).toMatch(
      /keys\.json: the project proj_1: limits: Unrecognized key: "dances"\. This process rejects the keys of the project/,
    )
    await store.update(member.id, { name: 'renamed' })
    const written = JSON.parse(await readFile(join(directory, 'keys.json'), 'utf8'))
    expect(written).toEqual({
      ...kept,
      keys: kept.keys.map((key) => (key === member ? { ...key, name: 'renamed' } : key)),
    })
  })

  it.each([
    { running: 1e308 },
    { running: -1 },
    { running: '3' },
    { running: null },
    { tokens_per_minute: 1.5 },
    'many',
  ])('is valid except for the key or project with the invalid limit %j', async (limits) => {
    const { directory } = await filePlace()
    const problems: string[] = []
    const store = openFileKeys(directory, (problem) => problems.push(problem))
    const [plain, wrong, member] = [newKey().key, newKey().key, newKey({ project: 'proj_1' }).key]
    await store.create(plain)
    const kept = {
      keys: [plain, { ...wrong, limits }, member],
      projects: [{ id: 'proj_1', created_at: 1, limits }],
    }
    await writeFile(join(directory, 'keys.json'), JSON.stringify(kept))
    expect(await store.list()).toEqual([plain])
    expect(await store.listProjects()).toEqual([])
    expect(problems).toEqual([
      expect.stringContaining('the project proj_1: limits'),
      expect.stringContaining(`the key ${wrong.id}: limits`),
    ])
    expect((await store.revoke(plain.id))?.revoked).toBe(true)
  })

  it('contains all 30 keys that three concurrent processes created', async () => {
    const { directory, open } = await filePlace()
    const script = `
      const { openFileKeys } = await import('#shared/keys/file.ts')
      const { newKey } = await import('#shared/keys/keys.ts')
      const store = openFileKeys(process.argv[1])
      for (let i = 0; i < 10; i++) await store.create(newKey().key)
    `
    const run = promisify(execFile)
    const args = ['--input-type=module', '--eval', script, directory]
    await Promise.all([1, 2, 3].map(() => run(process.execPath, args, { timeout: 20_000 })))
    expect(await (await open()).list()).toHaveLength(30)
  })
})

describe.skipIf(postgres === null)('an unsupported limit of a project in Postgres', () => {
  it('invalidates the project and its keys, and is logged', async () => {
    const { open, url } = await postgresPlace()
    const problems: string[] = []
    const store = await openPostgresKeys(url, (problem) => problems.push(problem))
    onTestFinished(() => store.close())
    const [plain, member] = [newKey().key, newKey({ project: 'proj_1' }).key]
    for (const key of [plain, member]) await store.create(key)
    const limits: object = { dances: 2 }
    await (await open()).createProject({ id: 'proj_1', created_at: 1, limits })
    expect([await store.list(), await store.listProjects()]).toEqual([[plain], []])
    expect(problems).toEqual([
      expect.stringContaining('Postgres: the project proj_1: limits: Unrecognized key: "dances".'),
    ])
  })
})

describe.skipIf(noLocal !== undefined)('the key store in Postgres', () => {
  it('fails with overloaded while Postgres is down, and recovers when Postgres is back', async () => {
    await using server = await startLocalPostgres()
    const store = await openPostgresKeys(server.url)
    onTestFinished(() => store.close())
    const { key } = newKey()
    await store.create(key)
    await server.down('SIGKILL')
    // When the main process of Postgres is killed, its child processes exit a little later. The store can be read until then.
    await until(() =>
      store.list().then(
        () => undefined,
        () => true,
      ),
    )
    await expect(store.list()).rejects.toMatchObject({ code: 'overloaded' })
    await expect(store.createFirst(newKey().key)).rejects.toMatchObject({ code: 'overloaded' })
    await server.resume()
    const list = await until(() => store.list().catch(() => undefined), { withinMs: 20_000 })
    expect(list).toEqual([key])
  })

  it('fails to open with overloaded if Postgres is unreachable', async () => {
    await expect(openPostgresKeys('postgres://sluice@127.0.0.1:1/postgres')).rejects.toMatchObject({
      code: 'overloaded',
    })
  })
})
