/**
 * Tests a rolling upgrade: processes of the oldest supported version and of this version run in one fleet. A database of an even older version
 * must be refused.
 *
 * The oldest supported version is the last commit that changed the first migration: a database of any earlier commit cannot be upgraded. The
 * source tree of that commit is read from the git history.
 */
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdir, mkdtemp, readFile, rm, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { openPostgresDatabase, openSqliteDatabase } from './support/jobs/stores.ts'
import { type Fleet, openFleet, type RoleProcess } from './support/processes/fleet.ts'
import { TEST_KEY, until } from './support/stack.ts'

const INSTALL_MS = 120_000
const MIGRATIONS = 'shared/store/sql/migrations'

const run = promisify(execFile)
const ROOT = join(import.meta.dirname, '..')
const kafka = inject('kafka')
const postgres = inject('postgres')

const git = async (...args: string[]) => (await run('git', args, { cwd: ROOT })).stdout.trim()
const { oldest, refused, missing } = await findVersions()
if (missing !== undefined) process.stderr.write(`Tests of upgrades are skipped: ${missing}\n`)

/**
 * Finds the oldest supported commit, and the last commit with the former database schema, which must be refused. If the git history lacks one of
 * them, then `missing` is the reason.
 */
async function findVersions(): Promise<{ oldest: string; refused: string; missing?: string }> {
  const schema = `${MIGRATIONS}/postgres/001-tables.sql`
  const oldest = await git('log', '-1', '--format=%H', '--', schema).catch(() => '')
  if (oldest === '') return { oldest, refused: '', missing: `no commit of ${schema} here` }
  const first = await git('log', '--diff-filter=A', '--format=%H', '--', schema)
  // The parent of the commit that added the first migration has the former schema. In a shallow clone, the oldest commit seems to add all files,
  // and has no parent.
  const refused = await git('rev-parse', '--verify', '--quiet', `${first}^`).catch(() => '')
  if (refused === '') return { oldest, refused, missing: 'the history here is too short (git fetch --unshallow)' }
  const later = await git('rev-list', '--count', `${oldest}..HEAD`, '--', 'services', 'shared', 'schemas')
  if (later === '0') return { oldest, refused, missing: `no commit after ${oldest.slice(0, 8)} changes the product` }
  return { oldest, refused }
}

let scratch: string
let oldTree: string
beforeAll(async () => {
  if (missing !== undefined || !kafka) return
  scratch = await mkdtemp(join(tmpdir(), 'sluice-old-'))
  oldTree = join(scratch, 'tree')
  await mkdir(oldTree)
  const archive = join(scratch, 'tree.tar')
  await run('git', ['archive', '--output', archive, oldest], { cwd: ROOT })
  await run('tar', ['-xf', archive, '-C', oldTree])
  await symlink(join(ROOT, 'node_modules'), join(oldTree, 'node_modules'))
  await installRemoved()
}, INSTALL_MS)
afterAll(async () => {
  if (scratch) await rm(scratch, { recursive: true, force: true })
})

/**
 * Installs the packages that only the old version needs. The directory is above the tree of the old version. Node.js looks there if the
 * `node_modules` in the tree does not have a package.
 */
async function installRemoved(): Promise<void> {
  const [old = {}, now = {}] = await Promise.all([oldTree, ROOT].map(dependenciesOf))
  const removed = Object.entries(old).flatMap(([name, version]) => (name in now ? [] : [`${name}@${version}`]))
  if (removed.length === 0) return
  const npm = ['install', '--no-save', '--no-audit', '--no-fund', '--ignore-scripts', '--prefix', scratch]
  await run('npm', [...npm, ...removed], { cwd: scratch, timeout: INSTALL_MS })
}

async function dependenciesOf(directory: string): Promise<Record<string, string>> {
  return JSON.parse(await readFile(join(directory, 'package.json'), 'utf8')).dependencies
}

type Version = 'old' | 'new'
const PAIRS: { worker: Version; ingress: Version }[] = [
  { worker: 'old', ingress: 'new' },
  { worker: 'new', ingress: 'old' },
]

describe.skipIf(!kafka || missing !== undefined)('a fleet with old and new versions', () => {
  it.each(PAIRS)(
    'completes plain, streamed and durable calls with $worker workers and $ingress ingresses',
    async (versions) => {
      await using database = postgres ? await openPostgresDatabase(postgres) : undefined
      await using fleet = await openFleet(kafka ?? '')
      const settings: Record<string, string> = database ? { DATABASE_URL: database.url } : {}
      const { ingress, worker } = await startBoth(fleet, versions, settings)
      expect((await chat(fleet, ingress, 'the first', false)).status).toBe(200)
      // The job and the calls are sent before the first heartbeat of the worker. The ingress must therefore work without a capacity report.
      const durable = database ? expectDurable(fleet, ingress) : undefined
      const calls = Array.from({ length: 10 }, (_, index) => chat(fleet, ingress, `call ${index}`, index % 2 === 0))
      for (const [index, answer] of (await Promise.all(calls)).entries()) {
        expect([answer.status, answer.text], `status and body of the call: ${answer.text}`).toEqual([
          200,
          expect.stringContaining('call'),
        ])
        expect(answer.text.includes('[DONE]')).toBe(index % 2 === 0)
      }
      await durable
      // Each version must understand the messages that the other one sends without a request, such as heartbeats.
      const lost = [...ingress.log, ...worker.log].filter(({ msg }) =>
        /^(reply|record) not understood/.test(String(msg)),
      )
      expect(lost).toEqual([])
    },
    240_000,
  )
})

describe.skipIf(missing !== undefined)('a store of a version before the oldest supported one', () => {
  it.skipIf(!postgres)('is refused on Postgres, and is not changed', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await database.query('CREATE TABLE migrations (name text PRIMARY KEY, hash text NOT NULL)')
    for (const sql of await refusedSchema('postgres')) await database.query(sql)
    const read = async () => [
      await database.query('SELECT oid, relname FROM pg_class WHERE relnamespace = current_schema::regnamespace'),
      await database.query('SELECT * FROM migrations'),
    ]
    const before = await read()
    await expect(database.open()).rejects.toThrow('has the schema of version 0.2.0 or older')
    expect(await read()).toEqual(before)
  })

  it('is refused on SQLite, and is not changed', async () => {
    await using database = await openSqliteDatabase()
    const file = join(database.directory, 'store.db')
    const db = new DatabaseSync(file)
    db.exec('PRAGMA journal_mode = WAL; CREATE TABLE migrations (name text NOT NULL PRIMARY KEY, hash text) STRICT')
    for (const sql of await refusedSchema('sqlite')) db.exec(sql)
    db.close()
    const before = await readFile(file)
    await expect(database.open()).rejects.toThrow('has the schema of version 0.2.0 or older')
    expect((await readFile(file)).equals(before)).toBe(true)
  })
})

/**
 * Returns SQL that creates a database with the former schema. After the statements of each migration, a statement records that migration as
 * applied.
 */
async function refusedSchema(dialect: string): Promise<string[]> {
  const names = (await git('ls-tree', '--name-only', refused, `${MIGRATIONS}/${dialect}/`)).split('\n')
  const all = names.map(async (name) => {
    const sql = await git('show', `${refused}:${name}`)
    return `${sql}\n; INSERT INTO migrations VALUES ('${name.split('/').at(-1)}', '${createHash('sha256').update(sql).digest('hex')}')`
  })
  return await Promise.all(all)
}

async function expectDurable(fleet: Fleet, ingress: RoleProcess): Promise<void> {
  const submitted = await fleet.post(ingress, '/v1/chat/completions', bodyOf('a durable call', false), {
    headers: { prefer: 'respond-async' },
  })
  expect(submitted.status).toBe(202)
  const { id } = (await submitted.json()) as { id: string }
  const headers = { authorization: `Bearer ${TEST_KEY}` }
  const job = await until(
    async () => {
      const answer = await fetch(`${ingress.url}/v1/jobs/${id}`, { headers })
      const seen = (await answer.json()) as { status: string; result: unknown }
      return ['completed', 'failed'].includes(seen.status) ? seen : undefined
    },
    { withinMs: 40_000 },
  )
  expect(job).toMatchObject({ status: 'completed' })
  expect(JSON.stringify(job.result)).toContain('a durable call')
}

async function startBoth(fleet: Fleet, { worker, ingress }: (typeof PAIRS)[number], settings = {}) {
  const treeOf = (version: Version) => (version === 'old' ? oldTree : ROOT)
  // The first process migrates the schema; the second must find it valid.
  const first = await fleet.start('inference', settings, treeOf(worker))
  return { worker: first, ingress: await fleet.start('ingress', settings, treeOf(ingress)) }
}

function bodyOf(content: string, stream: boolean) {
  return { model: 'echo-1', messages: [{ role: 'user', content }], stream }
}

async function chat(fleet: Fleet, ingress: RoleProcess, content: string, stream: boolean) {
  const answer = await fleet.post(ingress, '/v1/chat/completions', bodyOf(content, stream))
  return { status: answer.status, text: await answer.text() }
}
