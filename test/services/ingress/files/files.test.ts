import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import OpenAI, { toFile } from 'openai'
import { afterAll, beforeAll, describe, expect, it, test } from 'vitest'
import { type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

const line = (id: string, more: object = {}) =>
  JSON.stringify({
    custom_id: id,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: 'echo-1', messages: [{ role: 'user', content: id }] },
    ...more,
  })

describe('uploaded files', () => {
  let stack: Stack
  let client: OpenAI
  beforeAll(async () => {
    stack = await startStack({
      settings: { FILE_BYTES_MAX: '2000000', FILES_BYTES_MAX_PER_PROJECT: '30000000', BODY_BYTES_MAX: '100000' },
    })
    client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  const headers = { authorization: `Bearer ${TEST_KEY}` }
  const upload = async (text: string, purpose: OpenAI.FilePurpose = 'batch') =>
    await client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose })
  /** Uploads files of `bytes` bytes until the quota refuses one. Returns the ids of the files, and the refusal. */
  const fill = async (bytes: number) => {
    const ids: string[] = []
    for (;;) {
      const made = await upload('x'.repeat(bytes), 'vision').catch((error: unknown) => error)
      if (made instanceof Error) return { ids, refusal: made }
      ids.push((made as OpenAI.FileObject).id)
    }
  }
  const blobs = async () => (await readdir(join(stack.dataDir, 'blobs'))).filter((name) => name.startsWith('file-'))

  it('can be listed, read and deleted with the OpenAI SDK', async () => {
    const text = `${line('a')}\n${line('b')}\n`
    const file = await upload(text)
    expect(file).toMatchObject({
      object: 'file',
      bytes: text.length,
      filename: 'in.jsonl',
      purpose: 'batch',
      status: 'processed',
    })
    expect(file.expires_at).toBeGreaterThan(file.created_at)
    expect(await client.files.retrieve(file.id)).toEqual(file)
    const content = await client.files.content(file.id)
    expect(content.headers.get('x-content-type-options')).toBe('nosniff')
    expect(content.headers.get('content-disposition')).toBe('attachment; filename="in.jsonl"')
    expect(await content.text()).toBe(text)
    expect((await client.files.list({ purpose: 'batch' })).data).toContainEqual(file)
    expect((await client.files.list({ purpose: 'vision' })).data).toEqual([])
    expect(await client.files.delete(file.id)).toEqual({ id: file.id, object: 'file', deleted: true })
    await expect(client.files.retrieve(file.id)).rejects.toMatchObject({ status: 404 })
    await expect(client.files.content(file.id)).rejects.toMatchObject({ status: 404 })
    expect(await blobs()).toEqual([])
  })

  test.each([
    ['before line 1', (one: string, two: string) => `\uFEFF${one}\n${two}\n`],
    ['in an empty line 1', (one: string, two: string) => `\uFEFF\r\n${one}\n${two}`],
    ['before each of two files that were concatenated', (one: string, two: string) => `\uFEFF${one}\n\uFEFF${two}`],
  ])('of a batch are accepted with a byte order mark %s', async (_, write) => {
    const file = await upload(write(line('a'), line('b')))
    const made = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' } as const
    const { id } = await client.batches.create(made)
    const batch = await until(async () => {
      const found = await client.batches.retrieve(id)
      return found.status === 'completed' ? found : undefined
    })
    expect(batch.request_counts).toEqual({ total: 2, completed: 2, failed: 0 })
    for (const each of [file.id, batch.output_file_id]) await client.files.delete(each ?? '')
  })

  it('are listed in pages, in either order', async () => {
    const ids: string[] = []
    for (const content of ['1', '2', '3']) ids.push((await upload(content, 'user_data')).id)
    const listed: string[] = []
    for await (const { id } of client.files.list({ purpose: 'user_data', limit: 1, order: 'asc' })) listed.push(id)
    expect(listed).toEqual(ids)
    for await (const { id } of client.files.list({ purpose: 'user_data', limit: 2 })) listed.push(id)
    expect(listed).toEqual([...ids, ...ids.toReversed()])
    for (const id of ids) await client.files.delete(id)
  })

  it('expire after the requested time', async () => {
    const file = await toFile(Buffer.from('x'), 'x.txt')
    const kept = await client.files.create({
      file,
      purpose: 'vision',
      expires_after: { anchor: 'created_at', seconds: 7_200 },
    })
    expect((kept.expires_at ?? 0) - kept.created_at).toBe(7_200)
    const short = { anchor: 'created_at', seconds: 1 } as const
    const refused = client.files.create({ file, purpose: 'vision', expires_after: short })
    await expect(refused).rejects.toMatchObject({ status: 400, param: 'expires_after.seconds' })
    await client.files.delete(kept.id)
  })

  it('are refused if a form contains two files', async () => {
    const form = new FormData()
    form.set('purpose', 'evals')
    for (const name of ['1', '2']) form.append('file', new Blob(['x'.repeat(1_000)]), name)
    const answer = await fetch(`${stack.url}/v1/files`, { method: 'POST', body: form, headers })
    expect(answer.status).toBe(400)
    expect(await answer.json()).toMatchObject({ error: { param: 'file', code: 'invalid_value' } })
    expect(await blobs()).toEqual([])
  })

  test.each([
    ['is not JSON', '{"custom_id": "b"', /^400 Line 3: The line is not JSON/],
    ['is not an object', '[1]', /Line 3: The line must be a JSON object/],
    ['has no custom_id', line('b', { custom_id: undefined }), /Line 3: .*custom_id/],
    ['repeats a custom_id', line('a'), /Line 3: The custom_id 'a' is already used in line 1/],
    ['has another method than POST', line('b', { method: 'GET' }), /Line 3, 'method': Invalid value: 'GET'/],
    [
      'names an endpoint that differs from the first line',
      line('b', { url: '/v1/embeddings' }),
      /Line 3: The url '\/v1\/embeddings' differs from the endpoint of this batch/,
    ],
    [
      'names a model that differs from the first line',
      line('b', { body: { model: 'other' } }),
      /Line 3: The model 'other' differs/,
    ],
    ['has no body', line('b', { body: 7 }), /Line 3: .*body/],
    [
      'exceeds the length limit',
      line('b', { body: { model: 'echo-1', pad: 'x'.repeat(110_000) } }),
      /Line 3: The line is longer than 100000 bytes/,
    ],
  ])('of a batch are refused with the number of the first line that %s', async (_, broken, message) => {
    // A blank line is not a request, but counts in the line numbers of errors. The invalid request is therefore on line 3.
    await expect(upload(`${line('a')}\n\n${broken}\n${line('c')}\n`)).rejects.toThrow(message)
    expect(await blobs()).toEqual([])
  })

  it('count against the storage quota together with inputs of unfinished batches', async () => {
    const pad = 'x'.repeat(90_000)
    const lines = (content: string) =>
      Array.from({ length: 12 }, (_, i) =>
        line(`r${i}`, { body: { model: 'echo-1', messages: [{ role: 'user', content: `${content}\n${pad}` }] } }),
      ).join('\n')
    const make = async (input_file_id: string, headers: Record<string, string> = {}) =>
      await client.batches.create(
        { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' },
        { headers },
      )
    const once = { 'idempotency-key': 'the-report' }
    const ended = async (id: string) =>
      await until(async () => {
        const batch = await client.batches.retrieve(id)
        return ['completed', 'cancelled'].includes(batch.status) ? batch : undefined
      })
    const slow = await upload(lines('!echo text=never first_ms=600000'))
    const running = await make(slow.id, once)
    const full = {
      status: 429,
      code: 'insufficient_quota',
      message: expect.stringMatching(/This project uses \d+ of its \d+ bytes/),
    }
    const { ids: fillers } = await fill(900_000)
    await expect(make(slow.id)).rejects.toMatchObject(full)
    // The repeated request must return the first batch. If it created a second batch, then the full quota would refuse it.
    expect(await make(slow.id, once)).toMatchObject({ id: running.id, input_file_id: slow.id })
    expect((await client.files.list()).data.map(({ id }) => id)).not.toContain(running.id)
    expect((await client.files.list({ purpose: 'batch' })).data).toHaveLength(1)
    const requests = [
      { custom_id: 'a', params: { model: 'echo-1', max_tokens: 9, messages: [{ role: 'user', content: pad }] } },
    ]
    const messages = { requests: Array.from({ length: 10 }, (_, i) => ({ ...requests[0], custom_id: `m${i}` })) }
    const refused = await stack.post('/v1/messages/batches', messages, {
      headers: { 'anthropic-version': '2023-06-01' },
    })
    expect([refused.status, await refused.json()]).toMatchObject([429, { error: { type: 'rate_limit_error' } }])

    await client.batches.cancel(running.id)
    await ended(running.id)
    await expect(make(slow.id)).rejects.toMatchObject(full)
    const job = running.id.replace('batch_', 'job_')
    expect((await fetch(`${stack.url}/v1/jobs/${job}`, { method: 'DELETE', headers })).status).toBe(200)
    for (const id of [slow.id, ...fillers]) await client.files.delete(id)

    const quick = await upload(lines('!echo text=done'))
    for (let nth = 0; nth < 2; nth++) {
      const batch = await ended((await make(quick.id)).id)
      expect(batch.request_counts).toMatchObject({ total: 12, completed: 12 })
      await client.files.delete(`${batch.output_file_id}`)
    }
    for (const { id } of (await client.files.list()).data) await client.files.delete(id)
    expect((await readdir(join(stack.dataDir, 'blobs'))).filter((name) => name.includes('-'))).toEqual([])
  })

  it('are refused if they are too large, too many, empty, or of an unknown purpose', async () => {
    await expect(upload('x'.repeat(2_000_001), 'vision')).rejects.toMatchObject({ status: 413 })
    const { ids, refusal } = await fill(1_900_000)
    expect(refusal).toMatchObject({ status: 429, code: 'insufficient_quota' })
    for (const id of ids) await client.files.delete(id)
    await expect(upload('\n \n')).rejects.toThrow(/The file has no requests/)
    await expect(upload('x', 'nothing' as 'batch')).rejects.toMatchObject({ status: 400, param: 'purpose' })
    expect(await blobs()).toEqual([])
  })
})
