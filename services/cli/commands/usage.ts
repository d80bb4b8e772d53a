import { UsageReport as Report, type UsageReport } from '#schemas/usage.ts'
import { type Command, noArguments } from '#services/cli/command.ts'
import { EXIT, type ExitCode } from '#services/cli/failure.ts'
import { tableOf } from '#services/cli/text/output.ts'

/** `sluice usage` */
export const usage: Command = {
  summary: 'Show what was used, and what it cost',
  help: `Usage: sluice usage [options]

Shows calls, tokens and costs of this key's project by day of UTC, and what is left of its budget: a table on a terminal, one
line of JSON elsewhere and with --json. A key for operators sees every project.

Options:
  --from DAY       first day (default: the first of the month)
  --to DAY         last day (default: today)
  --group-by WHAT  project, key, model or day (default)
  --project P      only this project, by its id or its name, for operators

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
    if (out.isForPeople) await out.write(textOf(report, out.columns))
    else await out.json(report)
    return EXIT.ok
  },
}

const HEAD = ['calls', 'failed', 'input', 'cached', 'output', 'audio s', 'cost $']

function textOf({ group_by, data, total, from, to, has_more, budgets }: UsageReport, columns: number): string {
  if (data.length === 0) return `Nothing was used from ${from} to ${to}.\n${budgets.map(budgetText).join('')}`
  const rows = [...data, { group: 'total', ...total }].map((sums) => [
    sums.group,
    ...[sums.calls, sums.failed, sums.input_tokens, sums.cached_input_tokens, sums.output_tokens].map(String),
    String(Math.round(sums.audio_seconds)),
    sums.cost_usd.toFixed(4),
  ])
  const table = tableOf({ head: [group_by, ...HEAD], rows, spare: ['audio s', 'cached', 'failed'] }, columns)
  return `${table}${has_more ? 'There is more: narrow the days.\n' : ''}${budgets.map(budgetText).join('')}`
}

function budgetText({ owner, month, budget_usd, spent_usd, remaining_usd }: UsageReport['budgets'][number]): string {
  const [spent, left] = [spent_usd.toFixed(4), remaining_usd.toFixed(4)]
  return `Budget of the ${owner} for ${month}: $${budget_usd}, $${spent} spent, $${left} left.\n`
}
