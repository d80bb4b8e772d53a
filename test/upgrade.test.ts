/**
 * A rolling upgrade: processes of the oldest supported version and of this version in one fleet.
 *
 * The old source tree comes from the git history. A change that breaks compatibility needs two releases; {@link OLDEST} moves forward only
 * after the first of them is deployed everywhere.
 */
import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, readFile, rm, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { openPostgresDatabase } from './support/jobs/stores.ts'
import { type Fleet, openFleet, type RoleProcess } from './support/processes/fleet.ts'
import { TEST_KEY, until } from './support/stack.ts'

/** The oldest version whose processes work next to those of this version. Release 0.2.0 renamed control records. */
const OLDEST = '38d49f02d6c3627cb1e05468067027f027fe260a'

const INSTALL_MS = 120_000

const run = promisify(execFile)
const ROOT = join(import.meta.dirname, '..')
const kafka = inject('kafka')
const postgres = inject('postgres')
const missing = await whyNoHistory()
if (missing !== undefined) process.stderr.write(`Tests of upgrades are skipped: ${missing}\n`)

/** Reason why the old source tree is unavailable, such as a shallow clone; undefined if it is available. */
async function whyNoHistory(): Promise<string | undefined> {
  const asked = run('git', ['cat-file', '-e', `${OLDEST}^{commit}`], { cwd: ROOT })
  return await asked.then(
    () => undefined,
    () => `commit ${OLDEST.slice(0, 8)} is not in the history here (git fetch --unshallow)`,
  )
}

let scratch: string
let oldTree: string
beforeAll(async () => {
  if (missing !== undefined || !kafka) return
  scratch = await mkdtemp(join(tmpdir(), 'sluice-old-'))
  oldTree = join(scratch, 'tree')
  await mkdir(oldTree)
  const archive = join(scratch, 'tree.tar')
  await run('git', ['archive', '--output', archive, OLDEST], { cwd: ROOT })
  await run('tar', ['-xf', archive, '-C', oldTree])
  await symlink(join(ROOT, 'node_modules'), join(oldTree, 'node_modules'))
  await installRemoved()
}, INSTALL_MS)
afterAll(async () => {
  if (scratch) await rm(scratch, { recursive: true, force: true })
})

/** Installs packages that only the old version needs in the directory above its tree, where Node finds them after `node_modules`. */
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
    'answers calls with and without streaming and durable calls: $worker workers, $ingress ingresses',
    async (versions) => {
      await using database = postgres ? await openPostgresDatabase(postgres) : undefined
      await using fleet = await openFleet(kafka ?? '')
      const settings: Record<string, string> = database ? { DATABASE_URL: database.url } : {}
      const { ingress, worker } = await startBoth(fleet, versions, settings)
      expect((await chat(fleet, ingress, 'the first', false)).status).toBe(200)
      // Sent before the first heartbeat of the worker, so the ingress has no capacity report yet.
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
      // Unsolicited messages such as heartbeats must be readable by the other version.
      const lost = [...ingress.log, ...worker.log].filter(({ msg }) =>
        /^(reply|record) not understood/.test(String(msg)),
      )
      expect(lost).toEqual([])
    },
    240_000,
  )
})

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
