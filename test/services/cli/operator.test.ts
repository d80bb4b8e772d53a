/* Tests of the CLI commands for operators, such as drain and pause, against a running service. */

import { mkdtemp, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { COMMANDS } from '#services/cli/commands.ts'
import { writeDeadLetter } from '#shared/jobs/dead-letters.ts'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { sluiceHere, sluiceTable } from '../../support/processes/sluice-here.ts'
import { until } from '../../support/stack.ts'

const ENDLESS = '!echo tokens=100000 delay_ms=40'

/** Returns a function that runs `sluice` with the API key of a user. */
function commandsAs({ stack }: Admin, user: string) {
  return (...args: string[]) => sluiceHere(args, { SLUICE_URL: stack.url, SLUICE_API_KEY: secretOf(user) })
}

describe('operator commands of sluice', () => {
  it('list, show, cancel and redrive jobs of every project', async () => {
    await using admin = await openAdmin()
    const [op, alice] = [commandsAs(admin, 'op'), commandsAs(admin, 'alice')]
    const failed = await admin.submit('bob', '!echo fail=upstream_refused')
    const running = await admin.submit('alice', ENDLESS)
    await until(async () => (await admin.job('bob', failed)).status === 'failed')
    const ids = async (...args: string[]) => (await op('jobs', ...args)).lines.map(({ id }) => id)
    expect(await ids('--all-projects')).toEqual([running, failed])
    expect(await ids('--project', 'bob')).toEqual([failed])
    expect(await ids('--all-projects', '--status', 'failed', '--since', '1h', '--pool', 'inference')).toEqual([failed])
    expect((await op('get', failed)).lines).toMatchObject([
      { id: failed, project: 'bob', status: 'failed', waits: null },
    ])
    expect(await alice('get', failed)).toMatchObject({ code: 5, err: expect.stringContaining('job_not_found') })
    expect(await alice('jobs', '--all-projects')).toMatchObject({
      code: 5,
      err: expect.stringContaining("scope 'admin'"),
    })
    expect((await op('redrive', failed)).lines).toMatchObject([{ id: failed, new_id: expect.any(String) }])
    expect((await op('cancel', running)).lines).toMatchObject([{ id: running }])
    await until(async () => (await op('get', running, '--wait', '5')).code === 3)
    const done = await admin.submit('alice', 'x')
    const asked = await op('get', done, '--wait', '20', '--result')
    expect(asked).toMatchObject({ code: 5, lines: [], err: expect.stringContaining('belongs to project alice') })
  })

  it('list and cancel batches of every project', async () => {
    await using admin = await openAdmin()
    const [op, alice, bob] = [commandsAs(admin, 'op'), commandsAs(admin, 'alice'), commandsAs(admin, 'bob')]
    const batchOf = async (user: typeof op, content: string) => {
      const body = { model: 'echo-1', max_tokens: 100_000, messages: [{ role: 'user', content }] }
      const path = join(await mkdtemp(join(tmpdir(), 'sluice-')), 'r.jsonl')
      await writeFile(path, JSON.stringify({ custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body }))
      return String((await user('batch', path)).lines[0]?.id)
    }
    const short = await batchOf(bob, 'x')
    const long = await batchOf(alice, ENDLESS)
    const message = { model: 'echo-1', max_tokens: 9, messages: [{ role: 'user', content: 'x' }] }
    const created = await admin.as('bob').post('/v1/messages/batches', {
      requests: [{ custom_id: 'a', params: message }],
    })
    const ofMessages = ((await created.json()) as { id: string }).id
    const listed = async (...args: string[]) => (await op('batches', ...args)).lines
    await until(async () => (await listed('--project', 'bob')).every(({ status }) => status === 'completed'))
    expect((await listed('--all-projects')).map(({ id, project }) => [id, project])).toEqual([
      [ofMessages, 'bob'],
      [long, 'alice'],
      [short, 'bob'],
    ])
    expect((await listed('--project', 'bob')).map(({ id }) => id)).toEqual([ofMessages, short])
    expect((await listed('--project', 'bob', '--limit', '1')).map(({ id }) => id)).toEqual([ofMessages])
    const page = await (await admin.as('op').get(`/v1/admin/batches?project=bob&after=${ofMessages}`)).json()
    expect(page).toMatchObject({ data: [{ id: short }], has_more: false })
    expect(await alice('batches', '--all-projects')).toMatchObject({ code: 5 })
    expect(await bob('cancel', long)).toMatchObject({ code: 5, err: expect.stringContaining('job_not_found') })
    expect(await op('cancel', long)).toMatchObject({ code: 0 })
    const read = async () => await (await admin.as('op').get(`/v1/admin/batches/${long}`)).json()
    await until(async () => ((await read()) as { status: string }).status === 'cancelled')
    const again = await admin.as('op').post(`/v1/admin/batches/${long}/cancel`)
    expect([again.status, await again.json()]).toMatchObject([409, { error: { code: 'job_already_finished' } }])
    expect((await admin.as('op').get('/v1/admin/batches/batch_x')).status).toBe(404)
  })

  it('cancel and redrive jobs in bulk after a dry run', async () => {
    await using admin = await openAdmin()
    const op = commandsAs(admin, 'op')
    const failed = await admin.submit('bob', '!echo fail=upstream_refused')
    await until(async () => (await admin.job('bob', failed)).status === 'failed')
    const dry = await op('redrive', '--all-projects', '--dry-run')
    expect(dry).toMatchObject({ code: 0, lines: [{ id: failed, dry_run: true }] })
    expect(dry.err).toContain('Dry run: nothing was changed.')
    expect((await op('redrive', '--project', 'bob', '--max', '1')).lines).toMatchObject([
      { new_id: expect.any(String) },
    ])
    expect(await op('redrive', '--project', 'bob', '--status', 'expired')).toMatchObject({
      lines: [],
      err: 'No matching jobs.\n',
    })
    const later = await admin.submit('alice', 'x', { run_at: Math.floor(Date.now() / 1_000) + 3_600 })
    const stopped = await op('cancel', '--project', 'alice', '--status', 'queued')
    expect(stopped.lines).toMatchObject([{ id: later, status: 'cancelled' }])
  })

  it('list workers and pools, drain a worker and pause a model', async () => {
    await using admin = await openAdmin()
    const op = commandsAs(admin, 'op')
    const env = { SLUICE_URL: admin.stack.url, SLUICE_API_KEY: secretOf('op') }
    const worker = (await op('workers')).lines.find(({ role }) => role === 'inference')
    expect((await op('drain', String(worker?.id))).lines).toMatchObject([{ draining: true }])
    expect((await op('drain', String(worker?.id), '--undo')).lines).toMatchObject([{ draining: false }])
    expect((await op('pools')).lines.map(({ id }) => id)).toContain('inference')
    // The column `calls` counts only calls of the ingress that handles this request. All other columns cover the whole fleet.
    const [head = '', ...rows] = (await sluiceTable(['pools'], env)).split('\n')
    expect(head).toMatch(/^pool +workers +slots +free +calls +jobs /)
    expect(rows.find((row) => row.startsWith('inference'))).toMatch(/^inference +1 +\d+ +\d+ +0 +0 /)
    expect(rows.find((row) => row.startsWith('echo-1'))).toMatch(/^echo-1 +inference +0\/\d+ +0$/)
    expect((await op('pause', 'model', 'echo-1')).lines).toMatchObject([
      { target: 'model', id: 'echo-1', paused: true },
    ])
    const waiting = await admin.submit('alice', 'x')
    expect((await op('get', waiting)).lines).toMatchObject([{ waits: { reason: 'model_paused' } }])
    expect((await op('resume', 'model', 'echo-1')).lines).toMatchObject([{ paused: false }])
    await until(async () => (await admin.job('alice', waiting)).status === 'completed')
    expect((await op('pause', 'pool', 'lost')).err).toContain('Known pools: inference')
    expect(await op('deliveries')).toMatchObject({ code: 0, lines: [] })
  })

  it('wait until a worker is drained, or print the number of jobs in flight when the timeout expires', async () => {
    await using admin = await openAdmin()
    const op = commandsAs(admin, 'op')
    const running = await admin.submit('alice', ENDLESS)
    await until(async () => (await admin.job('alice', running)).status === 'in_progress')
    const boot = String((await op('workers')).lines.find(({ role }) => role === 'inference')?.id)
    await until(async () => (await op('workers')).lines.some(({ id, running: count }) => id === boot && count === 1))
    const late = await op('drain', boot, '--wait', '0')
    expect(late).toMatchObject({ code: 5, lines: [], err: expect.stringContaining('is draining; 1 job in flight.') })
    expect(late.err).toContain('still has 1 job in flight after 0 s')
    const waiting = op('drain', boot, '--wait', '60')
    expect((await op('cancel', running)).code).toBe(0)
    expect(await waiting).toMatchObject({ code: 0, lines: [{ id: boot, draining: true, running: 0 }] })
    const lost = await op('drain', 'wrk_lost', '--wait', '1')
    expect(lost).toMatchObject({ code: 5, err: expect.stringContaining("No live worker has the id 'wrk_lost'") })
    expect(lost.err).not.toContain('SLUICE_URL')
  })

  it('list, discard and redrive dead letters', async () => {
    await using admin = await openAdmin()
    const op = commandsAs(admin, 'op')
    await writeDeadLetter(admin.stack.broker, 'inference', 'jobs.inference/0@9', Buffer.from('not a job'))
    const [letter] = (await op('dead-letters')).lines
    expect(await op('dead-letters', 'discard', String(letter?.id))).toMatchObject({
      ...{ code: 0, lines: [{ id: letter?.id, deleted: true }] },
    })
    expect((await op('dead-letters')).lines).toEqual([])
    expect(await op('dead-letters', 'discard', '999')).toMatchObject({
      ...{ code: 5, err: expect.stringContaining('dead-letters lists all dead letters') },
    })
    expect(await op('dead-letters', '--pool', 'inference')).toMatchObject({ code: 0, lines: [] })
    expect((await op('dead-letters', '--pool', 'lost')).code).toBe(5)
    const dry = await op('dead-letters', 'redrive', '--dry-run')
    expect(dry).toMatchObject({ code: 0, lines: [], err: 'No dead letters can be requeued.\n' })
  })

  it.each([
    { args: ['dead-letters', '--max', '5'], message: '--max requires dead-letters redrive' },
    {
      args: ['dead-letters', 'redrive', '--limit', '5'],
      message: '--limit cannot be combined with dead-letters redrive',
    },
    { args: ['dead-letters', 'discard'], message: 'Missing argument: ID of a dead letter.' },
    {
      args: ['dead-letters', 'discard', '7', '--pool', 'code'],
      message: '--pool cannot be combined with dead-letters discard',
    },
    { args: ['dead-letters', 'show'], message: "Unexpected argument: 'show'." },
    { args: ['drain', 'wrk_1', '--undo', '--wait', '5'], message: 'Use either --wait or --undo' },
    { args: ['drain', 'wrk_1', '--wait', 'x'], message: '--wait must be a whole number' },
    { args: ['jobs', '--pool', 'code'], message: '--pool and --model require' },
    { args: ['jobs', '--all-projects', '--project', 'p'], message: 'not both' },
    { args: ['jobs', '--project', 'p', '--endpoint', '/v1/embeddings'], message: '--endpoint cannot be combined with' },
    { args: ['cancel', '--status', 'queued'], message: '--status requires --all-projects' },
    { args: ['cancel', 'job_1', '--all-projects'], message: 'not both' },
    { args: ['redrive', '--project', 'p', '--max', '1001'], message: 'from 1 to 1000' },
    { args: ['redrive', '--project', 'p', '--status', 'completed'], message: '--status must be failed, expired' },
    { args: ['pause', 'model'], message: 'Missing argument: model MODEL or pool POOL.' },
    { args: ['resume', 'model', 'a', 'b'], message: "expected one model, also got 'b'" },
    { args: ['drain'], message: 'Missing argument: WORKER.' },
    { args: ['deliveries', 'retry'], message: 'Missing argument: ID of a delivery.' },
    { args: ['deliveries', '--status', 'lost'], message: "--status must be pending, failed or delivered; got 'lost'." },
  ])('exit with code 2 and the reason if the arguments are $args', async ({ args, message }) => {
    expect(await sluiceHere(args, {})).toMatchObject({ code: 2, lines: [], err: expect.stringContaining(message) })
  })

  it.each(['workers', 'pools', 'drain', 'pause', 'resume', 'deliveries', 'dead-letters'])(
    'print help for %s with examples',
    (name) => {
      expect(COMMANDS[name]?.help).toContain(`Usage: sluice ${name}`)
      expect(COMMANDS[name]?.help).toMatch(/Examples?:\n {2}sluice /)
    },
  )
})
