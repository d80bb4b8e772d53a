/* Tests of the CLI commands that manage projects and their API keys. */

import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { similarNames } from '#services/cli/text/output.ts'
import { KEY_ENDPOINTS } from '#shared/keys/keys.ts'
import { openPostgresDatabase } from '../../support/jobs/stores.ts'
import { emptyDirectory } from '../../support/processes/sluice.ts'
import { sluiceHere } from '../../support/processes/sluice-here.ts'
import { ECHO_MODEL, startStack, until } from '../../support/stack.ts'

const postgres = inject('postgres')
const inSeconds = (seconds: number) => Math.floor(Date.now() / 1_000) + seconds

/**
 * Opens an empty key store of the given kind: a file or a Postgres database. Returns a function that runs `sluice` on it and returns the
 * first line of output.
 */
async function place(kind: string): Promise<(...args: string[]) => Promise<Record<string, unknown>>> {
  const env: Record<string, string> = {}
  if (kind === 'keys.json') env.DATA_DIR = await emptyDirectory()
  else {
    const database = await openPostgresDatabase(postgres ?? '')
    onTestFinished(() => database[Symbol.asyncDispose]())
    env.DATABASE_URL = database.url
  }
  return async (...args) => {
    return (await sluiceHere(args, env)).lines[0] ?? {}
  }
}

describe.each([
  { kind: 'keys.json', isThere: true },
  { kind: 'Postgres', isThere: postgres !== null },
])('project commands of sluice with a key store in $kind', ({ kind, isThere }) => {
  it.skipIf(!isThere)('create and update a project with limits, list its keys, and rotate a key', async () => {
    const run = await place(kind)
    const limits = { requests_per_minute: 600, budget_usd_per_month: 12.5 }
    const project = await run(...'projects create --name search --requests-per-minute 600 --budget 12.50'.split(' '))
    expect(project).toMatchObject({ id: expect.stringMatching(/^proj_/), name: 'search', limits })
    const key = await run(...'keys create --project search --expires 30d --scopes calls,admin --running 4'.split(' '))
    expect(key).toMatchObject({ project: project.id, scopes: ['calls', 'admin'], limits: { running: 4 } })
    expect(Math.abs(Number(key.expires_at) - inSeconds(30 * 86_400))).toBeLessThan(60)
    const changed = await run(...'projects update search --budget default --queued 9'.split(' '))
    expect(changed.limits).toEqual({ requests_per_minute: 600, queued: 9 })
    const rotated = await run('keys', 'rotate', String(key.id), '--grace-period', '2h', '--expires', 'never')
    expect(rotated).toMatchObject({ project: project.id, scopes: key.scopes, limits: key.limits })
    expect([rotated.secret === key.secret, rotated.expires_at]).toEqual([false, undefined])
    const { expires_at } = rotated.replaces as { expires_at: number }
    expect(Math.abs(expires_at - inSeconds(2 * 3_600))).toBeLessThan(60)
    const { keys } = (await run('projects', 'get', String(project.id))) as { keys: { id: string }[] }
    expect(keys.map(({ id }) => id).toSorted()).toEqual([key.id, rotated.id].toSorted())
    expect(await run('keys', 'audit', '--limit', '1')).toMatchObject({
      author: expect.stringMatching(/^cli:./),
      action: 'key.rotated',
      subject: key.id,
      change: { successor: rotated.id },
    })
  })
})

describe('webhook secret commands of sluice', () => {
  it('list and rotate secrets, and refuse to delete the last secret', async () => {
    const env = { DATA_DIR: await emptyDirectory() }
    const run = (command: string) => sluiceHere(['webhook-secrets', ...command.split(' '), '--project', 'key_env'], env)
    const [first] = (await run('show')).lines
    expect(first).toMatchObject({ id: 'default', project: 'key_env', is_default: true })
    expect((await run('delete default')).err).toContain('default is the only secret of key_env')
    const [second] = (await run('create')).lines
    const { lines } = await run('show')
    expect(lines.map(({ secret }) => secret)).toEqual([first?.secret, second?.secret])
    expect(await run('create')).toMatchObject({ code: 5, err: expect.stringContaining('has 2 secrets') })
    expect((await run('list')).lines).not.toContainEqual(expect.objectContaining({ secret: expect.anything() }))
    expect((await run(`delete ${lines[0]?.id}`)).code).toBe(0)
    expect((await run('show')).lines).toEqual([second])
    expect(await run(`delete ${second?.id}`)).toMatchObject({ code: 5, err: expect.stringContaining('is the only') })
    expect(await run('delete whs_none')).toMatchObject({
      code: 5,
      err: expect.stringContaining('Available secrets: whs_'),
    })
  })
})

describe('project and key commands of sluice', () => {
  it('reject an unknown name, suggest similar names, and change nothing', async () => {
    const directory = await emptyDirectory()
    const modelsFile = join(directory, 'models.yaml')
    await writeFile(modelsFile, JSON.stringify({ models: [ECHO_MODEL] }))
    const env = { DATA_DIR: join(directory, 'data'), MODELS_FILE: modelsFile }
    await sluiceHere(['projects', 'create', '--name', 'search'], env)
    const before = await readFile(join(env.DATA_DIR, 'keys.json'), 'utf8')
    const refusals: [string, number, string][] = [
      ['keys create --endpoints /v1/mesages', 2, 'Did you mean /v1/messages? Valid values:'],
      ['keys create --models echo-2', 2, 'Did you mean echo-1? Valid values: echo-1'],
      ['keys create --scopes admn', 2, 'Did you mean admin? Valid values: calls, admin'],
      ['keys create --project serch', 5, 'Did you mean search? To list projects: sluice projects list'],
      ['keys create --expires 2020-01-01', 2, '--expires must be in the future'],
      ['keys create --grace-period 2h', 2, 'keys create does not support --grace-period.'],
      ['keys rotat key_x', 2, 'Did you mean rotate?'],
      ['keys rotate key_env', 5, 'key_env is SLUICE_API_KEY, a setting of the service'],
      ['keys update key_none --name x', 5, 'No key has the id key_none.'],
      ['projects update search', 2, 'Nothing to update.'],
      [
        'projects update search --budget lots',
        2,
        '--budget must be an amount in US dollars per month, such as 25 or 12.50',
      ],
    ]
    for (const [args, code, message] of refusals) {
      const ran = await sluiceHere(args.split(' '), env)
      expect({ args, ...ran }).toMatchObject({ args, code, out: '', err: expect.stringContaining(message) })
    }
    expect(await readFile(join(env.DATA_DIR, 'keys.json'), 'utf8')).toBe(before)
  })

  it('rotate a key so that the new key can read the jobs of the old key in a running service', async () => {
    await using stack = await startStack()
    const env = { DATA_DIR: stack.dataDir }
    const [old] = (await sluiceHere(['keys', 'create'], env)).lines
    const as = (secret: unknown) => ({ headers: { authorization: `Bearer ${secret}` } })
    await until(async () => (await stack.get('/v1/jobs', as(old?.secret))).status === 200)
    const body = { model: 'echo-1', messages: [{ role: 'user', content: 'hi' }] }
    const accepted = await stack.post('/v1/jobs', { endpoint: '/v1/chat/completions', body }, as(old?.secret))
    const { id } = (await accepted.json()) as { id: string }
    const [successor] = (await sluiceHere(['keys', 'rotate', String(old?.id), '--grace-period', '0s'], env)).lines
    expect(successor?.project).toBe(old?.id)
    await until(async () => (await stack.get(`/v1/jobs/${id}`, as(successor?.secret))).status === 200)
    await until(async () => (await stack.get(`/v1/jobs/${id}`, as(old?.secret))).status === 401)
    const again = await sluiceHere(['keys', 'rotate', String(old?.id)], env)
    expect([again.code, again.err]).toEqual([5, expect.stringContaining(`sluice keys create --project ${old?.id}`)])
    const [project] = (await sluiceHere(['projects', 'update', String(old?.id), '--queued', '3'], env)).lines
    expect(project).toMatchObject({ id: old?.id, limits: { queued: 3 } })
  })
})

describe('suggestions for a mistyped name', () => {
  it.each([
    ['/v1/mesages', KEY_ENDPOINTS, ['/v1/messages']],
    ['/v1/chat', KEY_ENDPOINTS, ['/v1/chat/completions']],
    ['Search', ['search', 'research', 'index'], ['search']],
    ['x', ['calls', 'admin'], []],
    ['x'.repeat(100_000), ['x'.repeat(64), 'calls'], ['x'.repeat(64)]],
  ])('contain the names similar to %j', (wrong, names, near) => {
    expect(similarNames(wrong, names)).toEqual(near)
  })
})
