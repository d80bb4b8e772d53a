import { batch, useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { fetchApi, fetchJson, isOperator, messageOf } from '#services/console/api/client.ts'
import { dayOfMonthText, dayText, serviceNow, usdText } from '#services/console/api/clock.ts'
import { keyName, projectName } from '#services/console/api/names.ts'
import { Chart } from '#services/console/parts/chart.tsx'
import { Count, ErrorText, ShortId, useAction, usePoll } from '#services/console/parts/parts.tsx'
import { BASE, setQuery } from '#services/console/parts/router.ts'
import { Empty, LoadState } from '#services/console/parts/states.tsx'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { Failures } from '#services/console/screens/requests/failures.tsx'
import { Budgets } from './budgets.tsx'
import {
  DAY_SECONDS,
  dayOf,
  GROUPS,
  type Group,
  hourText,
  incompleteFrom,
  METRICS,
  monthStart,
  periodText,
  previousOf,
  RANGES,
  type Report,
  type Row,
  startOf,
  type View,
  viewOf,
} from './range.ts'

const REFRESH_INTERVAL_MS = 30_000
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
      const [time, group, prior] = await Promise.all([
        fetchBy(`group_by=${view.unit}`),
        fetchBy(`group_by=${view.by}&order_by=cost`),
        earlier ? fetchBy(`group_by=${view.unit}`, earlier).catch(() => undefined) : undefined,
      ])
      // The totals compare the three reports, so all of them change together.
      batch(() => {
        byTime.value = time
        byGroup.value = group
        before.value = prior
        problem.value = ''
      })
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
        <Sections byTime={byTime.value} byGroup={byGroup.value} before={before.value} view={view} />
      )}
    </section>
  )
}

interface SectionsProps {
  readonly byTime: Report
  readonly byGroup: Report
  readonly before: Report | undefined
  readonly view: View
}

/** The sections with links to them. Budgets are the first section if there is at least one budget. */
function Sections({ byTime, byGroup, before, view }: SectionsProps) {
  const sections: [id: string, name: string, content: ComponentChildren][] = [
    ['totals', 'Totals', <Totals key="totals" report={byTime} before={before} view={view} />],
    ['time', 'Over time', <OverTime key="time" report={byTime} view={view} />],
    ['groups', 'Top spenders', <Groups key="groups" report={byGroup} view={view} />],
    ['failures', 'Failures', <FailureSection key="failures" view={view} />],
  ]
  const budgets: (typeof sections)[number] = ['budgets', 'Budgets', <Budgets key="budgets" report={byGroup} />]
  const all = byGroup.budgets.length > 0 ? [budgets, ...sections] : [...sections, budgets]
  return (
    <>
      <nav class="sections" aria-label="Sections">
        {all.map(([id, name]) => (
          <a key={id} href={`#${id}`}>
            {name}
          </a>
        ))}
      </nav>
      {all.map(([id, , content]) => (
        <div key={id} id={id} class="part">
          {content}
        </div>
      ))}
    </>
  )
}

function FailureSection({ view }: { readonly view: View }) {
  const window = windowOf(view)
  return (
    <>
      <div class="title">
        <h2>Failures by error code</h2>
      </div>
      <p class="dim">
        A call failed if its caller received an error (status 400 or above), refused calls such as 429 and 404 included,
        cancelled calls and calls without a valid key not.
      </p>
      <Failures
        hasStatusCounts
        query={{ ...view.filters, ...window }}
        filters={{ ...view.filters, ...window }}
        hasProjects={isOperator.value === true}
      />
    </>
  )
}

/** The time of a view as filters of the request log, so that a list has the requests that this screen counts. */
function windowOf({ since, until }: View): Readonly<Record<string, string>> {
  return { since: String(since), until: String(until) }
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
      <span class="dim">
        {range === '24h' && `From ${hourText(from)}, without the running hour. `}Days and hours are in UTC.
      </span>
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

const DAYS_MIN = 2
const countText = (value: number) => value.toLocaleString('en')

interface TotalsProps {
  readonly report: Report
  readonly before: Report | undefined
  readonly view: View
}

/** Sums of the range, each with its change since the previous period. */
function Totals({ report: { total, data }, before, view }: TotalsProps) {
  const complete = data.filter(
    ({ group }) => startOf(group.slice(0, view.unit === 'hour' ? 13 : 10)) < incompleteFrom(view),
  )
  const failed = total.calls === 0 ? '' : ` (${((total.failed / total.calls) * 100).toFixed(1)} %)`
  const figures = [
    ['Cost', usdText(total.cost_usd), 'cost_usd'],
    ['Requests', countText(total.calls), 'calls'],
    ['Failed', `${countText(total.failed)}${failed}`, 'failed'],
    ['Input tokens', countText(total.input_tokens), 'input_tokens'],
    ['Cached input', countText(total.cached_input_tokens), 'cached_input_tokens'],
    ['Output tokens', countText(total.output_tokens), 'output_tokens'],
  ] as const
  const changes = figures.map(([, , field]) => {
    const compared = complete.reduce((sum, row) => sum + row[field], 0)
    const textOf = field === 'cost_usd' ? usdText : countText
    return changeText({ compared, total: total[field], before: before?.total[field], textOf })
  })
  const forecast = view.range === 'month' ? monthEndOf(total.cost_usd, view) : undefined
  return (
    <>
      <dl class="card totals" aria-label="Totals">
        {figures.map(([name, value, field], nth) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class={field === 'failed' && total.failed > 0 ? 'bad' : undefined}>
              {value} <small class="dim">{changes[nth]}</small>
              {field === 'cost_usd' && forecast !== undefined && (
                <small class="dim">about {usdText(forecast)} at the end of the month</small>
              )}
            </dd>
          </div>
        ))}
      </dl>
      {changes.some((change) => change !== '') && before && (
        <p class="dim">
          Changes compare the complete {view.unit}s of this range with {periodText(before)}.
        </p>
      )}
    </>
  )
}

interface Change {
  /** Sum of the complete hours or days of the range. */
  readonly compared: number
  readonly total: number
  /** Sum of the previous period. Undefined if unknown. */
  readonly before: number | undefined
  readonly textOf: (value: number) => string
}

/**
 * The change since the previous period with both values, such as `+12 % from 1,100`. If the total includes an incomplete day or hour, which the
 * comparison leaves out, then the compared sum is shown too: `+12 %: 1,232 after 1,100`. Empty if there is no earlier value.
 */
function changeText({ compared, total, before, textOf }: Change): string {
  if (!before) return ''
  const percent = Math.round((compared / before - 1) * 100)
  const change = `${percent < 0 ? '−' : '+'}${Math.abs(percent)} %`
  return compared === total
    ? `${change} from ${textOf(before)}`
    : `${change}: ${textOf(compared)} after ${textOf(before)}`
}

/** Cost of the whole month, if each day costs as much as the days so far. Undefined on the first days, because few days give no reliable mean. */
function monthEndOf(costUsd: number, { from }: View): number | undefined {
  const start = startOf(monthStart(from, 0))
  const passed = serviceNow() - start
  if (costUsd === 0 || passed < DAYS_MIN * DAY_SECONDS) return undefined
  return (costUsd * (startOf(monthStart(from, 1)) - start)) / passed
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

function GroupRow({ row, view, total }: { readonly row: Row; readonly view: View; readonly total: Report['total'] }) {
  const { by, filters } = view
  const { group, name, calls, failed, input_tokens, output_tokens, cost_usd } = row
  const query = { ...filters, [by]: group, status: 'failed', ...windowOf(view) }
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
        {group === '' ? (
          failed.toLocaleString('en')
        ) : (
          <Count value={failed} path={`requests?${new URLSearchParams(query)}`} isFailures />
        )}
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
