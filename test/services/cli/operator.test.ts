/** The operator's commands, against a running service. */
import { describe, expect, it } from 'vitest'
import { COMMANDS } from '#services/cli/commands/commands.ts'
import { bury } from '#shared/jobs/dead-letters.ts'
import { type Admin, openAdmin, secretOf } from '../../support/admin.ts'
import { sluiceHere } from '../../support/processes/sluice-here.ts'
import { until } from '../../support/stack.ts'

const ENDLESS = '!echo tokens=100000 delay_ms=40'

/** Runs commands with somebody's key. */
function of({ stack }: Admin, who: string) {
  return (...args: string[]) => sluiceHere(args, { SLUICE_URL: stack.url, SLUICE_API_KEY: secretOf(who) })
}

describe('an operator at the command line', () => {
  it('lists, shows, cancels and runs again the jobs of every project with the commands that callers use', async () => {
    await using door = await openAdmin()
    const [op, alice] = [of(door, 'op'), of(door, 'alice')]
    const failed = await door.submit('bob', '!echo fail=upstream_refused')
    const running = await door.submit('alice', ENDLESS)
    await until(async () => (await door.job('bob', failed)).status === 'failed')
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
      err: expect.stringContaining('scope admin'),
    })
    expect((await op('redrive', failed)).lines).toMatchObject([{ id: failed, new_id: expect.any(String) }])
    expect((await op('cancel', running)).lines).toMatchObject([{ id: running }])
    await until(async () => (await op('get', running, '--wait', '5')).code === 3)
    const done = await door.submit('alice', 'x')
    const asked = await op('get', done, '--wait', '20', '--result')
    expect(asked).toMatchObject({ code: 5, lines: [], err: expect.stringContaining('belongs to the project alice') })
  })

  it('moves many jobs at once, after a dry run', async () => {
    await using door = await openAdmin()
    const op = of(door, 'op')
    const failed = await door.submit('bob', '!echo fail=upstream_refused')
    await until(async () => (await door.job('bob', failed)).status === 'failed')
    const dry = await op('redrive', '--all-projects', '--dry-run')
    expect(dry).toMatchObject({ code: 0, lines: [{ id: failed, dry_run: true }] })
    expect(dry.err).toContain('Nothing was done.')
    expect((await op('redrive', '--project', 'bob', '--max', '1')).lines).toMatchObject([
      { new_id: expect.any(String) },
    ])
    expect(await op('redrive', '--project', 'bob', '--status', 'expired')).toMatchObject({
      lines: [],
      err: 'No such jobs.\n',
    })
    const later = await door.submit('alice', 'x', { run_at: Math.floor(Date.now() / 1_000) + 3_600 })
    const stopped = await op('cancel', '--project', 'alice', '--status', 'queued')
    expect(stopped.lines).toMatchObject([{ id: later, status: 'cancelled' }])
  })

  it('sees workers and pools, drains one and pauses the other', async () => {
    await using door = await openAdmin()
    const op = of(door, 'op')
    const worker = (await op('workers')).lines.find(({ role }) => role === 'inference')
    expect((await op('drain', String(worker?.id))).lines).toMatchObject([{ draining: true }])
    expect((await op('drain', String(worker?.id), '--undo')).lines).toMatchObject([{ draining: false }])
    expect((await op('pools')).lines.map(({ id }) => id)).toContain('inference')
    expect((await op('pause', 'model', 'echo-1')).lines).toMatchObject([{ what: 'model', id: 'echo-1', paused: true }])
    const waiting = await door.submit('alice', 'x')
    expect((await op('get', waiting)).lines).toMatchObject([{ waits: { reason: 'model_paused' } }])
    expect((await op('resume', 'model', 'echo-1')).lines).toMatchObject([{ paused: false }])
    await until(async () => (await door.job('alice', waiting)).status === 'completed')
    expect((await op('pause', 'pool', 'lost')).err).toContain('There are: inference')
    expect(await op('deliveries')).toMatchObject({ code: 0, lines: [] })
  })

  it('waits for a drained worker to be empty, or says what is left', async () => {
    await using door = await openAdmin()
    const op = of(door, 'op')
    const running = await door.submit('alice', ENDLESS)
    await until(async () => (await door.job('alice', running)).status === 'in_progress')
    const boot = String((await op('workers')).lines.find(({ role }) => role === 'inference')?.id)
    await until(async () => (await op('workers')).lines.some(({ id, running: count }) => id === boot && count === 1))
    const late = await op('drain', boot, '--wait', '0')
    expect(late).toMatchObject({ code: 5, lines: [], err: expect.stringContaining('it has 1 job left.') })
    expect(late.err).toContain('still has 1 after 0 s')
    const waiting = op('drain', boot, '--wait', '60')
    expect((await op('cancel', running)).code).toBe(0)
    expect(await waiting).toMatchObject({ code: 0, lines: [{ id: boot, draining: true, running: 0 }] })
    const lost = await op('drain', 'wrk_lost', '--wait', '1')
    expect(lost).toMatchObject({ code: 5, err: expect.stringContaining("No worker 'wrk_lost' is alive") })
    expect(lost.err).not.toContain('SLUICE_URL')
  })

  it('asks for what no worker could run, discards one, and puts nothing back where there is nothing', async () => {
    await using door = await openAdmin()
    const op = of(door, 'op')
    await bury(door.stack.broker, 'inference', 'jobs.inference/0@9', Buffer.from('not a job'))
    const [letter] = (await op('dead-letters')).lines
    expect(await op('dead-letters', 'discard', String(letter?.id))).toMatchObject({
      ...{ code: 0, lines: [{ id: letter?.id, deleted: true }] },
    })
    expect((await op('dead-letters')).lines).toEqual([])
    expect(await op('dead-letters', 'discard', '999')).toMatchObject({
      ...{ code: 5, err: expect.stringContaining('dead-letters lists them') },
    })
    expect(await op('dead-letters', '--pool', 'inference')).toMatchObject({ code: 0, lines: [] })
    expect((await op('dead-letters', '--pool', 'lost')).code).toBe(5)
    const dry = await op('dead-letters', 'redrive', '--dry-run')
    expect(dry).toMatchObject({ code: 0, lines: [], err: 'None that can run again.\n' })
  })

  it.each([
    { args: ['dead-letters', '--max', '5'], says: '--max goes with redrive' },
    { args: ['dead-letters', 'redrive', '--limit', '5'], says: '--limit goes without redrive' },
    { args: ['dead-letters', 'discard'], says: 'Which dead letters?' },
    { args: ['dead-letters', 'discard', '7', '--pool', 'code'], says: '--pool goes without discard' },
    { args: ['dead-letters', 'show'], says: 'show is not understood' },
    { args: ['drain', 'wrk_1', '--undo', '--wait', '5'], says: 'Give --wait or --undo' },
    { args: ['drain', 'wrk_1', '--wait', 'x'], says: 'give a whole number' },
    { args: ['jobs', '--pool', 'code'], says: '--pool and --model narrow' },
    { args: ['jobs', '--all-projects', '--project', 'p'], says: 'not both' },
    { args: ['jobs', '--project', 'p', '--endpoint', '/v1/embeddings'], says: '--endpoint does not go with' },
    { args: ['cancel', '--status', 'queued'], says: '--status goes with --all-projects' },
    { args: ['cancel', 'job_1', '--all-projects'], says: 'not both' },
    { args: ['redrive', '--project', 'p', '--max', '1001'], says: 'from 1 to 1000' },
    { args: ['redrive', '--project', 'p', '--status', 'completed'], says: 'only failed, expired' },
    { args: ['pause', 'model'], says: 'Give model MODEL or pool POOL.' },
    { args: ['resume', 'model', 'a', 'b'], says: 'b is one too many' },
    { args: ['drain'], says: 'WORKER is missing.' },
    { args: ['deliveries', 'retry'], says: 'Which messages?' },
    { args: ['deliveries', '--status', 'lost'], says: 'give pending, failed or delivered' },
  ])('refuses $args with exit code 2 and says why', async ({ args, says }) => {
    expect(await sluiceHere(args, {})).toMatchObject({ code: 2, lines: [], err: expect.stringContaining(says) })
  })

  it.each(['workers', 'pools', 'drain', 'pause', 'resume', 'deliveries', 'dead-letters'])(
    'explains %s with examples',
    (name) => {
      expect(COMMANDS[name]?.help).toContain(`Usage: sluice ${name}`)
      expect(COMMANDS[name]?.help).toMatch(/Examples?:\n {2}sluice /)
    },
  )
})
