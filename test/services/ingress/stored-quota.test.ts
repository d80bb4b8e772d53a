/* Tests of the quota of stored bytes per project, which covers all kinds of objects, and of the minimum of free disk space. */

import { readdir, stat } from 'node:fs/promises'
import { request } from 'node:http'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openDiskFloor } from '#shared/capacity/byte-budgets.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

const MIB = 1024 ** 2
const QUOTA = 20 * MIB
/** Maximum number of bytes by which each concurrent upload may exceed the quota. */
const CHUNK = MIB
const settings = { FILES_BYTES_MAX_PER_PROJECT: String(QUOTA) }

async function bytesOnDisk(stack: Stack): Promise<number> {
  const directory = join(stack.dataDir, 'blobs')
  const sizes = (await readdir(directory)).map(
    async (name) => (await stat(join(directory, name)).catch(() => undefined))?.size ?? 0,
  )
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0)
}

/**
 * Starts an upload that sends `bytes` bytes of a file and does not end. If `length` is undefined, then the request has no Content-Length.
 */
function upload(stack: Stack, bytes: number, length?: number) {
  const boundary = 'b0undary'
  const headers = {
    authorization: `Bearer ${TEST_KEY}`,
    'content-type': `multipart/form-data; boundary=${boundary}`,
    ...(length && { 'content-length': length }),
  }
  const sending = request(`${stack.url}/v1/files`, { method: 'POST', headers })
  const answered = new Promise<number | undefined>((resolve) => {
    sending.on('response', (res) => resolve(res.resume().statusCode))
    sending.on('error', () => resolve(undefined))
  })
  sending.write(`--${boundary}\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n`)
  sending.write(Buffer.alloc(bytes, 'x'))
  return { answered, abort: () => sending.destroy() }
}

describe('the stored bytes of a project', () => {
  it.each([
    ['without a length', undefined, 8, 0],
    ['with a length', 6 * MIB, 9, 3],
  ])('include unfinished uploads %s until the uploads are aborted', async (_, length, refused, open) => {
    await using stack = await startStack({ settings })
    const uploads = Array.from({ length: 12 }, () => upload(stack, 5 * MIB, length))
    const statuses = await Promise.all(
      uploads.map(({ answered }) =>
        Promise.race([answered, new Promise((resolve) => setTimeout(resolve, 3_000, 'open'))]),
      ),
    )
    expect(statuses.filter((status) => status === 429).length, 'refused uploads').toBeGreaterThanOrEqual(refused)
    expect(statuses.filter((status) => status === 'open').length, 'uploads in progress').toBeGreaterThanOrEqual(open)
    expect(await bytesOnDisk(stack)).toBeLessThanOrEqual(QUOTA + 12 * CHUNK)
    for (const { abort } of uploads) abort()
    await until(async () => (await bytesOnDisk(stack)) === 0)
    const body = new FormData()
    body.append('purpose', 'user_data')
    body.append('file', new Blob([Buffer.alloc(15 * MIB)]), 'a')
    await until(async () => {
      const response = await fetch(`${stack.url}/v1/files`, {
        method: 'POST',
        body,
        headers: { authorization: `Bearer ${TEST_KEY}` },
      })
      return response.status === 200
    })
  })

  it('include bodies of scheduled jobs and results of ended jobs until the jobs are deleted', async () => {
    await using stack = await startStack({ settings })
    const run_at = Math.ceil(Date.now() / 1_000) + 3_600
    const job = (content: string, more: object) => ({
      endpoint: '/v1/chat/completions',
      body: { model: 'echo-1', messages: [{ role: 'user', content }] },
      ...more,
    })
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => stack.post('/v1/jobs', job('x'.repeat(3 * MIB), { run_at }))),
    )
    const accepted = answers.filter(({ status }) => status === 202)
    expect(accepted).toHaveLength(6)
    expect(await bytesOnDisk(stack)).toBeLessThanOrEqual(QUOTA)
    const refused = answers.find(({ status }) => status !== 202)
    expect([refused?.status, await refused?.json()]).toMatchObject([
      429,
      {
        error: {
          code: 'insufficient_quota',
          message: expect.stringMatching(/uses \d+ of its 20971520 bytes .* Delete/),
        },
      },
    ])
    for (const response of accepted) {
      const { id } = (await response.json()) as { id: string }
      await stack.post(`/v1/jobs/${id}/cancel`, {})
      await fetch(`${stack.url}/v1/jobs/${id}`, { method: 'DELETE', headers: { authorization: `Bearer ${TEST_KEY}` } })
    }
    // The echo job stores its request of 6 MiB and its response of 6 MiB, so less than 9 MiB of the quota remain.
    const sent = await stack.post('/v1/jobs', job('y'.repeat(6 * MIB), {}))
    const { id } = (await sent.json()) as { id: string }
    await until(
      async () => ((await (await stack.get(`/v1/jobs/${id}`)).json()) as { status: string }).status === 'completed',
    )
    expect(
      (await stack.post('/v1/jobs', job('z'.repeat(9 * MIB), { run_at }))).status,
      'status of a submission next to the stored result',
    ).toBe(429)
    expect((await stack.post('/v1/jobs', job('z'.repeat(5 * MIB), { run_at }))).status).toBe(202)
  })
})

describe('a job whose row no longer fits into the quota', () => {
  it('is refused, and its body is deleted', async () => {
    await using stack = await startStack({ settings: { FILES_BYTES_MAX_PER_PROJECT: '300000' } })
    const submit = (chars: number) =>
      stack.post('/v1/jobs', {
        endpoint: '/v1/chat/completions',
        body: { model: 'echo-1', messages: [{ role: 'user', content: 'x'.repeat(chars) }] },
        run_at: Math.ceil(Date.now() / 1_000) + 3_600,
      })
    expect((await submit(290_000)).status).toBe(429)
    expect(await bytesOnDisk(stack)).toBe(0)
    expect((await submit(250_000)).status).toBe(202)
    expect(await bytesOnDisk(stack)).toBeGreaterThan(250_000)
  })
})

describe('the minimum of free disk space', () => {
  it('refuses new durable jobs with 503, and accepts calls that store nothing', async () => {
    await using stack = await startStack({ settings: { DISK_FREE_BYTES_MIN: String(2 ** 52) } })
    const body = { model: 'echo-1', messages: [{ role: 'user', content: 'hi' }] }
    expect((await stack.post('/v1/chat/completions', body)).status, 'status of a call that stores nothing').toBe(200)
    const refused = await stack.post('/v1/jobs', { endpoint: '/v1/chat/completions', body })
    const message = expect.stringMatching(/^The disk of the service has \d+ MiB free\. New data is refused below/)
    expect([refused.status, refused.headers.get('retry-after'), await refused.json()]).toMatchObject([
      503,
      '60',
      { error: { code: 'overloaded', message } },
    ])
  })

  it('is by default 5 % of the disk, but at most 1 GiB', async () => {
    const isFull = async (free: number, size: number, min?: number) =>
      await Promise.resolve(openDiskFloor(['/'], min, async () => ({ free, size }))()).then(
        () => false,
        () => true,
      )
    const gib = 1024 ** 3
    expect(await isFull(0.4 * gib, 10 * gib)).toBe(true)
    expect(await isFull(0.6 * gib, 10 * gib)).toBe(false)
    expect(await isFull(0.9 * gib, 900 * gib)).toBe(true)
    expect(await isFull(1.1 * gib, 900 * gib)).toBe(false)
    expect(await isFull(1.1 * gib, 900 * gib, 2 * gib)).toBe(true)
  })
})
