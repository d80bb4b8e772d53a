/*
 * Compares the number of failed calls in all reports, after calls with each status. The reports are the usage report, its history, the request log with
 * its counts, and the command line. In each report, a failed line of a batch must count once, and the batch itself must not count.
 */
import { PassThrough } from 'node:stream'
import { expect, it } from 'vitest'
import type { RequestAnswer } from '#schemas/admin/requests.ts'
import { HttpClient } from '#services/cli/client/http.ts'
import { JobsApi } from '#services/cli/client/jobs-api.ts'
import { CommandLine, Values } from '#services/cli/commands/command.ts'
import { logs } from '#services/cli/commands/logs.ts'
import { Output } from '#services/cli/text/output.ts'
import { parseConfig } from '#shared/config/config.ts'
import { openAdmin, secretOf } from '../../support/admin.ts'
import { until } from '../../support/stack.ts'

const CHAT = '/v1/chat/completions'
const PRICE = { input_per_million: 1, output_per_million: 2, per_call: 0 }
const say = (content: string, more: object = {}) => ({
  model: 'echo-1',
  messages: [{ role: 'user', content }],
  ...more,
})

/** Lines of `sluice logs --status failed`. */
async function linesOfCli(url: string): Promise<string[]> {
  const [out, err] = [Object.assign(new PassThrough(), { isTTY: false, columns: 180 }), new PassThrough()]
  const http = new HttpClient(url, secretOf('op'))
  const values = new Values({ status: 'failed', limit: '100' })
  const invocation = {
    values,
    args: [],
    config: parseConfig({}),
    api: new JobsApi(http),
    commandLine: new CommandLine(['logs']),
  }
  await logs.run({ ...invocation, out: new Output({ out, err }) }).finally(() => http.close())
  return String(out.read()).trim().split('\n')
}

it('every report counts the same calls as failed, and the calls of a batch once', { timeout: 120_000 }, async () => {
  await using door = await openAdmin({ price: PRICE })
  const { stack } = door
  const json = async <T>(path: string, who = 'op') => (await (await door.as(who).get(path)).json()) as T
  const send = async (secret: string, body: object, path = CHAT, headers: Record<string, string> = {}) => {
    const response = await stack.post(path, body, { headers: { authorization: `Bearer ${secret}`, ...headers } })
    await response.text()
    return response.status
  }
  const alice = secretOf('alice')
  const statuses = [
    await send(alice, say('hello')),
    await send(alice, say('x', { temperature: 9 })),
    await send(alice, say('x', { model: 'none' })),
    await send(alice, {}, '/v1/nothing'),
    await send(alice, say('!echo fail=upstream_refused')),
    await send(alice, say('!echo fail=overloaded')),
    await send('sk-wrong-0123456789', say('x')),
    await send(alice, say('!echo fail=upstream_refused'), CHAT, { prefer: 'respond-async' }),
  ]
  expect(statuses).toEqual([200, 400, 404, 404, 502, 503, 401, 202])
  const left = new AbortController()
  const streamed = await fetch(`${stack.url}${CHAT}`, {
    ...{ method: 'POST', signal: left.signal },
    headers: { authorization: `Bearer ${alice}`, 'content-type': 'application/json' },
    body: JSON.stringify(say('!echo delay_ms=20 tokens=5000', { stream: true })),
  })
  await streamed.body?.getReader().read()
  left.abort()
  const line = (custom_id: string, content: string) => ({ custom_id, params: { ...say(content), max_tokens: 9 } })
  const requests = [line('a', 'one two'), line('b', '!echo fail=upstream_refused'), line('c', 'three')]
  const made = await door.as('alice').post('/v1/messages/batches', { requests })
  const { id } = (await made.json()) as { id: string }
  type Rows = { data: RequestAnswer[] }
  const batch = await until(
    async () => {
      const { data } = await json<Rows>('/v1/admin/requests?limit=100')
      return data.find(({ batch_id, request_counts }) => batch_id === id && request_counts !== null)
    },
    { withinMs: 30_000 },
  )

  // Number of failed calls: 400, 404 (two calls), 502, 503, the durable job, and one line of the batch. The calls with 401 and 499 and the batch
  // itself do not count.
  const FAILED = 7
  type Usage = { total: { calls: number; failed: number; input_tokens: number; cost_usd: number } }
  const usage = await until(
    async () => {
      const { total } = await json<Usage>('/v1/usage')
      return total.failed >= FAILED && total.calls >= 11 ? total : undefined
    },
    { withinMs: 30_000 },
  )
  const list = async (query: string) => (await json<Rows>(`/v1/admin/requests?limit=100&${query}`)).data
  const counts = async () => {
    const { data } = await json<{ data: { count: number }[] }>('/v1/admin/requests/failures')
    return {
      usage: usage.failed,
      list: (await list('status=failed')).length,
      ofProject: (await json<Rows>('/v1/admin/requests?limit=100&status=failed', 'alice')).data.length,
      failures: data.reduce((sum, { count }) => sum + count, 0),
      cli: (await linesOfCli(stack.url)).length,
    }
  }
  // The ledger and the log are written at different times, so the test polls.
  const expected = { usage: FAILED, list: FAILED, ofProject: FAILED, failures: FAILED, cli: FAILED }
  await expect.poll(counts, { timeout: 30_000 }).toEqual(expected)
  await until(
    async () => {
      const { data } = await json<{ data: { calls: number; failed: number }[] }>('/v1/history?range=15m')
      const sum = (name: 'calls' | 'failed') => data.reduce((total, point) => total + point[name], 0)
      return sum('failed') === FAILED && sum('calls') === usage.calls
    },
    { withinMs: 40_000 },
  )
  const every = (await list('batch_lines=true')).filter(({ project }) => project !== null)
  expect(every.length, 'calls in the log with the lines of batches').toBe(usage.calls)
  const sumOf = (rows: readonly RequestAnswer[]) => {
    const sum = (of: (row: RequestAnswer) => number) => rows.reduce((total, row) => total + of(row), 0)
    return [
      sum((row) => row.input_tokens),
      sum((row) => row.output_tokens),
      Number(sum((row) => row.cost_usd).toFixed(9)),
    ]
  }
  const lines = await list(`batch_id=${id}`)
  expect([lines.length, ...sumOf([batch])]).toEqual([3, ...sumOf(lines)])
  expect(batch).toMatchObject({ model: 'echo-1', kind: 'batch', input_tokens: expect.any(Number) })
  expect(batch.input_tokens).toBeGreaterThan(0)
  expect(batch.cost_usd).toBeGreaterThan(0)
  const [input, , cost] = sumOf(every)
  expect([input, cost]).toEqual([usage.input_tokens, Number(usage.cost_usd.toFixed(9))])
})
