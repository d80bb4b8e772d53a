/** Health checks for operators: current problems in the words of `sluice doctor`, and no false alarms. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { type FleetFacts, fleetFindings } from '#shared/doctor/fleet.ts'
import { writeDeadLetter } from '#shared/jobs/dead-letters.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { openAdmin } from '../../../support/admin.ts'
import { startStack, until } from '../../../support/stack.ts'

interface Finding {
  readonly check: string
  readonly status: string
  readonly message: string
  readonly remediation: string | null
}
const dataOf = async (response: Response) => ((await response.json()) as { data: Finding[] }).data

describe('GET /v1/admin/findings', () => {
  it('returns problems, paused models and dead letters to operators only', async () => {
    await using admin = await openAdmin()
    const found = async (of = '') => await dataOf(await admin.as('op').get(`/v1/admin/findings${of}`))
    expect((await admin.as('alice').get('/v1/admin/findings')).status).toBe(403)
    expect((await admin.as('op').get('/v1/admin/findings?of=nothing')).status).toBe(400)
    await writeDeadLetter(admin.stack.broker, 'inference', 'jobs.inference/0@9', Buffer.from('not a job'))
    const machine = await found('?of=machine')
    expect(machine.map(({ check }) => check)).toEqual(expect.arrayContaining(['data', 'models', 'postgres', 'kafka']))
    expect(machine.find(({ check }) => check === 'models')).toMatchObject({
      status: 'ok',
      message: expect.stringContaining('echo-1'),
    })
    const dead = (await found('?of=fleet')).find(({ check }) => check === 'dead')
    expect(dead).toMatchObject({ status: 'warn', message: expect.stringMatching(/^1 dead letter: /) })
    await admin.as('op').post('/v1/admin/models/echo-1/pause')
    await until(async () =>
      (await found()).some(
        ({ check, remediation }) => check === 'pause' && remediation?.includes('resume model echo-1'),
      ),
    )
  })

  it('reports the disk of BLOB_DIR if that directory is outside of DATA_DIR', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'sluice-blobs-'))
    onTestFinished(() => rmSync(directory, { recursive: true }))
    await using admin = await openAdmin({ settings: { BLOB_DIR: directory } })
    const machine = await dataOf(await admin.as('op').get('/v1/admin/findings?of=machine'))
    expect(machine.find(({ check }) => check === 'blobs')?.message).toMatch(/^\/.*(free|full)$/)
  })

  it('includes the metrics of the process, even if METRICS_PORT hides them from callers', async () => {
    await using admin = await openAdmin({ settings: { METRICS_PORT: '0' } })
    expect((await admin.as('op').get('/metrics')).status).toBe(404)
    expect((await admin.as('alice').get('/v1/admin/metrics')).status).toBe(403)
    const answer = await admin.as('op').get('/v1/admin/metrics')
    expect(answer.headers.get('content-type')).toContain('text/plain')
    expect(await answer.text()).toContain('sluice_attached_jobs{pool="inference"')
  })

  it('reports budgets that have no effect, because no model has a price', async () => {
    await using admin = await openAdmin()
    const found = async () => await dataOf(await admin.as('op').get('/v1/admin/findings?of=fleet'))
    expect((await found()).map(({ check }) => check)).toEqual(['fleet'])
    await admin.as('op').post('/v1/admin/projects', { name: 'lab', limits: { budget_usd_per_month: 5 } })
    const message = '1 budget has no effect: no model has a price, so each call costs $0.'
    await until(async () => (await found()).some((finding) => finding.message === message))
  })

  it('names a model whose upstream fails repeatedly', async () => {
    const upstream = { type: 'openai', base_url: 'http://127.0.0.1:1/v1', breaker: { failures: 2, reset_ms: 60_000 } }
    await using stack = await startStack({ models: [{ id: 'gone', engine: upstream }] })
    const operator = keyOf('sk-op-0123456789', { id: 'op', project: 'ops', scopes: ['admin'] })
    writeFileSync(join(stack.dataDir, 'keys.json'), JSON.stringify({ keys: [operator] }))
    const headers = { authorization: 'Bearer sk-op-0123456789' }
    const body = { model: 'gone', messages: [{ role: 'user', content: 'Are you there?' }] }
    await until(
      async () => {
        await stack.post('/v1/chat/completions', body)
        const response = await stack.get('/v1/admin/findings?of=fleet', { headers })
        if (response.status !== 200) return false
        const failing = (await dataOf(response)).find(({ check }) => check === 'upstream')
        return failing?.status === 'fail' && failing.message.includes("'gone'")
      },
      { withinMs: 60_000 },
    )
    const workers = (await (await stack.get('/v1/admin/workers', { headers })).json()) as { data: object[] }
    expect(workers.data).toContainEqual(expect.objectContaining({ role: 'inference', open_circuits: ['gone'] }))
  })
})

describe('the fleet findings', () => {
  const pool = {
    id: 'inference',
    workers: 2,
    slots: 8,
    free: 4,
    waiting: 0,
    oldestSeconds: undefined,
    fullModels: [],
    isNeeded: true,
  }
  const facts: FleetFacts = {
    broker: { name: 'memory', isReachable: true },
    store: { name: 'sqlite', isReachable: true, isFull: false },
    pools: [pool],
    durable: { count: 49, max: 100 },
    paused: [],
    failing: [],
    uselessBudgets: 0,
    deadLetters: { count: 0, hasMore: false },
  }
  const checksOf = (more: Partial<FleetFacts>) =>
    fleetFindings({ ...facts, ...more }).map(({ check, status }) => `${check} ${status}`)

  it.each<[string, Partial<FleetFacts>, string[]]>([
    ['no problem', {}, ['fleet ok']],
    ['the broker is down', { broker: { name: 'kafka', isReachable: false } }, ['broker fail']],
    ['the store is down', { store: { name: 'postgres', isReachable: false, isFull: false } }, ['store fail']],
    ['the disk of the store is full', { store: { name: 'postgres', isReachable: true, isFull: true } }, ['store fail']],
    ['jobs wait without a worker', { pools: [{ ...pool, workers: 0, slots: 0, waiting: 3 }] }, ['pool fail']],
    ['a pool has no workers', { pools: [{ ...pool, workers: 0, slots: 0 }] }, ['pool warn']],
    ['an unneeded pool has no workers', { pools: [{ ...pool, workers: 0, isNeeded: false }] }, ['fleet ok']],
    ['all workers are drained', { pools: [{ ...pool, slots: 0 }] }, ['pool warn']],
    ['jobs wait for long', { pools: [{ ...pool, free: 0, waiting: 9, oldestSeconds: 90 }] }, ['pool warn']],
    [
      'jobs wait for long for a model at its limit',
      { pools: [{ ...pool, oldestSeconds: 90, fullModels: [{ model: 'm', slots: 2 }] }] },
      ['pool warn'],
    ],
    ['half of the job quota is used', { durable: { count: 50, max: 100 } }, ['room warn']],
    ['the job quota is used up', { durable: { count: 100, max: 100 } }, ['room fail']],
    ['a budget exists, but no model has a price', { uselessBudgets: 1 }, ['budgets warn']],
    ['jobs wait for long, but slots are free', { pools: [{ ...pool, waiting: 9, oldestSeconds: 90 }] }, ['fleet ok']],
    [
      'several problems, the worst first',
      { paused: [{ target: 'pool', id: 'code' }], failing: [{ model: 'm', workers: 1 }] },
      ['upstream fail', 'pause warn'],
    ],
  ])('report this state: %s', (_, more, checks) => {
    expect(checksOf(more)).toEqual(checks)
    for (const { status, remediation } of fleetFindings({ ...facts, ...more }))
      expect(status === 'ok' || Boolean(remediation)).toBe(true)
  })
})
