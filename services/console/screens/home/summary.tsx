import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import type { z } from 'zod'
import type { UsageReport } from '#schemas/usage.ts'
import { fetchJson, isOperator } from '#services/console/api/client.ts'
import { serviceNow, usdText } from '#services/console/api/clock.ts'
import { Count, usePoll } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { Cell, Table } from '#services/console/parts/table.tsx'
import type { PoolState } from './pools.ts'

const MONTH_REFRESH_INTERVAL_MS = 60_000

export interface Work {
  readonly running: number
  readonly waiting: number
}

/**
 * Running and waiting work, with the cost, the requests and the failures of this month (UTC). A key without the `admin` scope gets the figures of its
 * project. Each number links to its screen.
 */
export function Summary({ work: { running, waiting } }: { readonly work: Work }) {
  const month = useSignal<z.infer<typeof UsageReport>['total'] | undefined>(undefined)
  const today = new Date(serviceNow() * 1_000).toISOString().slice(0, 10)
  const refresh = async (signal: AbortSignal) => {
    const query = new URLSearchParams({ from: `${today.slice(0, 8)}01`, to: today, group_by: 'day' })
    // If the report cannot be read, for example because usage is not recorded, then its numbers are left out.
    const report = await fetchJson<z.infer<typeof UsageReport>>(`/v1/usage?${query}`, { signal }).catch(() => undefined)
    month.value = report?.total
  }
  usePoll(MONTH_REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  const figures: [name: string, value: ComponentChildren][] = [
    ['Running', <Count key="running" value={running} path={ACTIVE} />],
    ['Waiting', <Count key="waiting" value={waiting} path={ACTIVE} />],
  ]
  if (month.value) {
    const { cost_usd, calls, failed } = month.value
    const monthStart = Date.parse(`${today.slice(0, 8)}01`) / 1_000
    const failedPath = `requests?${new URLSearchParams({ status: 'failed', since: String(monthStart) })}`
    const cost = (
      <a class="figure" href={`${BASE}/usage?range=month`}>
        {usdText(cost_usd)}
      </a>
    )
    figures.push(
      ['Cost this month', cost],
      ['Requests this month', <Count key="requests" value={calls} path="usage?range=month" />],
      ['Failed this month', <Count key="failed" value={failed} path={failedPath} isFailures />],
    )
  }
  return (
    <dl class="card totals" aria-label={isOperator.value === false ? 'Summary of your project' : 'Summary'}>
      {figures.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  )
}

const ACTIVE = 'requests?status=active'

/**
 * Whether a pool has a row instead of a card: no work runs, waits or has ended, and the pool is not paused. The first pool always has a card, so an
 * idle service shows where its plots will be.
 */
export function isUnused({ running, waiting, ended, isPaused }: PoolState, nth: number): boolean {
  return nth > 0 && running === 0 && waiting === 0 && ended === 0 && !isPaused
}

export function UnusedPools({ pools }: { readonly pools: readonly PoolState[] }) {
  if (pools.length === 0) return null
  return (
    <Table label="Pools without work" columns={['Pool', 'Slots', 'Workers']} numbers={['Slots', 'Workers']}>
      {pools.map(({ id, slots, workers }) => (
        <tr key={id}>
          <Cell column="Pool">{id}</Cell>
          <Cell column="Slots">{slotsText(0, slots)}</Cell>
          <Cell column="Workers">{workers ?? '–'}</Cell>
        </tr>
      ))}
    </Table>
  )
}

/** @param slots Number of calls and jobs that can run at once */
export function slotsText(running: number, slots: number): string {
  return slots === 0 ? 'no worker' : `${running.toLocaleString('en')} of ${slots.toLocaleString('en')} running`
}
