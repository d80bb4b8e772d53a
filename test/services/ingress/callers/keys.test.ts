/*
 * Tests of the list of API keys that an ingress accepts. The ingress polls the key store each second, and continues with the last list
 * while the store is down.
 */

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { ApiKeys } from '#services/ingress/callers/keys.ts'
import { openFileKeys } from '#shared/keys/file.ts'
import { type KeyStore, newKey, newProject } from '#shared/keys/keys.ts'
import { openPostgresKeys } from '#shared/keys/postgres.ts'
import type { Log } from '#shared/log/log.ts'
import { silentLog } from '../../../support/jobs/jobs.ts'
import { openPostgresDatabase } from '../../../support/jobs/stores.ts'
import { startLocalPostgres, whyNoLocalPostgres } from '../../../support/processes/postgres.ts'
import { startStack, until } from '../../../support/stack.ts'

const postgres = inject('postgres')
const noLocal = postgres ? whyNoLocalPostgres() : 'no Postgres'
if (noLocal && process.env.CI === 'true') throw new Error(`The outage test cannot run: ${noLocal}`)

async function open(store: KeyStore, fixed?: string): Promise<ApiKeys> {
  const keys = await ApiKeys.open(store, fixed, silentLog)
  onTestFinished(() => keys.close())
  return keys
}

async function keyDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-keys-'))
  onTestFinished(() => rm(directory, { recursive: true, force: true }))
  return directory
}

/** Wraps a key store. While `isAway` is true, reading the keys fails, as during an outage. */
function breakable(store: KeyStore): KeyStore & { isAway: boolean } {
  return {
    name: store.name,
    isAway: false,
    async list() {
      if (this.isAway) throw new Error('away')
      return await store.list()
    },
    create: (key) => store.create(key),
    createFirst: (key) => store.createFirst(key),
    revoke: (id) => store.revoke(id),
    listProjects: () => store.listProjects(),
    update: (id, change) => store.update(id, change),
    rotate: (id, successor, endsAt) => store.rotate(id, successor, endsAt),
    createProject: (project) => store.createProject(project),
    updateProject: (id, change) => store.updateProject(id, change),
    webhookRoot: () => store.webhookRoot(),
    listWebhookSecrets: (project) => store.listWebhookSecrets(project),
    createWebhookSecret: (secret, first) => store.createWebhookSecret(secret, first),
    deleteWebhookSecret: (project, id) => store.deleteWebhookSecret(project, id),
    listAudit: (limit) => store.listAudit(limit),
    close: () => store.close(),
  }
}

describe('the keys of an ingress', () => {
  it('follow the store: a created key becomes valid, and a revoked key becomes invalid', async () => {
    const store = openFileKeys(await keyDirectory())
    const keys = await open(store)
    const { key, secret } = newKey({ models: ['echo-1'] })
    await store.create(key)
    expect(await until(() => keys.find(secret))).toEqual(key)
    await store.revoke(key.id)
    await until(() => !keys.find(secret))
  })

  it('have the limits of their project, and follow changes of the limits', async () => {
    const store = openFileKeys(await keyDirectory())
    const lines: object[] = []
    const log = { info: (fields: object) => lines.push(fields) } as unknown as Log
    const keys = await ApiKeys.open(store, undefined, log)
    onTestFinished(() => keys.close())
    const project = newProject({ limits: { queued: 5 } })
    expect(keys.limitsOf(project.id)).toEqual({})
    await store.createProject(project)
    await until(() => keys.limitsOf(project.id).queued === 5)
    await store.updateProject(project.id, { limits: { running: 0 } })
    await until(() => keys.limitsOf(project.id).running === 0)
    expect(keys.limitsOf(project.id)).toEqual({ running: 0 })
    await store.revoke('key_first')
    await until(() => lines.length === 3)
    expect(lines).toEqual([{ projects: [project.id] }, { projects: [project.id] }, { revoked: ['key_first'] }])
  })

  it('are unchanged while the store is down, and updated when the store is back', async () => {
    const store = breakable(openFileKeys(await keyDirectory()))
    const keys = await open(store)
    const first = keys.created as string
    let looks = 0
    const list = store.list.bind(store)
    store.list = () => {
      looks++
      return list()
    }
    store.isAway = true
    await store.revoke('key_first')
    await until(() => looks >= 2)
    expect(keys.find(first)?.id).toBe('key_first')
    store.isAway = false
    await until(() => !keys.find(first))
  })

  it('cannot be loaded if the store cannot be read', async () => {
    const store = breakable(openFileKeys(await keyDirectory()))
    let isClosed = false
    store.close = async () => {
      isClosed = true
    }
    store.isAway = true
    await expect(ApiKeys.open(store, undefined, silentLog)).rejects.toThrow('away')
    expect(isClosed).toBe(true)
  })

  it.skipIf(!postgres)(
    'include exactly one generated key if three ingresses start on one empty database at the same time',
    async () => {
      await using database = await openPostgresDatabase(postgres ?? '')
      const opened = await Promise.all(
        [1, 2, 3].map(async () => ApiKeys.open(await openPostgresKeys(database.url), undefined, silentLog)),
      )
      try {
        const secrets = opened.flatMap(({ created }) => created ?? [])
        expect(secrets).toHaveLength(1)
        await until(() => opened.every((keys) => keys.find(secrets[0] ?? '')?.id === 'key_first'))
      } finally {
        await Promise.all(opened.map((keys) => keys.close()))
      }
    },
  )

  it.skipIf(noLocal !== undefined)(
    'remain valid while Postgres is down, and are revoked when Postgres is back',
    async () => {
      await using server = await startLocalPostgres()
      const store = await openPostgresKeys(server.url)
      onTestFinished(() => store.close())
      const keys = await open(await openPostgresKeys(server.url))
      const secret = keys.created as string
      await server.down('SIGKILL')
      await until(() =>
        store.list().then(
          () => false,
          () => true,
        ),
      )
      expect(keys.find(secret)?.id).toBe('key_first')
      await server.resume()
      await until(() => store.revoke('key_first').catch(() => undefined), { withinMs: 20_000 })
      await until(() => !keys.find(secret), { withinMs: 20_000 })
    },
  )

  it.skipIf(!postgres)('are read from the database if DATABASE_URL is set', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await using stack = await startStack({ settings: { DATABASE_URL: database.url } })
    const store = await openPostgresKeys(database.url)
    onTestFinished(() => store.close())
    const { key, secret } = newKey()
    await store.create(key)
    const status = async () =>
      (await stack.get('/v1/models', { headers: { authorization: `Bearer ${secret}` } })).status
    await until(async () => (await status()) === 200)
    await store.revoke(key.id)
    await until(async () => (await status()) === 401)
  })
})
