import { UsageReport as Report, type UsageReport } from '#schemas/usage.ts'
import { EXIT, type ExitCode, tableOf } from '#services/cli/text/output.ts'
import { type Command, noArguments } from './command.ts'

export const usage: Command = {
  summary: 'Show usage, cost and budgets',
  help: `Usage: sluice usage [options]

Shows calls, tokens, cost and the remaining budget of your key's project; days are in UTC. The output is a table on a terminal and
one line of JSON otherwise. A key with the admin scope sees every project.

Options:
  --from DAY        first day (default: first day of this month)
  --to DAY          last day (default: today)
  --group-by GROUP  project, key, model or day (default day)
  --project P       only this project, by id or name; requires the admin scope

Examples:
  sluice usage --group-by model
  sluice usage --from 2030-01-01 --to 2030-01-31 --json | jq .total.cost_usd`,
  options: {
    from: { type: 'string' },
    to: { type: 'string' },
    'group-by': { type: 'string' },
    project: { type: 'string' },
  },
  async run({ values, args, api, out }): Promise<ExitCode> {
    noArguments(args)
    const query = new URLSearchParams()
    for (const [name, option] of Object.entries({ from: 'from', to: 'to', group_by: 'group-by', project: 'project' })) {
      const value = values.text(option)
      if (value !== undefined) query.set(name, value)
    }
    const report = await api.http.json(Report, `/v1/usage?${query}`)
    if (out.isHumanReadable) await out.write(textOf(report, out.columns))
    else await out.json(report)
    return EXIT.ok
  },
}

const HEAD = ['calls', 'failed', 'input', 'cached', 'output', 'audio s', 'cost $']

function textOf({ group_by, data, total, from, to, has_more, budgets }: UsageReport, columns: number): string {
  if (data.length === 0) return `No usage from ${from} to ${to}.\n${budgets.map(budgetText).join('')}`
  const rows = [...data, { group: 'total', ...total }].map((sums) => [
    sums.group,
    ...[sums.calls, sums.failed, sums.input_tokens, sums.cached_input_tokens, sums.output_tokens].map(String),
    String(Math.round(sums.audio_seconds)),
    sums.cost_usd.toFixed(4),
  ])
  const table = tableOf({ head: [group_by, ...HEAD], rows, spare: ['audio s', 'cached', 'failed'] }, columns)
  return `${table}${has_more ? 'Not all groups are shown. For the others, choose a shorter period with --from and --to.\n' : ''}${budgets.map(budgetText).join('')}`
}

function budgetText({ owner, month, budget_usd, spent_usd, remaining_usd }: UsageReport['budgets'][number]): string {
  const [spent, remaining] = [spent_usd.toFixed(4), remaining_usd.toFixed(4)]
  return `Budget of the ${owner} for ${month}: $${budget_usd}, $${spent} spent, $${remaining} remaining.\n`
}
