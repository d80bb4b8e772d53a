import { useSignal } from '@preact/signals'
import type { z } from 'zod'
import type { UsageReport } from '#schemas/usage.ts'
import { fetchApi, fetchJson, isOperator, messageOf } from '#services/console/api/client.ts'
import { dayOfMonthText, dayText, serviceNow, usdText } from '#services/console/api/clock.ts'
import { keyName, projectName } from '#services/console/api/names.ts'
import { Chart } from '#services/console/parts/chart.tsx'
import { Count, ErrorText, ShortId, useAction, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, queryParam, setQuery } from '#services/console/parts/router.ts'
import { Empty, LoadState } from '#services/console/parts/states.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { Failures } from '#services/console/screens/requests/failures.tsx'
import { Budgets } from './budgets.tsx'

const REFRESH_INTERVAL_MS = 30_000
const DAY_SECONDS = 86_400
const HOUR_SECONDS = 3_600
const HOURS_MAX = 7
type Report = z.infer<typeof UsageReport>
type Row = Report['data'][number]

/**
 * Ranges by id, in the order of the buttons. The last 24 hours are 23 complete hours and the current
 * hour, because usage is stored as one sum per hour.
 */
const RANGES: ReadonlyMap<string, string> = new Map([
  ['24h', 'Last 24 hours'],
  ['1', 'Today'],
  ['7', '7 days'],
  ['30', '30 days'],
  ['90', '90 days'],
  ['month', 'This month'],
  ['last-month', 'Last month'],
  ['custom', 'Custom'],
])
const GROUPS = { project: 'Project', key: 'API key', model: 'Model', endpoint: 'Endpoint' } as const
type Group = keyof typeof GROUPS

const METRICS = {
  cost: { name: 'Cost', of: ({ cost_usd }: Row) => cost_usd, textOf: usdText },
  calls: { name: 'Requests', of: ({ calls }: Row) => calls, textOf: (value: number) => value.toLocaleString('en') },
  tokens: {
    name: 'Tokens',
    of: ({ input_tokens, output_tokens }: Row) => input_tokens + output_tokens,
    textOf: (value: number) => value.toLocaleString('en'),
  },
  failed: { name: 'Failed', of: ({ failed }: Row) => failed, textOf: (value: number) => value.toLocaleString('en') },
} as const
type MetricName = keyof typeof METRICS

/** Usage and cost. The filters and the range are in the URL. */
export function Usage() {
  const view = viewOf()
  const query = new URLSearchParams({ ...view.filters, from: view.from, to: view.to }).toString()
  const byTime = useSignal<Report | undefined>(undefined)
  const byGroup = useSignal<Report | undefined>(undefined)
  const before = useSignal<Report | undefined>(undefined)
  const problem = useSignal('')
  const previous = previousOf(view)
  const earlier = previous && new URLSearchParams({ ...view.filters, ...previous }).toString()
  const refresh = async (signal: AbortSignal) => {
    const fetchBy = (by: string, range = query) => fetchJson<Report>(`/v1/usage?${range}&${by}`, { signal })
    try {
      const both = [fetchBy(`group_by=${view.unit}`), fetchBy(`group_by=${view.by}&order_by=cost`)]
      ;[byTime.value, byGroup.value] = await Promise.all(both)
      before.value = earlier ? await fetchBy(`group_by=${view.unit}`, earlier).catch(() => undefined) : undefined
      problem.value = ''
    } catch (error) {
      if (!signal.aborted) problem.value = messageOf(error)
    }
  }
  usePoll(REFRESH_INTERVAL_MS, refresh, [query, earlier, view.by, isOperator.value])
  return (
    <section class="usage">
      <div class="title">
        <h1>Usage</h1>
        <div class="actions">
          <Export name="Export CSV" query={`${query}&group_by=${view.by}&order_by=cost`} />
          <Export name={`Export CSV by ${view.unit}`} query={`${query}&group_by=${view.unit},project,key,model`} />
        </div>
      </div>
      <Filters view={view} />
      <LoadState problem={problem.value} isLoaded={byTime.value !== undefined && byGroup.value !== undefined} />
      {byTime.value && byGroup.value && (
        <>
          <Totals report={byTime.value} before={before.value} view={view} />
          <OverTime report={byTime.value} view={view} />
          <Groups report={byGroup.value} view={view} />
          <div class="title">
            <h2>Failures by error code</h2>
          </div>
          <p class="dim">
            A call failed if its caller received an error (status 400 or above), refused calls such as 429 and 404
            included, cancelled calls not.
            {isOperator.value && ' Calls without a valid key are listed below, but are not part of Failed above.'}
          </p>
          <Failures
            hasStatusCounts
            query={{ ...view.filters, since: String(view.since), until: String(view.until) }}
            filters={{ ...view.filters, range: REQUESTS_RANGE[view.range] ?? '' }}
            hasProjects={isOperator.value === true}
          />
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
  /** Start and end in Unix seconds. */
  readonly since: number
  readonly until: number
  readonly unit: 'hour' | 'day'
  readonly by: Group
  readonly metric: MetricName
  readonly filters: Readonly<Record<string, string>>
}

function viewOf(): View {
  const today = dayOf(serviceNow())
  const asked = queryParam('range')
  const range = RANGES.has(asked) ? asked : '7'
  const isHours = range === '24h'
  const [from, to] = boundsOf(range, today)
  const [by, metric] = [queryParam('by'), queryParam('metric')]
  const named = ['project', 'key', 'model', 'endpoint'].map((name) => [name, queryParam(name)] as const)
  const hasHours = isHours || (from === to && from >= dayOf(serviceNow() - HOURS_MAX * DAY_SECONDS))
  return {
    ...{ range, from, to, unit: hasHours ? 'hour' : 'day' },
    ...{ since: startOf(from), until: startOf(to) + (isHours ? HOUR_SECONDS : DAY_SECONDS) },
    by: Object.hasOwn(GROUPS, by) ? (by as Group) : isOperator.value ? 'project' : 'model',
    metric: Object.hasOwn(METRICS, metric) ? (metric as MetricName) : 'cost',
    filters: Object.fromEntries(named.filter(([, value]) => value !== '')),
  }
}

/** First and last day of a range, or the first and last hour of the last 24 hours. */
function boundsOf(range: string, today: string): readonly [from: string, to: string] {
  const now = serviceNow()
  if (range === '24h') return [hourOf(now - DAY_SECONDS + HOUR_SECONDS), hourOf(now)]
  if (range === 'month') return [monthStart(today, 0), today]
  if (range === 'last-month') return [monthStart(today, -1), dayOf(startOf(monthStart(today, 0)) - 1)]
  if (range !== 'custom') return [dayOf(now - (Number(range) - 1) * DAY_SECONDS), today]
  const to = queryParam('to') || today
  return [queryParam('from') || to, to]
}

/** Returns the first day of the month that contains `day`. @param months Number of months by which the result is shifted */
function monthStart(day: string, months: number): string {
  return dayOf(Date.UTC(Number(day.slice(0, 4)), Number(day.slice(5, 7)) - 1 + months) / 1_000)
}

/** Start of the current hour or day in Unix seconds. The usage of this hour or day is not complete, so comparisons leave it out. */
function incompleteFrom({ unit }: View): number {
  return startOf(unit === 'hour' ? hourOf(serviceNow()) : dayOf(serviceNow()))
}

/**
 * The complete hours or days of a view, moved back by the length of the view. Example: at 15:20, the hours from 00:00 to 15:00 of today are compared
 * with those of yesterday. The days of a month are compared with the same days of the month before. Undefined if the view has no complete hour or day.
 */
function previousOf(view: View): { readonly from: string; readonly to: string } | undefined {
  const { since, until, unit } = view
  const length = until - since
  const end = Math.min(until, incompleteFrom(view))
  if (end <= since) return undefined
  if (unit === 'day' && view.range.endsWith('month')) {
    const [first, limit] = [monthStart(view.from, -1), startOf(view.from)]
    const last = view.range === 'month' ? Math.min(startOf(first) + end - since, limit) : limit
    return { from: first, to: dayOf(last - 1) }
  }
  const textOf = unit === 'hour' ? hourOf : dayOf
  return { from: textOf(since - length), to: textOf(end - length - 1) }
}

function dayOf(seconds: number): string {
  return new Date(seconds * 1_000).toISOString().slice(0, 10)
}

function hourOf(seconds: number): string {
  return new Date(seconds * 1_000).toISOString().slice(0, 13)
}

/** Start of a UTC day or hour, in Unix seconds. */
function startOf(time: string): number {
  return (Date.parse(time.length > 10 ? `${time}:00:00Z` : time) || 0) / 1_000
}

function Filters({ view: { range, from, to, filters } }: { readonly view: View }) {
  return (
    <div class="filters">
      <fieldset class="chips" aria-label="Range">
        {[...RANGES].map(([id, name]) => (
          <button
            key={id}
            type="button"
            class="chip"
            aria-pressed={id === range}
            onClick={() =>
              setQuery({
                range: id,
                ...(id === 'custom' ? { from: from.slice(0, 10), to: to.slice(0, 10) } : { from: '', to: '' }),
              })
            }
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
      <span class="dim">{range === '24h' && `From ${hourText(from)} until now. `}Days and hours are in UTC.</span>
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

interface TotalsProps {
  readonly report: Report
  readonly before: Report | undefined
  readonly view: View
}

function Totals({ report: { total, data }, before, view }: TotalsProps) {
  const complete = data.filter(
    ({ group }) => startOf(group.slice(0, view.unit === 'hour' ? 13 : 10)) < incompleteFrom(view),
  )
  const failed = total.calls === 0 ? '' : ` (${((total.failed / total.calls) * 100).toFixed(1)} %)`
  const figures = [
    ['Cost', usdText(total.cost_usd), 'cost_usd'],
    ['Requests', total.calls.toLocaleString('en'), 'calls'],
    ['Failed', `${total.failed.toLocaleString('en')}${failed}`, 'failed'],
    ['Input tokens', total.input_tokens.toLocaleString('en'), 'input_tokens'],
    ['Cached input', total.cached_input_tokens.toLocaleString('en'), 'cached_input_tokens'],
    ['Output tokens', total.output_tokens.toLocaleString('en'), 'output_tokens'],
  ] as const
  const changes = figures.map(([, , field]) =>
    changeText(
      complete.reduce((sum, row) => sum + row[field], 0),
      before?.total[field],
    ),
  )
  return (
    <>
      <dl class="card totals" aria-label="Totals">
        {figures.map(([name, value, field], nth) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class={field === 'failed' && total.failed > 0 ? 'bad' : undefined}>
              {value} <small class="dim">{changes[nth]}</small>
            </dd>
          </div>
        ))}
      </dl>
      {changes.some((change) => change !== '') && before && (
        <p class="dim">
          Percentages with a sign compare complete {view.unit}s with {periodText(before)}.
        </p>
      )}
    </>
  )
}

/** The change since an earlier value, such as `+12 %`. Empty if there is no earlier value. */
function changeText(value: number, before: number | undefined): string {
  if (!before) return ''
  const percent = Math.round((value / before - 1) * 100)
  return `${percent < 0 ? '−' : '+'}${Math.abs(percent)} %`
}

/** Formats a UTC hour, such as `26 Nov 2026, 15:00`. @param later Seconds that are added */
function hourText(hour: string, later = 0): string {
  const text = hourOf(startOf(hour) + later)
  return `${dayText(text.slice(0, 10))}, ${text.slice(11, 13)}:00`
}

function periodText({ from, to }: Report): string {
  if (from.length > 10) return `${hourText(from)} to ${hourText(to, HOUR_SECONDS)}`
  return from === to ? dayText(from) : `${dayText(from)} to ${dayText(to)}`
}

function OverTime({ report, view: { from, to, unit, metric } }: { readonly report: Report; readonly view: View }) {
  const { name, of, textOf } = METRICS[metric]
  const times = timesOf(from, to, unit)
  const byTime = new Map(report.data.map((row) => [row.group, of(row)]))
  const timeOf = (nth: number) => {
    const time = times[nth] ?? ''
    return unit === 'hour' ? `${dayText(time.slice(0, 10))}, ${time.slice(11, 16)} UTC` : dayText(time)
  }
  const axisOf = (nth: number) => {
    const time = times[nth] ?? ''
    return unit === 'hour' ? time.slice(11, 16) : dayOfMonthText(startOf(time), 'UTC')
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
        {...{ timeOf, textOf, axisOf }}
      />
    </figure>
  )
}

const TIMES_MAX = 366

function timesOf(from: string, to: string, unit: View['unit']): readonly string[] {
  const start = startOf(from)
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
 * Grouping of the table after a click on a row, by the grouping before the click. Example: a click on project A filters by project A and
 * groups the table by model.
 */
const NEXT: Readonly<Record<Group, Group>> = { project: 'model', key: 'model', model: 'key', endpoint: 'model' }

const NUMBERS = ['Requests', 'Failed', 'Input tokens', 'Output tokens']

function Groups({ report: { data, total, has_more }, view }: { readonly report: Report; readonly view: View }) {
  const { by } = view
  const columns = [GROUPS[by], 'Cost', 'Share', ...NUMBERS]
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
            <a class="button" href={`${BASE}/usage?range=90`}>
              Show 90 days
            </a>
          }
        >
          Calls appear here when they have ended.
        </Empty>
      ) : (
        <Table
          label={`Usage by ${GROUPS[by].toLowerCase()}`}
          columns={columns}
          numbers={['Cost', ...NUMBERS]}
          card={{ end: 'Cost', hidden: ['Share', 'Input tokens', 'Output tokens'] }}
        >
          {data.map((row) => (
            <GroupRow key={row.group} row={row} view={view} total={total} />
          ))}
        </Table>
      )}
      {has_more && <p class="dim">Only the 1,000 most expensive groups are shown.</p>}
    </>
  )
}

/**
 * Value of the range filter of the screen Requests, in seconds, for each range of this screen. The request
 * log covers 7 days, so longer ranges have no entry.
 */
const REQUESTS_RANGE: Readonly<Record<string, string>> = { '24h': '86400', '1': '86400', '7': '604800' }

function GroupRow({ row, view, total }: { readonly row: Row; readonly view: View; readonly total: Report['total'] }) {
  const { by, range, filters } = view
  const { group, name, calls, failed, input_tokens, output_tokens, cost_usd } = row
  const query = { ...filters, [by]: group, status: 'failed', range: REQUESTS_RANGE[range] ?? '' }
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
        {name && (
          <span class="dim below">
            <ShortId id={group} />
          </span>
        )}
      </Cell>
      <Cell column="Cost">{usdText(cost_usd)}</Cell>
      <Cell column="Share">
        {Math.round(share * 100)} %
        <progress value={share} max={1} aria-label={`Share of ${name ?? group}`} />
      </Cell>
      <Cell column="Requests">{calls.toLocaleString('en')}</Cell>
      <Cell column="Failed">
        <Count value={failed} path={`requests?${new URLSearchParams(query)}`} isFailures />
      </Cell>
      <Cell column="Input tokens">{input_tokens.toLocaleString('en')}</Cell>
      <Cell column="Output tokens">{output_tokens.toLocaleString('en')}</Cell>
    </tr>
  )
}

function Export({ name: label, query }: { readonly name: string; readonly query: string }) {
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
        {label}
      </button>
    </>
  )
}
