/* Tests of batches in which every line fails (docs/guides/batches.md, Lines), and of the list of running batches. Another test deletes the input file of a running batch. */

import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { childJobId } from '#shared/store/jobs.ts'
import { SqlStore } from '#shared/store/sql/sql-store.ts'
import { createBatch, endOf } from '../../../support/batches.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

const CHAT = '/v1/chat/completions'
const LINES = 1_200

let stack: Stack
let client: OpenAI
beforeAll(async () => {
  stack = await startStack()
  client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })
})
afterAll(() => stack[Symbol.asyncDispose]())

const say = (content: string) => ({ model: 'echo-1', messages: [{ role: 'user', content }] })
const lineOf = (i: number, body: object, name = `r${i}`) =>
  JSON.stringify({ custom_id: name, method: 'POST', url: CHAT, body })
const linesOf = (body: (i: number) => object) => Array.from({ length: LINES }, (_, i) => lineOf(i, body(i)))

describe('the list of batches', () => {
  it('yields to the event loop between two running batches', async () => {
    const made = [0, 1, 2].map(() =>
      createBatch(client, CHAT, [lineOf(0, say('!echo tokens=1000 delay_ms=1000'), 'a')]),
    )
    const ids = (await Promise.all(made)).map((batch) => batch.id)
    const running = async () => (await client.batches.list()).data.filter((batch) => 'waiting_for' in batch)
    await until(async () => (await running()).length === ids.length)
    let turn = 0
    const turns = new Map<string, number>()
    const { find } = SqlStore.prototype
    const spy = vi.spyOn(SqlStore.prototype, 'find').mockImplementation(function (this: SqlStore, scope, id) {
      if (!turns.has(id)) turns.set(id, turn)
      return find.call(this, scope, id)
    })
    const count = () => {
      turn++
      if (isListing) setImmediate(count)
    }
    let isListing = true
    count()
    await running()
    isListing = false
    spy.mockRestore()
    const firstParts = ids.map((id) => turns.get(childJobId(id.replace('batch_', 'job_'), '0')))
    expect(new Set(firstParts).size, 'turns of the event loop that read the parts').toBe(ids.length)
    for (const id of ids) await client.batches.cancel(id)
  })
})

describe('a batch in which each line fails', () => {
  it('shows the last failure while its requests wait for a retry', async () => {
    const lines = ['a', 'b'].map((name, i) => lineOf(i, say('!echo fail=upstream_error retry_after_ms=30000'), name))
    const { id } = await createBatch(client, CHAT, lines)
    const found = await until(async () => {
      const batch = (await client.batches.retrieve(id)) as OpenAI.Batch & { waiting_for?: string | null }
      return batch.waiting_for?.startsWith('2 requests') ? batch.waiting_for : undefined
    })
    const at = String.raw`\d\d:\d\d:\d\d UTC`
    expect(found).toMatch(new RegExp(`^2 requests wait for a retry, the next at ${at}. Last failure at ${at}.*: \\S`))
    const list = (await client.batches.list()).data.find((batch) => batch.id === id)
    expect(list).toHaveProperty('waiting_for')
    await client.batches.cancel(id)
  })

  it('reports each failure once and in order, whether the line was refused or its job failed', async () => {
    const wrong = [
      { model: 'echo-1', messages: 'none' },
      say('!echo fail=upstream_refused'),
      { ...say('x'), stream: true },
    ]
    const made = await createBatch(
      client,
      CHAT,
      linesOf((i) => wrong[i % wrong.length] ?? {}),
    )
    const { batch, output, errors } = await endOf(client, made)
    expect(batch).toMatchObject({ status: 'completed', output_file_id: null, errors: null })
    expect(batch.request_counts).toEqual({ total: LINES, completed: 0, failed: LINES })
    expect(output).toEqual([])
    expect(errors.map(({ custom_id }) => custom_id)).toEqual(Array.from({ length: LINES }, (_, i) => `r${i}`))
    const codes = ['invalid_type', 'upstream_refused', 'unsupported_value']
    expect(errors.map(({ response }) => (response?.body.error as { code: string } | undefined)?.code)).toEqual(
      errors.map((_, i) => codes[i % codes.length]),
    )
  })

  it.each([
    [
      'that are not JSON',
      (i: number) => `{"custom_id": "r${i}", `,
      /^Line 1: The line is not JSON\. Each line is a request: .*custom_id, method, url and body/,
    ],
    [
      'that each name another model',
      (i: number) => lineOf(i, { ...say('x'), model: `m${i}` }),
      /^Line 2: The model 'm1' differs from that of the previous lines/,
    ],
    [
      'that repeat a custom_id',
      (i: number) => lineOf(i, say('x'), 'same'),
      /^Line 2.*'same' is already used in line 1/,
    ],
  ])(
    'is refused at the upload with the number of the first invalid line if it has lines %s',
    async (_, line, message) => {
      const lines = Array.from({ length: LINES }, (_, i) => line(i))
      await expect(createBatch(client, CHAT, lines)).rejects.toMatchObject({
        status: 400,
        param: 'file',
        error: { message: expect.stringMatching(message) },
      })
    },
  )

  it('fails before the first request if all lines name an unknown model', async () => {
    const { batch } = await endOf(
      client,
      await createBatch(
        client,
        CHAT,
        linesOf(() => ({ ...say('x'), model: 'none' })),
      ),
    )
    expect(batch).toMatchObject({ status: 'failed', request_counts: { total: LINES, completed: 0, failed: 0 } })
    expect(batch.errors?.data).toMatchObject([{ code: 'model_not_found', line: 1, param: 'body.model' }])
  })
})

it('a batch continues to run, and its output remains readable, if its input file is deleted', async () => {
  const made = await createBatch(client, CHAT, [
    lineOf(0, say('!echo first_ms=300 text=slow')),
    lineOf(1, say('quick')),
  ])
  await client.files.delete(made.input_file_id)
  await expect(client.files.retrieve(made.input_file_id)).rejects.toMatchObject({ status: 404 })
  const { batch, output } = await endOf(client, made)
  expect(output.map(({ custom_id }) => custom_id)).toEqual(['r0', 'r1'])
  for (const again of ['replay', 'redrive']) {
    const refused = await stack.post(`/v1/jobs/${batch.id.replace('batch_', 'job_')}/${again}`, {})
    expect([refused.status, await refused.json()]).toMatchObject([again === 'replay' ? 404 : 409, { error: {} }])
  }
  await client.files.delete(`${batch.output_file_id}`)
  await expect(client.files.content(`${batch.output_file_id}`)).rejects.toMatchObject({ status: 404 })
  expect(await client.batches.retrieve(batch.id)).toMatchObject({
    status: 'completed',
    output_file_id: batch.output_file_id,
  })
  await expect(
    client.batches.create({ input_file_id: made.input_file_id, endpoint: CHAT, completion_window: '24h' }),
  ).rejects.toMatchObject({ status: 404, param: 'input_file_id' })
})
