/* Tests of `sluice logs`: its output on a terminal and in a pipe, and new log lines of calls that end while the command runs. */

import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { PassThrough } from 'node:stream'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { ERRORS } from '#schemas/error.ts'
import { HttpClient } from '#services/cli/client/http.ts'
import { JobsApi } from '#services/cli/client/jobs-api.ts'
import { CommandLine, Values } from '#services/cli/commands/command.ts'
import { logs } from '#services/cli/commands/logs.ts'
import { Output } from '#services/cli/text/output.ts'
import { parseConfig } from '#shared/config/config.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

describe('sluice logs', () => {
  let stack: Stack
  beforeAll(async () => {
    stack = await startStack({ models: [{ ...ECHO_MODEL, price: { output_per_million: 100_000 } }] })
  })
  afterAll(async () => await stack[Symbol.asyncDispose]())

  /**
   * Starts `sluice logs` in the process of the test. `printed` returns its standard output so far, and `noted` its standard error. `ended`
   * resolves when the command ends.
   */
  function start(
    values: Record<string, string | boolean> = {},
    args: string[] = [],
    isTTY = true,
    url = stack.url,
    columns = 180,
  ) {
    const http = new HttpClient(url, TEST_KEY)
    const [out, err] = [Object.assign(new PassThrough(), { isTTY, columns }), new PassThrough()]
    let [printed, noted] = ['', '']
    out.on('data', (chunk) => (printed += chunk))
    err.on('data', (chunk) => (noted += chunk))
    const commandLine = new CommandLine(['logs', '-f', '--since=1h', '--key', TEST_KEY])
    const line = { values: new Values(values), args, commandLine }
    const invocation = { ...line, config: parseConfig({}), api: new JobsApi(http) }
    const ended = logs.run({ ...invocation, out: new Output({ out, err }) }).finally(() => http.close())
    return { http, ended, printed: () => printed, noted: () => noted }
  }
  async function run(...given: Parameters<typeof start>): Promise<string> {
    const { ended, printed } = start(...given)
    await ended
    return printed()
  }
  async function call(content: string): Promise<string> {
    const body = { model: 'echo-1', messages: [{ role: 'user', content }] }
    const response = await stack.post('/v1/chat/completions', body)
    await response.text()
    return String(response.headers.get('x-request-id'))
  }
  const untilLogged = async (id: string) => await until(async () => (await run({}, [], false)).includes(id))

  it('prints the calls as a table, as JSON lines or as CSV, with the newest call last', async () => {
    const ids = [await call('!echo tokens=10'), await call('!echo fail=upstream_refused')]
    await untilLogged(ids[1] ?? '')
    const table = (await run()).split('\n')
    expect(table[0]).toMatch(
      /^request +ended +status +took +queued +first +model +endpoint +tokens +cost \$ +project +error +message$/,
    )
    expect(table[1]).toMatch(
      new RegExp(
        `^${ids[0]} +(\\d{4}-\\d\\d-\\d\\d )?\\d\\d:\\d\\d:\\d\\d +200 .* echo-1 +chat/completions +\\d+ → 10 +1\\.0000 `,
      ),
    )
    expect(table[2]).toMatch(new RegExp(`^${ids[1]} .* upstream_refused +\\S.*$`))
    const rows = (await run({}, [], false))
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(rows.map(({ id }) => id)).toEqual(ids)
    const csv = (await run({ output: 'csv', status: '2xx' })).trim().split('\r\n')
    expect(csv[0]).toMatch(/^id,started_at,ended_at,project,/)
    expect(csv.slice(1).map((line) => line.split(',')[0])).toEqual([ids[0]])
  })

  it('prints a batch as one row with its counts, and with --batch-lines prints one row per line of the batch', async () => {
    const paramsOf = (content: string) => ({
      params: { model: 'echo-1', max_tokens: 9, messages: [{ role: 'user', content }] },
    })
    const contents = ['one', '!echo fail=upstream_refused']
    const requests = contents.map((content, nth) => ({ custom_id: `line-${nth}`, ...paramsOf(content) }))
    await stack.post('/v1/messages/batches', { requests })
    const table = await until(async () => {
      const printed = await run()
      return printed.includes('messages/batches') ? printed : undefined
    })
    const row = table.split('\n').find((line) => line.includes('messages/batches'))
    expect(row).toMatch(/ batch .* 2 calls, 1 failed *$/)
    const endpoints = async (values: Record<string, string | boolean>) =>
      (await run(values, [], false)).split('\n').filter((line) => line.includes('"endpoint":"/v1/messages"'))
    expect(await endpoints({})).toEqual([])
    expect(await endpoints({ 'batch-lines': true })).toHaveLength(2)
  })

  it('lists calls that wait or run now', async () => {
    expect(await run({ status: 'waiting' })).toBe('')
    const running = call('!echo first_ms=60000\nx')
    await until(async () => / running +.* echo-1 +chat\/completions /.test(await run({ status: 'active' })))
    expect(JSON.parse(await run({ status: 'running' }, [], false))).toMatchObject({ status: 'running', position: null })
    expect(await run({ status: 'running', output: 'csv' })).toMatch(/^id,started_at,age_ms,/)
    const { ended, noted } = start({ status: 'running' })
    await ended
    expect(noted()).toMatch(/^Answered by the ingress \S+, which lists only its own calls\.$/m)
    const { id } = JSON.parse(await run({ status: 'running' }, [], false))
    expect((await stack.post(`/v1/admin/requests/${id}/cancel`, {})).status).toBe(200)
    expect(await running).toBe(id)
  })

  it.each([
    ['follow', true],
    ['limit', '5'],
    ['since', '1h'],
    ['error-code', 'overloaded'],
  ])('refuses --%s together with --status waiting', async (name, value) => {
    await expect(run({ status: 'waiting', [name]: value })).rejects.toThrow(`--${name} applies to ended calls`)
  })

  it('prints complete ids, times and error codes in 80 columns, and omits less important columns', async () => {
    const id = await call('!echo fail=upstream_refused')
    await untilLogged(id)
    const [head = '', ...lines] = (await run({}, [], true, stack.url, 80)).trim().split('\n')
    expect(head).toMatch(/^request +ended +status +(took +)?model +error$/)
    expect(lines.every((line) => line.length <= 80 && !line.includes('…'))).toBe(true)
    const found = lines.find((line) => line.startsWith(id)) ?? ''
    expect(found).toMatch(/^\S+ +\d\d:\d\d:\d\d +\d{3} .*echo-1 +upstream_refused$/)
  })

  it('prints all columns of the table if the output is a file', async () => {
    const id = await call('!echo fail=upstream_refused')
    await untilLogged(id)
    const output = new Output(
      { out: Object.assign(new PassThrough(), { isTTY: false }), err: new PassThrough() },
      'table',
    )
    expect(output.columns).toBeGreaterThan(1_000)
    const table = await run({}, [], true, stack.url, output.columns)
    expect(table).toMatch(new RegExp(`^${id} .* echo-1 .* upstream_refused +\\S+ .*$`, 'm'))
  })

  it('filters by time, status and duration, and shows all fields of one call', async () => {
    const id = await call('!echo fail=upstream_refused')
    await untilLogged(id)
    expect(await run({ status: 'failed', since: '1h', limit: '1' })).toContain(id)
    expect(await run({ status: 'failed', until: '1h' })).toBe('')
    expect(await run({ 'min-duration-ms': '600000' })).toBe('')
    const one = start({}, [id])
    await one.ended
    expect(one.printed()).toMatch(/^error_code +upstream_refused\nerror_message +\S/m)
    expect(one.noted()).toMatch(
      /^Next step: Use another model\. If .* send the request id req_\w+ to the operator\.\nConsole: http\S+\/req_\w+$/m,
    )
    const retried = await call('!echo fail=upstream_error failures=1\nfine')
    await untilLogged(retried)
    expect(await run({}, [retried])).toMatch(/^failed attempt .* message\n1 +\S+ +\d+ ms +\d+ ms .*upstream_error +\S/m)
    await expect(run({}, ['req_none'])).rejects.toThrow("No request with the id 'req_none'")
  })

  it('with --follow prints each new call once', async () => {
    const following = start({ follow: true, status: '2xx' })
    const ids = [await call('one'), await call('two')]
    await until(() => following.printed().includes(ids[1] ?? ''))
    const last = await call('three')
    await until(() => following.printed().includes(last))
    await following.http.close()
    await expect(following.ended).rejects.toThrow()
    for (const id of [...ids, last]) expect(following.printed().split(id)).toHaveLength(2)
  })
  it('with --follow ends at Ctrl-C and prints the command that resumes the output', async () => {
    const id = await call('x')
    await untilLogged(id)
    const following = start({ follow: true })
    await until(() => following.printed().includes(id))
    const { ended_at } = (await (await stack.get(`/v1/admin/requests/${id}`)).json()) as { ended_at: number }
    process.emit('SIGINT')
    await expect(following.ended).rejects.toMatchObject({
      exit: 130,
      next: `To continue from the last printed call: sluice logs -f --since ${new Date(1_000 * ended_at).toISOString()}`,
    })
  })

  it('with --follow prints no call that is older than the first page', async () => {
    const ids = [await call('old'), await call('first')]
    await untilLogged(ids[1] ?? '')
    const following = start({ follow: true, limit: '1' })
    await until(() => following.printed().includes(ids[1] ?? ''))
    const last = await call('last')
    await until(() => following.printed().includes(last))
    await following.http.close()
    await expect(following.ended).rejects.toThrow()
    expect(following.printed()).not.toContain(ids[0])
  })

  it('with --follow prints one message and retries after a 503 or a broken connection', async () => {
    const date = 'Thu, 01 Jan 2026 00:00:00 GMT'
    const polls: string[] = []
    const page = JSON.stringify({ object: 'list', data: [], first_id: null, last_id: null, has_more: false })
    const server = createServer(({ url = '' }, res) => {
      polls.push(url)
      res.setHeader('date', date)
      if (polls.length === 2) res.writeHead(503).end()
      else if (polls.length === 3) res.writeHead(200).write('{', () => res.destroy())
      else res.end(page)
    }).listen(0, '127.0.0.1')
    onTestFinished(() => void server.close().closeAllConnections())
    await once(server, 'listening')
    const following = start({ follow: true }, [], true, `http://127.0.0.1:${(server.address() as AddressInfo).port}`)
    await Promise.race([until(() => polls.length === 4), following.ended])
    await following.http.close()
    await expect(following.ended).rejects.toThrow()
    expect(polls[3]).toContain(`since=${Date.parse(date) / 1_000 - 10}`)
    expect(following.noted().match(/Trying again/g)).toHaveLength(1)
  })

  it('with --follow prints even the longest error code completely', async () => {
    const following = start({ follow: true, 'min-duration-ms': '0' }, [], true, stack.url, 100)
    await call('one')
    await until(() => following.printed().includes(' 200 '))
    const [code = ''] = Object.keys(ERRORS).toSorted((a, b) => b.length - a.length)
    const id = await call(`!echo fail=${code}`)
    await until(() => following.printed().includes(id))
    await following.http.close()
    await expect(following.ended).rejects.toThrow()
    expect(following.printed()).toMatch(new RegExp(`^${id} .* ${code}$`, 'm'))
  })
})
