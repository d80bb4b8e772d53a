import { useSignal } from '@preact/signals'
import type { UsageReport } from '#schemas/usage.ts'
import { isOperator } from '#services/console/api/client.ts'
import { monthText, serviceNow, usdText } from '#services/console/api/clock.ts'
import { namedProjects } from '#services/console/api/names.ts'
import { ShortId } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { Cell, Table } from '#services/console/parts/table.tsx'
import { forecastText } from '#shared/usage/budget-forecast.ts'

/** Budgets of projects and keys in this month, and the projects without a budget. */
export function Budgets({ report: { budgets, total, alerts_to, project } }: { readonly report: UsageReport }) {
  const isOpen = useSignal(false)
  const isShown = (id: string) => (project === null || id === project) && !budgets.some((one) => one.id === id)
  const unlimited = namedProjects.value.filter(({ id }) => isShown(id))
  if (budgets.length + unlimited.length === 0) return <p class="dim">There is no budget.</p>
  const isLong = !isOpen.value && budgets.length + unlimited.length > SHOWN_MAX
  return (
    <>
      <h2>Budgets of {monthText(budgets[0]?.month ?? dayOf(serviceNow()).slice(0, 7))}</h2>
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
      <p class="dim">
        A forecast continues the spending of the last 7 days. Budgets reset at the start of each month, in UTC.
      </p>
      <Table
        label="Budgets"
        columns={['Budget of', 'Spent', 'Left', 'Forecast']}
        numbers={['Left']}
        main={['Budget of', 'Forecast']}
        card={{ end: 'Left' }}
      >
        {budgets.slice(0, isLong ? SHOWN_MAX : budgets.length).map((budget) => {
          const { owner, id, name, budget_usd, spent_usd, remaining_usd } = budget
          return (
            <tr key={owner + id}>
              <Cell column="Budget of">
                {name ?? id} <span class="dim">{owner}</span>
                {name && (
                  <span class="dim below">
                    <ShortId id={id} />
                  </span>
                )}
              </Cell>
              <Cell column="Spent">
                {usdText(spent_usd)} of {usdText(budget_usd)}
                {budget_usd > 0 && ` (${Math.round((spent_usd / budget_usd) * 100)} %)`}
                <progress
                  value={Math.min(spent_usd, budget_usd)}
                  max={budget_usd || 1}
                  aria-label={`Spent part of the budget of ${name ?? id}`}
                />
              </Cell>
              <Cell column="Left">
                <span class={remaining_usd === 0 ? 'bad' : undefined}>{usdText(remaining_usd)}</span>
              </Cell>
              <Cell column="Forecast">{forecastText(budget)}</Cell>
            </tr>
          )
        })}
        {(isLong ? [] : unlimited).map(({ id, name }) => (
          <tr key={id}>
            <Cell column="Budget of">
              {name ?? id} <span class="dim">project</span>
              {name && (
                <span class="dim below">
                  <ShortId id={id} />
                </span>
              )}
            </Cell>
            <Cell column="Spent">
              <a href={`${BASE}/keys?edit=${encodeURIComponent(id)}`} aria-label={`Set a budget of ${name ?? id}`}>
                no budget
              </a>
            </Cell>
            <Cell column="Left">–</Cell>
            <Cell column="Forecast">–</Cell>
          </tr>
        ))}
      </Table>
      {isLong && (
        <p>
          <button
            type="button"
            onClick={() => {
              isOpen.value = true
            }}
          >
            Show all {(budgets.length + unlimited.length).toLocaleString('en')}
          </button>
        </p>
      )}
    </>
  )
}

/** Number of budgets that are shown at first. Budgets with the largest spent share come first. */
const SHOWN_MAX = 5

function dayOf(seconds: number): string {
  return new Date(seconds * 1_000).toISOString().slice(0, 10)
}
