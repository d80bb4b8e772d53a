import { serviceNow, usdText } from '#services/console/api/clock.ts'
import { incompleteFrom, monthStart, periodText, type Report, startOf, type View } from './range.ts'

const DAYS_MIN = 2
const DAY_SECONDS = 86_400
const countText = (value: number) => value.toLocaleString('en')

interface TotalsProps {
  readonly report: Report
  readonly before: Report | undefined
  readonly view: View
}

/** Sums of the range, each with its change since the previous period. */
export function Totals({ report: { total, data }, before, view }: TotalsProps) {
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
 * The change since the previous period with both values, such as `+12 % from 1,100`. If the running day is in the total but not in the comparison, then
 * also with the compared value: `+12 %: 1,232 after 1,100`. Empty if there is no earlier value.
 */
function changeText({ compared, total, before, textOf }: Change): string {
  if (!before) return ''
  const percent = Math.round((compared / before - 1) * 100)
  const change = `${percent < 0 ? '−' : '+'}${Math.abs(percent)} %`
  return compared === total
    ? `${change} from ${textOf(before)}`
    : `${change}: ${textOf(compared)} after ${textOf(before)}`
}

/** Cost of the whole month at the rate of the month so far. Undefined on the first days, which say little about the rest. */
function monthEndOf(costUsd: number, { from }: View): number | undefined {
  const start = startOf(monthStart(from, 0))
  const passed = serviceNow() - start
  if (costUsd === 0 || passed < DAYS_MIN * DAY_SECONDS) return undefined
  return (costUsd * (startOf(monthStart(from, 1)) - start)) / passed
}
