import { batch, useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import type { UsageComparison } from '#schemas/usage.ts'
import { fetchJson, isOperator, messageOf } from '#services/console/api/client.ts'
import { countText, dayOfMonthText, dayText, serviceNow, usdText } from '#services/console/api/clock.ts'
import { Chart } from '#services/console/parts/chart.tsx'
import { ErrorText, usePoll } from '#services/console/parts/parts.tsx'
import { setQuery, urlWith } from '#services/console/parts/router.ts'
import { LoadState } from '#services/console/parts/states.tsx'
import { ExportCsv } from '#services/console/parts/table.tsx'
import {
  COUNT_ENDED,
  type FailureList,
  FailureTable,
  isServerError,
  sumOf,
  useFailures,
} from '#services/console/screens/requests/failures.tsx'
import {
  changeText,
  coverageText,
  DAY_SECONDS,
  dayOf,
  HOUR_SECONDS,
  logCoverageText,
  startOf,
} from '#shared/usage/comparison.ts'
import { monthForecastText } from '#shared/usage/forecast.ts'
import { GROUPS, type Group, METRICS, periodText, RANGES, type Report, type View, viewOf, windowOf } from './range.ts'
import { Budgets, NEXT, nameOf, percentText, Spenders, type Spending, topOf } from './spending.tsx'

const REFRESH_INTERVAL_MS = 30_000

interface Loaded extends Spending {
  readonly times: Report
}

/** Usage and cost. The filters and the range are in the URL. */
export function Usage() {
  const view = viewOf()
  const query = new URLSearchParams({ ...view.filters, from: view.from, to: view.to }).toString()
  const loaded = useSignal<Loaded | undefined>(undefined)
  const problem = useSignal('')
  const refresh = async (signal: AbortSignal) => {
    const fetchBy = (by: string, more: object = {}) => {
      const order_by = by === view.unit ? 'group' : 'cost'
      const asked = { ...view.filters, from: view.from, to: view.to, group_by: by, order_by, ...more }
      return fetchJson<Report>(`/v1/usage?${new URLSearchParams(asked)}`, { signal })
    }
    try {
      const [times, groups, parts] = await Promise.all([
        fetchBy(view.unit),
        fetchBy(view.by, { compare: 'previous' }),
        fetchBy('project,key,model'),
      ])
      batch(() => {
        loaded.value = { times, groups, parts }
        problem.value = ''
      })
    } catch (error) {
      if (!signal.aborted) problem.value = messageOf(error)
    }
  }
  usePoll(REFRESH_INTERVAL_MS, refresh, [query, view.by, isOperator.value])
  return (
    <section class="usage">
      <div class="title">
        <h1>Usage</h1>
      </div>
      <Filters view={view} />
      <LoadState problem={problem.value} isLoaded={loaded.value !== undefined} />
      {loaded.value && <Sections loaded={loaded.value} view={view} query={query} />}
    </section>
  )
}

interface SectionsProps {
  readonly loaded: Loaded
  readonly view: View
  readonly query: string
}

/** The sections of the screen, below links to each of them. */
function Sections({ loaded, view, query }: SectionsProps) {
  const { times, groups } = loaded
  const { found, problem } = useFailures({ ...view.filters, ...windowOf(view) })
  const ofGroups = `/v1/usage?${query}&group_by=${view.by}&order_by=cost&format=csv`
  const ofTimes = `/v1/usage?${query}&group_by=${view.unit},project,key,model&format=csv`
  const sections: [id: string, name: string, content: ComponentChildren][] = [
    ['totals', 'Totals', <Totals key="totals" loaded={loaded} view={view} failures={found} />],
    ['groups', 'Top spenders', <Spenders key="groups" spending={loaded} view={view} exportPath={ofGroups} />],
    ['failures', 'Failures', <FailureSection key="failures" view={view} found={found} problem={problem} />],
    ['time', 'Over time', <OverTime key="time" report={times} view={view} exportPath={ofTimes} />],
    ['budgets', 'Budgets', <Budgets key="budgets" report={groups} />],
  ]
  return (
    <>
      <nav class="sections" aria-label="Sections">
        {sections.map(([id, name]) => (
          <a key={id} href={`#${id}`}>
            {name}
          </a>
        ))}
      </nav>
      {sections.map(([id, , content]) => (
        <div key={id} id={id} class="part">
          {content}
        </div>
      ))}
    </>
  )
}

interface FailureSectionProps {
  readonly view: View
  readonly found: FailureList | undefined
  readonly problem: string
}

function FailureSection({ view, found, problem }: FailureSectionProps) {
  const query = { ...view.filters, ...windowOf(view) }
  const kinds = [
    ['Server errors', 'The service or an upstream server failed (status 500 and above).', true],
    ['Refused', 'The service refused the call, for example by a rate limit or as invalid (status below 500).', false],
  ] as const
  return (
    <>
      <div class="title">
        <h2>Failures by error code</h2>
        <ExportCsv
          what="failures"
          path={`/v1/admin/requests/failures?${new URLSearchParams({ ...query, format: 'csv' })}`}
        />
      </div>
      <p class="dim">
        A call failed if its caller received an error (status 400 or above). Cancelled calls and calls without a valid
        key are not counted.
      </p>
      <ErrorText text={problem} />
      {found?.data.length === 0 && <p class="dim">No failed requests in this range.</p>}
      {kinds.map(([name, meaning, isOfServer]) => {
        const rows = found?.data.filter((row) => isServerError(row) === isOfServer) ?? []
        if (rows.length === 0) return null
        return (
          <div key={name} class="part">
            <h3>
              {name}: {countText(sumOf(rows))}
            </h3>
            <p class="dim">{meaning}</p>
            <FailureTable
              label={name}
              rows={rows}
              filters={query}
              owners={isOperator.value ? ['Project', 'Key'] : ['Key']}
            />
          </div>
        )
      })}
      {found?.has_more && <p class="dim">{COUNT_ENDED}</p>}
    </>
  )
}

function Filters({ view }: { readonly view: View }) {
  const { range, from, to, filters } = view
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
          <DayInput label="From" name="from" value={from} />
          <DayInput label="To" name="to" value={to} />
        </>
      )}
      {Object.entries(filters).map(([name, value]) => (
        <a key={name} class="button small" href={urlWith({ [name]: '' })}>
          {GROUPS[name as Group]}: {nameOf(name, value)} <span aria-hidden="true">×</span>
          <span class="visually-hidden">, remove this filter</span>
        </a>
      ))}
      <span class="dim">{rangeText(view)} Days and hours are in UTC.</span>
    </div>
  )
}

/** The window of the view, such as `21 Nov 2026 to now: 7 full days and today.` */
function rangeText({ range, from, to, unit, until }: View): string {
  const text = periodText({ from, to })
  if (until <= serviceNow()) return `${text}.`
  const count = range === '24h' ? 24 : Number(range)
  const full = count > 1 ? `: ${count} full ${unit}s and ${unit === 'hour' ? 'the running hour' : 'today'}` : ''
  return `${text.split(' to ')[0]} to now${full}.`
}

function DayInput({ label, name, value }: { readonly label: string; readonly name: string; readonly value: string }) {
  return (
    <label class="choice">
      <span>{label}</span>
      <input type="date" value={value} onChange={({ currentTarget }) => setQuery({ [name]: currentTarget.value })} />
    </label>
  )
}

interface TotalsProps {
  readonly loaded: Loaded
  readonly view: View
  readonly failures: FailureList | undefined
}

/** Sums of the range, each with its change since the previous window. */
function Totals({ loaded: { times, groups, parts }, view, failures }: TotalsProps) {
  const { total } = times
  const { comparison, current_month } = groups
  const figures = [
    ['Cost', 'cost_usd', usdText],
    ['Requests', 'calls', countText],
    ['Failed', 'failed', countText],
    ['Input tokens', 'input_tokens', countText],
    ['Cached input', 'cached_input_tokens', countText],
    ['Output tokens', 'output_tokens', countText],
  ] as const
  const spender = isOperator.value ? 'project' : 'key'
  const tops = [
    ['Top spender', spender, topOf(parts.data, spender)],
    ['Top model', 'model', topOf(parts.data, 'model')],
  ] as const
  const notes: Readonly<Record<string, string | false | null | undefined>> = {
    cost_usd: current_month && current_month.spent_usd > 0 && monthForecastText(current_month),
    failed: total.failed > 0 && failures && kindsText(failures, total.failed, view),
  }
  return (
    <>
      <dl class="card totals" aria-label="Totals">
        {tops.map(
          ([name, part, top]) =>
            top && (
              <div key={name}>
                <dt>{name}</dt>
                <dd>
                  <a class="figure" href={urlWith({ [part]: top.id, by: NEXT[part] })}>
                    {top.text}
                  </a>
                  <small class="dim">
                    {usdText(top.cost)} ({percentText(top.cost, total.cost_usd)})
                  </small>
                </dd>
              </div>
            ),
        )}
        {figures.map(([name, field, textOf]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class={field === 'failed' && total.failed > 0 ? 'bad' : undefined}>
              {textOf(total[field])}
              {field === 'failed' && total.calls > 0 && ` (${((total.failed / total.calls) * 100).toFixed(1)} %)`}{' '}
              {notes[field] && <small>{notes[field]}</small>}
              {comparison && (
                <Change text={changeText(comparison, field, total[field], textOf)} comparison={comparison} />
              )}
            </dd>
          </div>
        ))}
      </dl>
      {comparison && total.calls > 0 && <ComparisonNote comparison={comparison} />}
    </>
  )
}

function Change({ text, comparison }: { readonly text: string; readonly comparison: UsageComparison }) {
  const coverage = text && coverageText(comparison)
  return (
    <small class="dim">
      {text}
      {coverage && ` (${coverage})`}
    </small>
  )
}

/** The compared periods, and the part of the earlier one that has data, because a change since an incomplete period looks like growth. */
function ComparisonNote({ comparison }: { readonly comparison: UsageComparison }) {
  const { current, previous } = comparison
  if (previous.total.calls === 0) {
    return <p class="dim">No change is shown: {periodText(previous)} has no data.</p>
  }
  const coverage = coverageText(comparison)
  return (
    <p class="dim">
      Changes compare {periodText(current)} with {periodText(previous)}
      {coverage && (
        <>
          {' '}
          (<b>previous period: {coverage}</b>)
        </>
      )}
      .
    </p>
  )
}

/** The two kinds of failed calls, such as `78 server errors, 14 refused`, and the number of those that are no longer in the request log. */
function kindsText({ data, has_more, log_since }: FailureList, failed: number, { since }: View): string {
  const sum = sumOf(data)
  const ofServer = sumOf(data.filter(isServerError))
  const kinds = `${countText(ofServer)} server ${ofServer === 1 ? 'error' : 'errors'}, ${countText(sum - ofServer)} refused`
  const missing = has_more ? '' : logCoverageText(log_since ?? null, since, failed - sum)
  return missing ? `${kinds}; ${missing}` : kinds
}

interface OverTimeProps {
  readonly report: Report
  readonly view: View
  readonly exportPath: string
}

function OverTime({ report, view, exportPath }: OverTimeProps) {
  const { unit, metric } = view
  const { name, of, textOf } = METRICS[metric]
  const times = timesOf(view)
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
        <ExportCsv what={`usage by ${unit}`} path={exportPath} />
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

/** Starts of all hours or days of a view, as the report names them. */
function timesOf({ since, until, unit }: View): readonly string[] {
  const step = unit === 'hour' ? HOUR_SECONDS : DAY_SECONDS
  const length = Math.max(1, Math.min(TIMES_MAX, Math.round((until - since) / step) || 1))
  return Array.from({ length }, (_, nth) => {
    const at = since + nth * step
    return unit === 'hour' ? `${new Date(at * 1_000).toISOString().slice(0, 19)}Z` : dayOf(at)
  })
}
