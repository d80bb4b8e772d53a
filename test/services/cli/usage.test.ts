/* Tests of `sluice usage`: its output on a terminal and in a pipe. */

import { PassThrough } from 'node:stream'
import { text } from 'node:stream/consumers'
import { describe, expect, it } from 'vitest'
import { HttpClient } from '#services/cli/client/http.ts'
import { JobsApi } from '#services/cli/client/jobs-api.ts'
import { CommandLine, Values } from '#services/cli/commands/command.ts'
import { usage } from '#services/cli/commands/usage.ts'
import { Output } from '#services/cli/text/output.ts'
import { parseConfig } from '#shared/config/config.ts'
import { dayAgo, directoryWithDays } from '../../support/ledger.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

async function run(stack: Stack, values: Record<string, string>, isTTY: boolean): Promise<string> {
  const http = new HttpClient(stack.url, TEST_KEY)
  const [out, err] = [Object.assign(new PassThrough(), { isTTY, columns: 100 }), new PassThrough()]
  const stdout = text(out)
  const line = { values: new Values(values), args: [], commandLine: new CommandLine([]) }
  const invocation = { ...line, config: parseConfig({}), api: new JobsApi(http) }
  try {
    await usage.run({ ...invocation, out: new Output({ out, err }) })
  } finally {
    out.end()
    await http.close()
  }
  return await stdout
}

describe('sluice usage', () => {
  it('prints a table with its total on a terminal, and JSON in a pipe', async () => {
    await using stack = await startStack({ models: [{ ...ECHO_MODEL, price: { output_per_million: 100_000 } }] })
    expect(await run(stack, {}, true)).toMatch(/^No usage from \d{4}-\d\d-01 to /)
    const body = { model: 'echo-1', messages: [{ role: 'user', content: '!echo tokens=10' }] }
    await (await stack.post('/v1/chat/completions', body)).text()
    const table = await until(async () => {
      const shown = await run(stack, { 'group-by': 'model' }, true)
      return shown.includes('echo-1') ? shown.split('\n') : undefined
    })
    expect(table[0]).toMatch(/^model +calls +failed +input +cached +output +audio s +cost \$$/)
    expect(table[1]).toMatch(/^echo-1 +1 +0 +\d+ +0 +10 +0 +1\.0000$/)
    expect(table[2]).toMatch(/^total +1 +0 +\d+ +0 +10 +0 +1\.0000$/)
    const report = JSON.parse(await run(stack, { 'group-by': 'key' }, false))
    const csv = await run(stack, { 'group-by': 'model', output: 'csv' }, true)
    expect(csv.split('\r\n')[1]).toMatch(/^echo-1,1,0,\d+,0,10,0,1$/)
    expect(report).toMatchObject({ object: 'usage', group_by: 'key', total: { cost_usd: 1, output_tokens: 10 } })
    const hours = JSON.parse(await run(stack, { since: '24h' }, false))
    const startMs = Date.parse(`${hours.from}:00:00Z`)
    expect(Date.now() - startMs, '24 hours and a part of the running hour, in ms').toBeLessThan(25.1 * 3_600_000)
    expect(Date.now() - startMs).toBeGreaterThanOrEqual(24 * 3_600_000)
    expect(hours.total, 'usage with that of the running hour').toMatchObject({ calls: 1 })
    const rangeOf = async (month: string) => {
      const { from, to } = JSON.parse(await run(stack, { month }, false))
      return `${from} to ${to}`
    }
    expect(await rangeOf('2030-02')).toBe('2030-02-01 to 2030-02-28')
    const [year, month] = [new Date().getUTCFullYear(), new Date().getUTCMonth()]
    const dayOf = (ms: number) => new Date(ms).toISOString().slice(0, 10)
    const last = `${dayOf(Date.UTC(year, month - 1))} to ${dayOf(Date.UTC(year, month) - 1)}`
    expect(await rangeOf('last')).toBe(last)
    expect(await rangeOf('this')).toContain(`${dayOf(Date.UTC(year, month))} to `)
  })

  it('prints the change since the period before and the forecast of the month below the table', async () => {
    // The key of the test service belongs to no named project, so its project has the id of the key, `key_env`.
    const dataDir = await directoryWithDays([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], { project: 'key_env' })
    await using stack = await startStack({ models: [ECHO_MODEL], dataDir })
    const shown = await run(stack, { since: '7d' }, true)
    expect(shown).toContain('Change: cost +133 % from $3.00; calls +133 % from 3\n')
    const periods = `${dayAgo(7)} to ${dayAgo(1)} compared with ${dayAgo(14)} to ${dayAgo(8)}`
    expect(shown).toContain(`        ${periods} (previous period: 3 of 7 days with data)\n`)
    expect(await run(stack, { since: '90d' }, true), 'period before the first usage').toMatch(
      /Change: none, because .* has no data\./,
    )
    expect(await run(stack, { since: '30d' }, true)).toMatch(
      /^Month: {2}\$\d+\.00 spent in \d{4}-\d\d, about \$\d+\.\d\d at the end of the month, at the rate of the last 7 days$/m,
    )
  })

  it("prints the service's error message for an invalid date", async () => {
    await using stack = await startStack()
    await expect(run(stack, { since: 'yesterday' }, false)).rejects.toThrow(/--since must be a day/)
    await expect(run(stack, { month: '2030-13' }, false)).rejects.toThrow('--month must be this, last')
    await expect(run(stack, { month: 'this', since: '7d' }, false)).rejects.toThrow('not both')
  })
})
