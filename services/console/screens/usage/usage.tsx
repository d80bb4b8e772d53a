import { useSignal } from '@preact/signals'
import type { z } from 'zod'
import type { UsageReport } from '#schemas/usage.ts'
import { fetchApi, fetchJson, isOperator, messageOf } from '#services/console/api/client.ts'
import { dayText, monthText, serviceNow, usdText } from '#services/console/api/clock.ts'
import { keyName, projectName } from '#services/console/api/names.ts'
import { Chart } from '#services/console/parts/chart.tsx'
import { Cell, ErrorText, Table, useAction, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, queryParam, setQuery } from '#services/console/parts/router.ts'
import { Empty, LoadState } from '#services/console/parts/states.tsx'

const REFRESH_INTERVAL_MS = 30_000
const DAY_SECONDS = 86_400
const HOURS_MAX = 7
type Report = z.infer<typeof UsageReport>
type Row = Report['data'][number]

const RANGES = { '1': 'Today', '7': '7 days', '30': '30 days', '90': '90 days', custom: 'Custom' } as const
const GROUPS = { project: 'Project', key: 'API key', model: 'Model', endpoint: 'Endpoint' } as const
type Group = keyof typeof GROUPS

const METRICS = {
  cost: { name: 'Cost', of: ({ cost_usd }: Row) => cost_usd, textOf: usdText },
  calls: { name: 'Requests', of: ({ calls }: Row) => calls, textOf: (value: number) => value.toLocaleString() },
  tokens: {
    name: 'Tokens',
    of: ({ input_tokens, output_tokens }: Row) => input_tokens + output_tokens,
    textOf: (value: number) => value.toLocaleString(),
  },
  failed: { name: 'Failed', of: ({ failed }: Row) => failed, textOf: (value: number) => value.toLocaleString() },
} as const
type MetricName = keyof typeof METRICS

/** Usage and cost. The filters and the range are in the URL. */
export function Usage() {
  const view = viewOf()
  const query = new URLSearchParams({ ...view.filters, from: view.from, to: view.to }).toString()
  const byTime = useSignal<Report | undefined>(undefined)
  const byGroup = useSignal<Report | undefined>(undefined)
  const problem = useSignal('')
  const refresh = async (signal: AbortSignal) => {
    const fetchBy = (by: string) => fetchJson<Report>(`/v1/usage?${query}&${by}`, { signal })
    try {
      const both = [fetchBy(`group_by=${view.unit}`), fetchBy(`group_by=${view.by}&order_by=cost`)]
      ;[byTime.value, byGroup.value] = await Promise.all(both)
      problem.value = ''
    } catch (error) {
      if (!signal.aborted) problem.value = messageOf(error)
    }
  }
  usePoll(REFRESH_INTERVAL_MS, refresh, [query, view.by, isOperator.value])
  return (
    <section class="usage">
      <div class="title">
        <h1>Usage</h1>
        <Export query={`${query}&group_by=${view.by}&order_by=cost`} />
      </div>
      <Filters view={view} />
      <LoadState problem={problem.value} isLoaded={byTime.value !== undefined && byGroup.value !== undefined} />
      {byTime.value && byGroup.value && (
        <>
          <Totals report={byTime.value} />
          <OverTime report={byTime.value} view={view} />
          <Groups report={byGroup.value} view={view} />
          <Budgets report={byGroup.value} />
        </>
      )}
    </section>
  )
}

interface View {
  readonly range: string
  readonly from: string
  readonly to: string
  readonly unit: 'hour' | 'day'
  readonly by: Group
  readonly metric: MetricName
  readonly filters: Readonly<Record<string, string>>
}

function viewOf(): View {
  const today = dayOf(serviceNow())
  const asked = queryParam('range')
  const range = Object.hasOwn(RANGES, asked) ? asked : '7'
  const isCustom = range === 'custom'
  const to = (isCustom && queryParam('to')) || today
  const from = isCustom ? queryParam('from') || to : dayOf(serviceNow() - (Number(range) - 1) * DAY_SECONDS)
  const [by, metric] = [queryParam('by'), queryParam('metric')]
  const named = ['project', 'key', 'model', 'endpoint'].map((name) => [name, queryParam(name)] as const)
  const hasHours = from === to && from >= dayOf(serviceNow() - HOURS_MAX * DAY_SECONDS)
  return {
    ...{ range, from, to, unit: hasHours ? 'hour' : 'day' },
    by: Object.hasOwn(GROUPS, by) ? (by as Group) : isOperator.value ? 'project' : 'model',
    metric: Object.hasOwn(METRICS, metric) ? (metric as MetricName) : 'cost',
    filters: Object.fromEntries(named.filter(([, value]) => value !== '')),
  }
}

function dayOf(seconds: number): string {
  return new Date(seconds * 1_000).toISOString().slice(0, 10)
}

function Filters({ view: { range, from, to, filters } }: { readonly view: View }) {
  return (
    <div class="filters">
      <fieldset class="chips" aria-label="Range">
        {Object.entries(RANGES).map(([id, name]) => (
          <button
            key={id}
            type="button"
            class="chip"
            aria-pressed={id === range}
            onClick={() => setQuery({ range: id, from: id === 'custom' ? from : '', to: id === 'custom' ? to : '' })}
          >
            {name}
          </button>
        ))}
      </fieldset>
      {range === 'custom' && (
        <>
          <DayInput label="First day" name="from" value={from} />
          <DayInput label="Last day" name="to" value={to} />
        </>
      )}
      {Object.entries(filters).map(([name, value]) => (
        <button key={name} type="button" class="small" onClick={() => setQuery({ [name]: '' })}>
          {GROUPS[name as Group]}: {nameOf(name, value)} <span aria-hidden="true">×</span>
          <span class="visually-hidden">, remove this filter</span>
        </button>
      ))}
      <span class="dim">Days and hours are in UTC.</span>
    </div>
  )
}

function nameOf(group: string, id: string): string {
  return group === 'project' ? projectName(id) : group === 'key' ? keyName(id) : id
}

function DayInput({ label, name, value }: { readonly label: string; readonly name: string; readonly value: string }) {
  return (
    <input
      type="date"
      aria-label={label}
      value={value}
      onChange={({ currentTarget }) => setQuery({ [name]: currentTarget.value })}
    />
  )
}

function Totals({ report: { total } }: { readonly report: Report }) {
  const failed = total.calls === 0 ? '' : ` (${((total.failed / total.calls) * 100).toFixed(1)} %)`
  const figures = [
    ['Cost', usdText(total.cost_usd)],
    ['Requests', total.calls.toLocaleString()],
    ['Failed', `${total.failed.toLocaleString()}${failed}`],
    ['Input tokens', total.input_tokens.toLocaleString()],
    ['Cached input', total.cached_input_tokens.toLocaleString()],
    ['Output tokens', total.output_tokens.toLocaleString()],
  ]
  return (
    <dl class="card totals" aria-label="Totals">
      {figures.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  )
}

function OverTime({ report, view: { from, to, unit, metric } }: { readonly report: Report; readonly view: View }) {
  const { name, of, textOf } = METRICS[metric]
  const times = timesOf(from, to, unit)
  const byTime = new Map(report.data.map((row) => [row.group, of(row)]))
  const timeOf = (nth: number) => {
    const time = times[nth] ?? ''
    return unit === 'hour' ? `${time.slice(11, 16)} UTC` : dayText(time)
  }
  return (
    <figure class="card">
      <figcaption>
        <strong>
          {name} per {unit}
        </strong>
        <fieldset class="chips" aria-label="Plotted metric">
          {Object.entries(METRICS).map(([id, one]) => (
            <button
              key={id}
              type="button"
              class="chip"
              aria-pressed={id === metric}
              onClick={() => setQuery({ metric: id === 'cost' ? '' : id })}
            >
              {one.name}
            </button>
          ))}
        </fieldset>
      </figcaption>
      <Chart
        label={`${name} per ${unit}`}
        hasBars
        series={[
          {
            name,
            mark: metric === 'failed' ? 'failed' : 'running',
            values: times.map((time) => byTime.get(time) ?? 0),
          },
        ]}
        {...{ timeOf, textOf }}
      />
      <p class="dim span">
        <span>{timeOf(0)}</span>
        <span>{timeOf(times.length - 1)}</span>
      </p>
    </figure>
  )
}

const TIMES_MAX = 366

function timesOf(from: string, to: string, unit: View['unit']): readonly string[] {
  const start = Date.parse(from) / 1_000
  if (unit === 'hour') {
    return Array.from(
      { length: 24 },
      (_, hour) => `${new Date((start + hour * 3_600) * 1_000).toISOString().slice(0, 19)}Z`,
    )
  }
  const count = Math.floor((Date.parse(to) / 1_000 - start) / DAY_SECONDS) + 1
  const length = Math.max(1, Math.min(TIMES_MAX, Number.isFinite(count) ? count : 1))
  return Array.from({ length }, (_, day) => dayOf(start + day * DAY_SECONDS))
}

/**
 * Grouping after a click on a row, by current grouping. The clicked row becomes a filter, and the table is then grouped
 * by this dimension.
 */
const NEXT: Readonly<Record<Group, Group>> = { project: 'model', key: 'model', model: 'key', endpoint: 'model' }

function Groups({ report: { data, total, has_more }, view }: { readonly report: Report; readonly view: View }) {
  const { by } = view
  const columns = [GROUPS[by], 'Cost', 'Share', 'Requests', 'Failed', 'Input tokens', 'Output tokens']
  return (
    <>
      <div class="title">
        <h2>Top spenders</h2>
        <fieldset class="chips" aria-label="Group by">
          {Object.entries(GROUPS).map(([id, name]) => (
            <button key={id} type="button" class="chip" aria-pressed={id === by} onClick={() => setQuery({ by: id })}>
              {name}
            </button>
          ))}
        </fieldset>
      </div>
      {data.length === 0 ? (
        <Empty
          title="No usage in this range"
          action={
            <a class="button" href={`${BASE}/usage?range=90d`}>
              Show 90 days
            </a>
          }
        >
          Calls appear here when they have ended.
        </Empty>
      ) : (
        <Table label={`Usage by ${GROUPS[by].toLowerCase()}`} columns={columns}>
          {data.map((row) => (
            <GroupRow key={row.group} row={row} view={view} total={total} />
          ))}
        </Table>
      )}
      {has_more && <p class="dim">Only the 1,000 most expensive groups are shown.</p>}
    </>
  )
}

/** The range of the screen Requests, in seconds. The request log has the last days only. */
const REQUESTS_RANGE: Readonly<Record<string, string>> = { '1': '86400', '7': '604800' }

function GroupRow({ row, view, total }: { readonly row: Row; readonly view: View; readonly total: Report['total'] }) {
  const { by, range, filters } = view
  const { group, name, calls, failed, input_tokens, output_tokens, cost_usd } = row
  const query = { ...filters, [by]: group, status: 'failed', range: REQUESTS_RANGE[range] ?? '' }
  const failures = `${BASE}/requests?${new URLSearchParams(query)}`
  const share = total.cost_usd > 0 ? cost_usd / total.cost_usd : calls / Math.max(1, total.calls)
  return (
    <tr>
      <Cell column={GROUPS[by]}>
        {group === '' ? (
          <span class="dim">unknown</span>
        ) : (
          <button type="button" class="link" onClick={() => setQuery({ [by]: group, by: NEXT[by] })}>
            {name ?? nameOf(by, group)}
          </button>
        )}
        {name && <code class="dim below">{group}</code>}
      </Cell>
      <Cell column="Cost">{usdText(cost_usd)}</Cell>
      <Cell column="Share">
        <progress value={share} max={1} aria-label={`Share of ${name ?? group}`} /> {Math.round(share * 100)} %
      </Cell>
      <Cell column="Requests">{calls.toLocaleString()}</Cell>
      <Cell column="Failed">
        {failed === 0 ? (
          '0'
        ) : (
          <a class="bad" href={failures} title="Show the failed requests">
            {failed.toLocaleString()}
          </a>
        )}
      </Cell>
      <Cell column="Input tokens">{input_tokens.toLocaleString()}</Cell>
      <Cell column="Output tokens">{output_tokens.toLocaleString()}</Cell>
    </tr>
  )
}

function Budgets({ report: { budgets, total, alerts_to } }: { readonly report: Report }) {
  if (budgets.length === 0) return null
  return (
    <>
      <h2>Budgets of {monthText(budgets[0]?.month ?? '')}</h2>
      {total.calls > 0 && total.cost_usd === 0 && (
        <p class="note warn">
          No call in this range had a cost. Without a <code>price</code> in models.yaml, budgets have no effect.
        </p>
      )}
      {isOperator.value && (
        <p class="dim">
          {!alerts_to ? (
            <>
              No alerts are sent. With the setting <code>BUDGET_WEBHOOK_URL</code>, a URL receives alerts at 80 % and
              100 % of each budget.
            </>
          ) : (
            `Alerts at 80 % and 100 % of each budget are sent to ${alerts_to} (BUDGET_WEBHOOK_URL).`
          )}
        </p>
      )}
      <Table label="Budgets" columns={['Budget of', 'Spent', 'Left', 'Budget', 'Resets']}>
        {budgets.map(({ owner, id, name, budget_usd, spent_usd, remaining_usd, resets_at }) => (
          <tr key={owner + id}>
            <Cell column="Budget of">
              {name ?? id} <span class="dim">{owner}</span>
              {name && <code class="dim below">{id}</code>}
            </Cell>
            <Cell column="Spent">
              <progress
                value={Math.min(spent_usd, budget_usd)}
                max={budget_usd || 1}
                aria-label={`Spent part of the budget of ${name ?? id}`}
              />{' '}
              {usdText(spent_usd)}
            </Cell>
            <Cell column="Left">
              <span class={remaining_usd === 0 ? 'bad' : undefined}>{usdText(remaining_usd)}</span>
            </Cell>
            <Cell column="Budget">{usdText(budget_usd)}</Cell>
            <Cell column="Resets">{dayText(dayOf(resets_at))}</Cell>
          </tr>
        ))}
      </Table>
    </>
  )
}

function Export({ query }: { readonly query: string }) {
  const { isBusy, problem, run } = useAction()
  const save = async () => {
    const response = await fetchApi(`/v1/usage?${query}&format=csv`)
    const link = document.createElement('a')
    link.href = URL.createObjectURL(await response.blob())
    const [, name = 'usage.csv'] = /filename="([^"]+)"/.exec(response.headers.get('content-disposition') ?? '') ?? []
    link.download = name
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 1_000)
  }
  return (
    <>
      <ErrorText text={problem.value} />
      <button type="button" disabled={isBusy.value} onClick={() => void run(save)}>
        Export CSV
      </button>
    </>
  )
}
