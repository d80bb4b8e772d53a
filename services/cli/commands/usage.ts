import { UsageReport as Report, type UsageReport } from '#schemas/usage.ts'
import { readApiError } from '#services/cli/client/http.ts'
import { EXIT, type ExitCode, tableOf, timeOf, usageError } from '#services/cli/text/output.ts'
import { changeText, coverageText } from '#shared/usage/comparison.ts'
import { forecastText, monthForecastText, spentPartText } from '#shared/usage/forecast.ts'
import { type Command, noArguments } from './command.ts'

/** Option of this command for each query parameter of `GET /v1/usage`. */
const QUERY = {
  ...{ from: 'since', to: 'until', group_by: 'group-by', order_by: 'order-by' },
  ...{ project: 'project', key: 'key-id', model: 'model', endpoint: 'endpoint' },
} as const

export const usage: Command = {
  summary: 'Show usage, cost and budgets',
  isList: true,
  help: `Usage: sluice usage [options]

Shows calls, tokens, cost and the remaining budget of your key's project; days and hours are in UTC. Below the table are the change since
the period before, and the forecast of this month. The output is a table on a terminal and one line of JSON otherwise. A key with the admin scope sees every project and every budget.

Options:
  --month MONTH        show this month (this, the default), the month before (last), or a month such as 2030-01
  --since DAY          first day, such as 2030-01-31; 7d for 7 full days and today, 24h for 24 full hours and the
                       running hour
  --until DAY          last day (default: today)
  --group-by GROUP     show one row per project, key, model, endpoint, day or hour (default day), or per
                       combination of several, such as day,project,key,model
  --order-by ORDER     sort the rows by group (default), or by cost, the most expensive first
  --project P          only this project, by id or name; requires the admin scope
  --key-id ID          only this API key
  --model MODEL        only this model
  --endpoint PATH      only this endpoint, such as /v1/chat/completions

Examples:
  sluice usage --group-by project --order-by cost --since 7d
  sluice usage --group-by project,model --month last -o csv > usage.csv
  sluice usage --group-by day,project,key,model --since 30d -o csv > usage.csv
  sluice usage --since 2030-01-01 --until 2030-01-31 --json | jq .total.cost_usd`,
  options: {
    ...Object.fromEntries([...Object.values(QUERY), 'month'].map((option) => [option, { type: 'string' }] as const)),
  },
  async run({ values, args, api, out }): Promise<ExitCode> {
    noArguments(args)
    const month = values.text('month')
    if (month !== undefined && (values.text('since') ?? values.text('until')) !== undefined) {
      throw usageError('Use either --month, or --since and --until, not both.')
    }
    const query = new URLSearchParams(month === undefined ? {} : monthRange(month, Date.now()))
    for (const [name, option] of Object.entries(QUERY)) {
      const value = values.text(option)
      if (value !== undefined) query.set(name, name === 'from' || name === 'to' ? timeIn(option, value) : value)
    }
    if (values.text('output') === 'csv') {
      query.set('format', 'csv')
      const response = await api.http.send(`/v1/usage?${query}`)
      if (response.statusCode >= 300) throw await readApiError(response)
      await out.write(await response.body.text())
      return EXIT.ok
    }
    query.set('compare', 'previous')
    const report = await api.http.json(Report, `/v1/usage?${query}`)
    const { input_tokens, output_tokens, cost_usd } = report.total
    if (cost_usd === 0 && input_tokens + output_tokens > 0 && values.text('order-by') === 'cost') out.note(NO_PRICES)
    if (out.isHumanReadable) await out.write(textOf(report, out.columns))
    else await out.json(report)
    return EXIT.ok
  },
}

const NO_PRICES = 'All costs are 0, because none of these models has a price. Set price in models.yaml.'

/** First and last day of a UTC month: `this`, `last`, or a month such as `2030-01`. @throws CommandError for any other text */
function monthRange(text: string, nowMs: number): { from: string; to: string } {
  const now = new Date(nowMs)
  const [, year, month] = /^(\d{4})-(0[1-9]|1[0-2])$/.exec(text) ?? []
  const named = text === 'this' || text === 'last' ? now.getUTCMonth() - (text === 'last' ? 1 : 0) : undefined
  const nth = named ?? Number(month) - 1
  if (Number.isNaN(nth)) throw usageError(`--month must be this, last, or a month such as 2030-01; got '${text}'.`)
  const startOf = (months: number) => Date.UTC(named === undefined ? Number(year) : now.getUTCFullYear(), nth + months)
  const [from, to] = [startOf(0), startOf(1) - 1].map((ms) => new Date(ms).toISOString().slice(0, 10))
  return { from: from as string, to: to as string }
}

/**
 * Parses a day in UTC, such as 2030-01-31. A duration counts back from now: `7d` is the day 7 days ago, `24h` the hour 24 hours ago. @throws
 * CommandError for any other text
 */
function timeIn(option: string, text: string): string {
  if (/^\d{4}-\d\d-\d\d$/.test(text)) return text
  if (/^\d+[hd]$/.test(text)) {
    const time = new Date(timeOf(option, text, Date.now(), -1) * 1_000).toISOString()
    return time.slice(0, text.endsWith('h') ? 13 : 10)
  }
  throw usageError(`--${option} must be a day such as 2030-01-31, or a duration such as 7d or 24h; got '${text}'.`)
}

const HEAD = ['calls', 'failed', 'input', 'cached', 'output', 'audio s', 'cost $']

function textOf(report: UsageReport, columns: number): string {
  const { group_by, data, total, from, to, has_more, budgets } = report
  if (data.length === 0) return `No usage from ${from} to ${to}.\n${budgetTable(budgets, columns)}`
  const dimensions = group_by.split(',')
  const isNamed = group_by === 'project' || group_by === 'key'
  const all: UsageReport['data'] = [...data, { group: 'total', name: null, ...total }]
  const rows = all.map((sums) => [
    ...groupCells(sums, dimensions),
    ...(isNamed ? [sums.name ?? ''] : []),
    ...[sums.calls, sums.failed, sums.input_tokens, sums.cached_input_tokens, sums.output_tokens].map(String),
    String(Math.round(sums.audio_seconds)),
    sums.cost_usd.toFixed(4),
  ])
  const head = [...dimensions, ...(isNamed ? ['name'] : []), ...HEAD]
  const table = tableOf({ head, rows, spare: ['audio s', 'cached', 'failed'], cut: ['name', 'model'] }, columns)
  const more = has_more
    ? 'Not all groups are shown. For the others, choose a shorter period with --since and --until.\n'
    : ''
  return `${table}${more}${summaryOf(report)}${budgetTable(budgets, columns)}`
}

const usd = (amount: number) => `$${amount.toFixed(2)}`
const count = (value: number) => value.toLocaleString('en')

/** The change since the period before, and the spending of this month with its forecast. */
function summaryOf({ comparison, current_month, total }: UsageReport): string {
  const lines: string[] = []
  if (comparison && comparison.previous.total.calls === 0) {
    const { from, to } = comparison.previous
    lines.push(`Change: none, because ${from} to ${to} has no data.`)
  } else if (comparison) {
    const { current, previous } = comparison
    const coverage = coverageText(comparison)
    const changes = (
      [
        ['cost', 'cost_usd', usd],
        ['calls', 'calls', count],
        ['failed', 'failed', count],
      ] as const
    ).flatMap(([name, field, textOf]) => {
      const text = changeText(comparison, field, total[field], textOf)
      return text ? [`${name} ${text}`] : []
    })
    const periods = `${current.from} to ${current.to} compared with ${previous.from} to ${previous.to}`
    lines.push(`Change: ${changes.join('; ')}`, `        ${periods}${coverage && ` (previous period: ${coverage})`}`)
  }
  if (current_month && current_month.spent_usd > 0) {
    lines.push(
      `Month:  ${usd(current_month.spent_usd)} spent in ${current_month.month}, ${monthForecastText(current_month)}`,
    )
  }
  return lines.length === 0 ? '' : `\n${lines.join('\n')}\n`
}

/** One cell per dimension: the name of a project or key, or otherwise the value. The row of totals has a text in the first cell only. */
function groupCells({ group, groups = {} }: UsageReport['data'][number], dimensions: readonly string[]): string[] {
  if (dimensions.length === 1) return [group || '(unknown)']
  if (group === 'total') return dimensions.map((_, nth) => (nth === 0 ? group : ''))
  return dimensions.map((name) => groups[`${name}_name`] || groups[name] || '(unknown)')
}

function budgetTable(budgets: UsageReport['budgets'], columns: number): string {
  if (budgets.length === 0) return ''
  const rows = budgets.map((budget) => {
    const { owner, id, name, month, budget_usd, spent_usd, remaining_usd } = budget
    const amounts = [`${budget_usd}`, spent_usd.toFixed(4), spentPartText(budget), remaining_usd.toFixed(4)]
    return [id, name ?? '', owner, month, ...amounts, forecastText(budget)]
  })
  const head = ['budget of', 'name', 'owner', 'month', 'budget $', 'spent $', 'spent', 'remaining $', 'forecast']
  return `\n${tableOf({ head, rows, spare: ['month', 'owner', 'spent'], cut: ['name'] }, columns)}`
}
