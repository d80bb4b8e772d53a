import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import type { UsageReport } from '#schemas/usage.ts'
import { type AnyJob, fetchJson, isOperator, type Page } from '#services/console/api/client.ts'
import { serviceNow, usdText } from '#services/console/api/clock.ts'
import { Count, usePoll } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { shownStatusOf } from '#services/console/screens/jobs/list.ts'
import { monthForecastText } from '#shared/usage/forecast.ts'
import type { PoolState } from './pools.ts'

const MONTH_REFRESH_INTERVAL_MS = 60_000

export interface Work {
  readonly running: number
  readonly waiting: number
  /** Durable jobs among them. Undefined if only synchronous calls are counted. */
  readonly durable?: PoolState['durable']
}

/**
 * Returns the path of the list that shows counted work: Jobs if durable jobs are all of the work, and otherwise Requests, which lists synchronous calls
 * and links to the jobs.
 */
export function listPath(status: 'in_progress' | 'queued', count: number, durable = 0): string {
  return count > 0 && durable >= count ? `jobs?status=${status}` : 'requests?status=active'
}

/** Interval in ms at which the jobs that wait for a time are read. */
const TIMED_REFRESH_INTERVAL_MS = 5_000
/** Maximum number of jobs that are read to count the scheduled and the retrying ones. */
const TIMED_MAX = 100

/** Reads the scheduled and the retrying jobs, which wait for a time instead of a slot. Undefined until loaded, and null if the jobs cannot be read. */
function useTimedJobs() {
  const page = useSignal<Page<AnyJob> | null | undefined>(undefined)
  const refresh = async (signal: AbortSignal) => {
    if (isOperator.value === undefined) return
    const query = new URLSearchParams({ status: 'scheduled,retrying', limit: String(TIMED_MAX) })
    const path = isOperator.value ? '/v1/admin/jobs' : '/v1/jobs'
    const found = await fetchJson<Page<AnyJob>>(`${path}?${query}`, { signal }).catch(() => null)
    if (!signal.aborted) page.value = found
  }
  usePoll(TIMED_REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  return page.value
}

/**
 * Running and waiting work, with the cost, the requests and the failures of this month (UTC). A key without the `admin` scope gets the figures of its
 * project. Each number links to its screen.
 */
export function Summary({ work }: { readonly work: Work | undefined }) {
  const timed = useTimedJobs()
  // Null if the report cannot be read, for example because usage is not recorded.
  const report = useSignal<UsageReport | null | undefined>(undefined)
  const today = new Date(serviceNow() * 1_000).toISOString().slice(0, 10)
  const refresh = async (signal: AbortSignal) => {
    const query = new URLSearchParams({ from: `${today.slice(0, 8)}01`, to: today, group_by: 'day' })
    const found = await fetchJson<UsageReport>(`/v1/usage?${query}`, { signal }).catch(() => null)
    if (!signal.aborted) report.value = found
  }
  usePoll(MONTH_REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  const { running, waiting, durable } = work ?? {}
  const figures: [name: string, value: ComponentChildren][] = [
    ['Running', <Count key="running" value={running} path={listPath('in_progress', running ?? 0, durable?.running)} />],
    ['Queued', <Count key="waiting" value={waiting} path={listPath('queued', waiting ?? 0, durable?.waiting)} />],
  ]
  // Without durable jobs, there is no list, and both tiles are left out. Until it is known, the tiles are shown without values, so that no tile moves.
  for (const [status, name] of [
    ['scheduled', 'Scheduled'],
    ['retrying', 'Retrying'],
  ] as const) {
    if (timed === null) continue
    const count = timed?.data.filter((job) => shownStatusOf(job) === status).length
    figures.push([name, <Count key={status} value={count} path={`jobs?status=${status}`} hasMore={timed?.has_more} />])
  }
  if (report.value !== null) figures.push(...monthFigures(report.value, today))
  return (
    <dl class="card totals" aria-label={isOperator.value === false ? 'Summary of your project' : 'Summary'}>
      {figures.map(([name, value]) => (
        <div key={name} class={name === COST_NAME ? 'wide' : undefined}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  )
}

const COST_NAME = 'Cost this month'

/** Cost with its forecast, requests and failures of this month. The values are missing until the report is loaded. */
function monthFigures(report: UsageReport | undefined, today: string): [name: string, value: ComponentChildren][] {
  const { cost_usd, calls, failed } = report?.total ?? {}
  const month = report?.current_month
  const monthStart = Date.parse(`${today.slice(0, 8)}01`) / 1_000
  const failedPath = `requests?${new URLSearchParams({ status: 'failed', since: String(monthStart) })}`
  const share = calls && failed ? `${((failed / calls) * 100).toFixed(1)} % of all requests` : ' '
  const cost =
    cost_usd === undefined ? (
      '–'
    ) : (
      <a class="figure" href={`${BASE}/usage?range=month`}>
        {usdText(cost_usd)}
      </a>
    )
  return [
    [
      COST_NAME,
      <>
        {cost}
        <small class="dim">{month && month.spent_usd > 0 ? monthForecastText(month) : ' '}</small>
      </>,
    ],
    ['Requests this month', <Count key="requests" value={calls} path="usage?range=month" />],
    [
      'Failed this month',
      <>
        <Count key="failed" value={failed} path={failedPath} isFailures />
        <small class="dim">{share}</small>
      </>,
    ],
  ]
}

/**
 * Whether a pool has a row instead of a card: no work runs, waits or has ended, and the pool is not paused. The first pool always has a card, so an
 * idle service shows where its plots will be.
 */
export function isUnused({ running, waiting, parents, ended, isPaused }: PoolState, nth: number): boolean {
  return nth > 0 && running + waiting + parents + ended === 0 && !isPaused
}

export function UnusedPools({ pools }: { readonly pools: readonly PoolState[] }) {
  if (pools.length === 0) return null
  return (
    <Table
      label="Pools without work"
      columns={['Pool', 'Slots in use', 'Workers']}
      numbers={['Slots in use', 'Workers']}
    >
      {pools.map(({ id, slots, workers }) => (
        <tr key={id}>
          <Cell column="Pool">{id}</Cell>
          <Cell column="Slots in use">{slotsText(0, slots)}</Cell>
          <Cell column="Workers">{workers ?? '–'}</Cell>
        </tr>
      ))}
    </Table>
  )
}

/** @param slots Number of calls and jobs that can run at once */
export function slotsText(running: number, slots: number): string {
  return slots === 0 ? 'no worker' : `${running.toLocaleString('en')} of ${slots.toLocaleString('en')}`
}
