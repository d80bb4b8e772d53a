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

/** Running and waiting work, with the cost, the requests and the failures of this month (UTC). Each number links to its screen. */
export function Summary({ pools }: { readonly pools: readonly PoolState[] }) {
  const month = useSignal<z.infer<typeof UsageReport>['total'] | undefined>(undefined)
  const refresh = async (signal: AbortSignal) => {
    const today = new Date(serviceNow() * 1_000).toISOString().slice(0, 10)
    const query = new URLSearchParams({ from: `${today.slice(0, 8)}01`, to: today, group_by: 'day' })
    // If the report cannot be read, for example because usage is not recorded, then its numbers are left out.
    const report = await fetchJson<z.infer<typeof UsageReport>>(`/v1/usage?${query}`, { signal }).catch(() => undefined)
    month.value = report?.total
  }
  usePoll(MONTH_REFRESH_INTERVAL_MS, refresh, [isOperator.value])
  const sumOf = (count: (pool: PoolState) => number) => pools.reduce((sum, pool) => sum + count(pool), 0)
  const figures: [name: string, value: ComponentChildren][] = [
    ['Running', <Count key="running" value={sumOf(({ running }) => running)} path={ACTIVE} />],
    ['Waiting', <Count key="waiting" value={sumOf(({ waiting }) => waiting)} path={ACTIVE} />],
  ]
  if (month.value) {
    const { cost_usd, calls, failed } = month.value
    const cost = (
      <a class="figure" href={`${BASE}/usage`}>
        {usdText(cost_usd)}
      </a>
    )
    figures.push(
      ['Cost this month', cost],
      ['Requests this month', <Count key="requests" value={calls} path="usage" />],
      ['Failed this month', <Count key="failed" value={failed} path="requests?status=failed" isFailures />],
    )
  }
  return (
    <dl class="card totals" aria-label="Summary">
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
 * Whether a pool has a row instead of a card: nothing runs, waits or has ended. The first pool always has a card, so an idle service shows where its
 * plots will be.
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
