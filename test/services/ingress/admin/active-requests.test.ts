/* Tests of the admin API for active requests: the list of synchronous calls that wait or run now, and their cancellation. */

import { describe, expect, it } from 'vitest'
import type { ActiveRequest } from '#schemas/admin/requests.ts'
import { openAdmin } from '../../../support/admin.ts'
import { until } from '../../../support/stack.ts'

const call = (content: string) => ({ model: 'echo-1', messages: [{ role: 'user', content }] })

interface ActivePage {
  readonly data: readonly ActiveRequest[]
  readonly total: number
}

describe('GET /v1/admin/requests/active', () => {
  it('lists the active calls of all projects for operators, and of one project for any other key', async () => {
    await using admin = await openAdmin({ settings: { INFERENCE_SLOTS: '1' } })
    const list = async (who: string, query = '') =>
      (await (await admin.as(who).get(`/v1/admin/requests/active${query}`)).json()) as ActivePage
    const running = admin.as('alice').post('/v1/chat/completions', call('!echo first_ms=60000\nx'))
    await until(async () => (await list('op', '?status=running')).total === 1)
    const waiting = admin.as('bob').post('/v1/chat/completions', call('hello'))
    await until(async () => (await list('op', '?status=waiting')).total === 1)
    const { data, total } = await list('op')
    expect(total).toBe(2)
    expect(data).toMatchObject([
      { project: 'alice', key_id: 'alice', endpoint: '/v1/chat/completions', model: 'echo-1', status: 'running' },
      { project: 'bob', key_id: 'bob', status: 'waiting', position: 1, worker: null, attempt: 1 },
    ])
    expect(data[0]).toMatchObject({ position: null, reason: null })
    expect(data[1]?.reason).toMatch(/^The (pool inference|model) has no free slot/)
    expect((await list('bob')).data.map(({ project }) => project)).toEqual(['bob'])
    expect((await admin.as('bob').get('/v1/admin/requests/active?project=alice')).status).toBe(403)
    expect((await admin.as('bob').get('/v1/admin/requests/active?status=done')).status).toBe(400)

    const cancel = `/v1/admin/requests/${data[0]?.id}/cancel`
    expect((await admin.as('bob').post(cancel)).status).toBe(404)
    expect((await admin.as('op').post(cancel)).status).toBe(200)
    const ended = await running
    expect([ended.status, await ended.json()]).toMatchObject([409, { error: { code: 'job_cancelled' } }])
    expect((await waiting).status).toBe(200)
    const row = await until(async () => {
      const found = await admin.as('op').get(`/v1/admin/requests/${data[0]?.id}`)
      return found.status === 200 ? await found.json() : undefined
    })
    expect(row, 'the row of the cancelled call').toMatchObject({ status: 499, error_code: 'job_cancelled' })
    const usage = await until(async () => {
      const report = await (await admin.as('alice').get('/v1/usage')).json()
      return (report as { data: { calls: number; failed: number }[] }).data[0]
    })
    expect(usage, 'usage of the cancelled call').toMatchObject({ calls: 1, failed: 0 })
    expect(await list('op')).toMatchObject({ data: [], total: 0, has_more: false })
    expect((await admin.as('alice').post(cancel)).status).toBe(404)
    expect(admin.auditEvents()).toMatchObject([{ action: 'cancel_request' }])
  })
})
