/*
 * Tests of durable jobs in the embedded service, whose queue is in memory. Every accepted job is stored in the data directory, and
 * continues after a restart with this directory.
 */

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { CHAT, errorOf, jobOf, readEvents, type Service, say, startService, textOf } from '../../../support/jobs/api.ts'
import { until } from '../../../support/stack.ts'

let dataDir: string
beforeEach(async () => {
  dataDir = await mkdtemp(join(tmpdir(), 'sluice-embedded-'))
})
afterEach(() => rm(dataDir, { recursive: true, force: true }))

const start = (settings: Record<string, string> = {}) => startService({ dataDir, settings })

describe('a restarted service in a single process', () => {
  it('completes all accepted jobs, both running and queued', { timeout: 60_000 }, async () => {
    const slots = { INFERENCE_SLOTS: '40' }
    const before = await start(slots)
    const submitted = Array.from({ length: 100 }, (_, i) => before.submit(say(slow(i), { stream: i % 2 === 0 })))
    const jobs = await Promise.all(submitted)
    await until(async () => (await countOf(before, 'in_progress')) === 40)
    await before[Symbol.asyncDispose]()

    await using after = await start(slots)
    for (const [i, { id }] of jobs.entries()) {
      const job = await after.ended(id)
      expect([i, job.status, job.error]).toEqual([i, 'completed', null])
      expect(JSON.stringify(job.result)).toContain(`job ${i}.`)
      const events = await readEvents(await after.get(`/v1/jobs/${id}/events`))
      expect(events.map((event) => event.sequence_number)).toEqual(events.map((_, index) => index + 1))
      expect(events.filter(({ type }) => type === 'job.started')).toHaveLength(job.attempt)
    }
    const attempts = await Promise.all(jobs.map(async ({ id }) => (await after.job(id)).attempt))
    expect(attempts.filter((attempt) => attempt === 2).length).toBeGreaterThan(0)
    expect(Math.max(...attempts)).toBe(2)
  })

  it('still has all ended jobs and idempotency keys, and starts jobs that are due', async () => {
    const init = { headers: { 'idempotency-key': 'over the restart'.replaceAll(' ', '-') } }
    const before = await start()
    const answer = await (await before.post(CHAT, say('kept'), init)).json()
    const later = await before.submit(say('later'), { run_at: Math.floor(Date.now() / 1_000) + 2 })
    const failed = await before.ended((await before.submit(say('!echo fail=upstream_refused'))).id)
    await before[Symbol.asyncDispose]()

    await using after = await start()
    const again = await after.post(CHAT, say('kept'), init)
    expect([await again.json(), again.headers.get('idempotency-replayed')]).toEqual([answer, 'true'])
    expect((await errorOf(await after.get(`/v1/jobs/${failed.id}/result`))).code).toBe('upstream_refused')
    expect(await after.job(failed.id)).toEqual(failed)
    expect(await after.ended(later.id)).toMatchObject({ status: 'completed', attempt: 1 })
  })

  it('continues an event stream after the position that the client gives', async () => {
    const before = await start()
    const { id } = await before.submit(say('!echo tokens=60 delay_ms=50', { stream: true }))
    const reading = before.get(`/v1/jobs/${id}/events`).then((response) => readEvents(response))
    await until(async () => (await before.job(id)).last_sequence_number > 5)
    await before[Symbol.asyncDispose]()
    const seen = await reading

    await using after = await start()
    const position = { headers: { 'last-event-id': String(seen.length) } }
    const events = [...seen, ...(await readEvents(await after.get(`/v1/jobs/${id}/events`, position)))]
    expect(events.map((event) => event.sequence_number)).toEqual(events.map((_, i) => i + 1))
    const reset = events.findLastIndex((event) => event.output_reset === true)
    expect(reset).toBeGreaterThan(5)
    const result = { choices: [{ message: { content: textOf(events.slice(reset)) } }] }
    expect(events.at(-1)?.job).toMatchObject({ status: 'completed', attempt: 2, result })
  })

  it('completes a job whose waiting caller got 503 before the restart', async () => {
    const before = await start()
    const init = { headers: { 'idempotency-key': 'waits' } }
    const waiting = before.post(CHAT, say('!echo first_ms=4000\nin the end'), init)
    await until(async () => (await countOf(before, 'in_progress')) === 1)
    await before[Symbol.asyncDispose]()
    const response = await waiting
    expect(response.status).toBe(503)
    expect(Number(response.headers.get('retry-after'))).toBeGreaterThan(0)

    await using after = await start()
    const answered = await until(
      async () => {
        const again = await after.post(CHAT, say('!echo first_ms=4000\nin the end'), init)
        return again.status === 409 ? void (await again.text()) : again
      },
      { withinMs: 20_000 },
    )
    expect(await answered.json()).toMatchObject({ choices: [{ message: { content: 'in the end' } }] })
  })

  it('prevents the start of a second service with the same data directory', async () => {
    await using first = await start()
    await expect(start()).rejects.toThrow(/DATA_DIR/)
    expect(await jobOf(await first.get('/v1/jobs'))).toMatchObject({ object: 'list' })
  })
})

const slow = (i: number) => `!echo first_ms=2500 text="job ${i}."`

async function countOf(service: Service, status: string): Promise<number> {
  const list = (await (await service.get(`/v1/jobs?limit=100&status=${status}`)).json()) as { data: unknown[] }
  return list.data.length
}
