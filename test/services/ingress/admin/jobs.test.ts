/* Tests of the admin API for jobs: the jobs of all projects, the reasons why they are pending, and actions on them. */

import { describe, expect, it } from 'vitest'
import { openAdmin, type Page } from '../../../support/admin.ts'
import { until } from '../../../support/stack.ts'

describe('the admin API for jobs', () => {
  it('is open only to keys with the admin scope, and reports how to create such a key', async () => {
    await using door = await openAdmin()
    for (const path of ['jobs', 'workers', 'pools', 'pauses', 'deliveries', 'jobs/job_00000000']) {
      const refused = await door.as('alice').get(`/v1/admin/${path}`)
      expect(refused.status).toBe(403)
      const { error } = (await refused.json()) as { error: { code: string; message: string } }
      expect(error.code).toBe('permission_denied')
      expect(error.message).toContain('sluice keys create --scopes admin')
    }
    expect((await door.as('alice').post('/v1/admin/pools/inference/pause')).status).toBe(403)
    expect((await door.as('op').get('/v1/admin/workers')).status).toBe(200)
    // A key whose only scope is `admin` must not use the API for callers.
    expect((await door.as('op').get('/v1/jobs')).status).toBe(403)
  })

  it('refuses invalid parameters with the name of the parameter', async () => {
    await using door = await openAdmin()
    const op = door.as('op')
    const codeOf = async (response: Response) =>
      ((await response.json()) as { error: { code: string; param: string | null; message: string } }).error
    expect(await codeOf(await op.get('/v1/admin/jobs?limit=0'))).toMatchObject({ param: 'limit' })
    expect(await codeOf(await op.get('/v1/admin/jobs?colour=red'))).toMatchObject({ code: 'unsupported_parameter' })
    expect(await codeOf(await op.get('/v1/admin/jobs?status=lost'))).toMatchObject({ param: 'status' })
    expect(await codeOf(await op.get('/v1/admin/jobs?pool=lost'))).toMatchObject({ param: 'pool' })
    expect(await codeOf(await op.get('/v1/admin/jobs?after=x'))).toMatchObject({ param: 'after' })
    expect(await codeOf(await op.get('/v1/admin/jobs?project=%00'))).toMatchObject({ param: 'project' })
    expect(await codeOf(await op.get('/v1/admin/jobs/x'))).toMatchObject({ code: 'job_not_found' })
    expect(await codeOf(await op.post('/v1/admin/jobs/cancel', { max: 0 }))).toMatchObject({ param: 'max' })
    expect(await codeOf(await op.post('/v1/admin/jobs/redrive', { all: true }))).toMatchObject({ param: 'all' })
    expect(await codeOf(await op.post('/v1/admin/pools/lost/pause'))).toMatchObject({
      code: null,
      message: expect.stringMatching(/^(There is n|N)o /),
    })
    expect(await codeOf(await op.post('/v1/admin/models/lost/pause'))).toMatchObject({ code: 'model_not_found' })
    expect(await codeOf(await op.post('/v1/admin/workers/wrk_lost/drain'))).toMatchObject({
      code: null,
      message: expect.stringMatching(/^(There is n|N)o /),
    })
    expect(await codeOf(await op.post('/v1/admin/deliveries/evt_lost0000/retry'))).toMatchObject({
      code: null,
      message: expect.stringMatching(/^(There is n|N)o /),
    })
  })
})

describe('the jobs of all projects in the admin API', () => {
  it('are listed with their project, but without input and output', async () => {
    await using door = await openAdmin()
    const [first, second] = [await door.submit('alice', 'a secret'), await door.submit('bob', 'a secret')]
    const failed = await door.submit('bob', '!echo fail=upstream_refused')
    const later = await door.submit('alice', 'a secret', { run_at: Math.floor(Date.now() / 1_000) + 3_600 })
    const op = door.as('op')
    const listed = async (query = ''): Promise<Page> => (await (await op.get(`/v1/admin/jobs${query}`)).json()) as Page
    await until(async () => (await listed('?status=completed')).data.length === 2)
    await until(async () => (await listed('?status=failed')).data.length === 1)
    const ids = async (query: string) => (await listed(query)).data.map(({ id }) => id)
    expect(await ids('')).toEqual([later, failed, second, first])
    expect(await ids('?project=bob')).toEqual([failed, second])
    expect(await ids('?project=bob&status=failed')).toEqual([failed])
    expect(await ids('?status=queued')).toEqual([later])
    expect([await ids('?status=scheduled'), await ids('?status=retrying')]).toEqual([[later], []])
    expect(await ids('?status=failed,queued&model=echo-1&pool=inference')).toEqual([later, failed])
    expect(await ids('?pool=embeddings')).toEqual([])
    expect(await ids('?model=another')).toEqual([])
    expect(await ids(`?since=${Math.floor(Date.now() / 1_000) + 60}`)).toEqual([])
    const page = await listed('?limit=3')
    expect(page).toMatchObject({ has_more: true, last_id: second })
    expect(await listed(`?limit=3&after=${page.last_id}`)).toMatchObject({ has_more: false, data: [{ id: first }] })
    const text = JSON.stringify([await listed(), await (await op.get(`/v1/admin/jobs/${second}`)).json()])
    expect(text).not.toContain('a secret')
    expect(text).not.toContain('"result"')
    expect(page.data[2]).toMatchObject({ id: second, project: 'bob', model: 'echo-1', status: 'completed' })
  })

  it('can be cancelled and redriven by an operator, with one audit event per request', async () => {
    await using door = await openAdmin()
    const op = door.as('op')
    const running = await door.submit('alice', '!echo tokens=100000 delay_ms=40')
    const failed = await door.submit('bob', '!echo fail=upstream_refused')
    await until(async () => (await door.job('bob', failed)).status === 'failed')
    await until(async () => (await door.job('alice', running)).status === 'in_progress')
    const cancelled = (await (await op.post(`/v1/admin/jobs/${running}/cancel`)).json()) as { project: string }
    expect(cancelled).toMatchObject({ id: running, project: 'alice' })
    await until(async () => (await door.job('alice', running)).status === 'cancelled')
    const again = await op.post(`/v1/admin/jobs/${failed}/redrive`)
    expect(again.status).toBe(202)
    const { id: repeat } = (await again.json()) as { id: string }
    expect((await door.job('bob', repeat)).parent_id).toBe(failed)
    expect((await op.post(`/v1/admin/jobs/${running}/cancel`)).status).toBe(200)
    expect(door.auditEvents()).toEqual([
      expect.objectContaining({
        action: 'cancel_job',
        job_id: running,
        of_project: 'alice',
        key_id: 'op',
        project_id: 'ops',
      }),
      expect.objectContaining({ action: 'redrive_job', job_id: failed, new_job_id: repeat, of_project: 'bob' }),
      expect.objectContaining({ action: 'cancel_job', job_id: running }),
    ])
  })

  it('can be cancelled or redriven in bulk, each job once, up to a maximum number of jobs', async () => {
    await using door = await openAdmin()
    const op = door.as('op')
    const failed: string[] = []
    for (const who of ['alice', 'bob', 'alice']) failed.push(await door.submit(who, '!echo fail=upstream_refused'))
    for (const [nth, who] of ['alice', 'bob', 'alice'].entries()) {
      await until(async () => (await door.job(who, failed[nth] ?? '')).status === 'failed')
    }
    const bulk = async (what: string, body: object) =>
      (await (await op.post(`/v1/admin/jobs/${what}`, body)).json()) as Page
    const dry = await bulk('redrive', { project: 'alice', dry_run: true })
    expect(dry.data.map(({ id }) => id)).toEqual([failed[2], failed[0]])
    expect(door.auditEvents()).toEqual([])
    const one = await bulk('redrive', { max: 1 })
    expect(one).toMatchObject({
      has_more: true,
      data: [{ id: failed[2], project: 'alice', new_id: expect.any(String) }],
    })
    const rest = await bulk('redrive', {})
    expect(rest.data.map(({ id }) => id)).toEqual(
      [failed[1], failed[0], one.data[0]?.new_id].filter((id) => failed.includes(String(id))),
    )
    const run_at = Math.floor(Date.now() / 1_000) + 3_600
    const later = [await door.submit('alice', 'x', { run_at }), await door.submit('bob', 'x', { run_at })]
    const stopped = await bulk('cancel', { status: 'queued' })
    expect(stopped.data.map(({ id }) => id)).toEqual(expect.arrayContaining(later))
    for (const [nth, who] of ['alice', 'bob'].entries()) {
      expect((await door.job(who, later[nth] ?? '')).status).toBe('cancelled')
    }
  })
})

describe('the reason why a job is pending', () => {
  it('consists of a code and a sentence', async () => {
    await using door = await openAdmin({ models: 2 })
    const op = door.as('op')
    const waits = async (id: string) =>
      ((await (await op.get(`/v1/admin/jobs/${id}`)).json()) as { waits: { reason: string } | null }).waits
    const run_at = Math.floor(Date.now() / 1_000) + 3_600
    const later = await door.submit('alice', 'x', { run_at })
    expect(await waits(later)).toMatchObject({ reason: 'scheduled', until: run_at })
    const retried = await door.submit('alice', '!echo fail=upstream_error')
    await until(async () => (await waits(retried))?.reason === 'retry_backoff')
    await op.post('/v1/admin/models/echo-2/pause')
    const paused = await door.submit('alice', 'x', { model: 'echo-2' })
    expect(await waits(paused)).toMatchObject({ reason: 'model_paused', ahead: 0 })
    const behind = await door.submit('bob', 'x', { model: 'echo-2' })
    expect(await waits(behind)).toMatchObject({ reason: 'model_paused', ahead: 1 })
    await op.post('/v1/admin/models/echo-2/resume')
    await until(async () => (await door.job('bob', behind)).status === 'completed')
    expect(await waits(behind)).toBeNull()
  })
})
