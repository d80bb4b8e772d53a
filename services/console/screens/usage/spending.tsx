import { useSignal } from '@preact/signals'
import { isOperator } from '#services/console/api/client.ts'
import { monthText, serviceNow, usdText } from '#services/console/api/clock.ts'
import { keyName, namedProjects, projectName } from '#services/console/api/names.ts'
import { Chips, Count, ShortId } from '#services/console/parts/parts.tsx'
import { BASE, setQuery, urlWith } from '#services/console/parts/router.ts'
import { Empty } from '#services/console/parts/states.tsx'
import { Cell, ExportCsv, Table } from '#services/console/parts/table.tsx'
import { Filter } from '#services/console/screens/requests/failures.tsx'
import { coverageText, dayOf, growthText } from '#shared/usage/comparison.ts'
import { forecastText, spentPartText } from '#shared/usage/forecast.ts'
import { GROUPS, type Group, type Report, type Row, type View, windowOf } from './range.ts'

export interface Spending {
  /** Usage by the group of the view, the most expensive first. */
  readonly groups: Report
  /** Usage by project, key and model, the most expensive first. */
  readonly parts: Report
}

interface SpendersProps {
  readonly spending: Spending
  readonly view: View
  readonly exportPath: string
}

/**
 * Grouping of the table after a click on a row, by the grouping before the click. Example: a click on project A filters by project A and
 * groups the table by model.
 */
export const NEXT: Readonly<Record<Group, Group>> = { project: 'model', key: 'model', model: 'key', endpoint: 'model' }
const NUMBERS = ['Requests', 'Failed', 'Input tokens', 'Output tokens']
const HIDDEN = ['Share', 'Input tokens', 'Output tokens']

export function Spenders({ spending, view, exportPath }: SpendersProps) {
  const { by } = view
  const { data, has_more } = spending.groups
  return (
    <>
      <div class="title">
        <h2>Top spenders</h2>
        <Chips
          label="Group by"
          choices={Object.entries(GROUPS).map(([id, name]) => ({ id, name }))}
          value={by}
          onChoose={(id) => setQuery({ by: id })}
        />
        <ExportCsv what="top spenders" path={exportPath} />
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
        <>
          <Headline spending={spending} by={by} />
          <Table
            label={`Usage by ${GROUPS[by].toLowerCase()}`}
            columns={[GROUPS[by], 'Cost', 'Change', 'Share', ...NUMBERS]}
            numbers={['Cost', 'Change', ...NUMBERS]}
            card={{ end: 'Cost', hidden: HIDDEN }}
          >
            {data.map((row) => (
              <GroupRow key={row.group} row={row} view={view} spending={spending} />
            ))}
          </Table>
        </>
      )}
      {has_more && <p class="dim">Only the 1,000 most expensive groups are shown.</p>}
    </>
  )
}

/** The largest spender as a sentence. Absent if no call had a cost. */
function Headline({ spending, by }: { readonly spending: Spending; readonly by: Group }) {
  const [first] = spending.groups.data
  const { cost_usd } = spending.groups.total
  if (!first || cost_usd === 0) return null
  const change = changeOf(first)
  const mostly = mostlyText(by, first, spending)
  const coverage = spending.groups.comparison ? coverageText(spending.groups.comparison) : ''
  return (
    <p>
      <b>{nameIn(by, first)}</b> spent most: {usdText(first.cost_usd)} of {usdText(cost_usd)} (
      {percentText(first.cost_usd, cost_usd)})
      {change &&
        change.before > 0 &&
        `, ${change.text} (${usdText(change.now)} after ${usdText(change.before)}${coverage && `; previous period: ${coverage}`})`}
      . {mostly && `Mostly ${mostly}.`}
    </p>
  )
}

function nameIn(by: Group, { group, name }: Row): string {
  return group === '' ? 'unknown' : (name ?? nameOf(by, group))
}

export function nameOf(group: string, id: string): string {
  return group === 'project' ? projectName(id) : group === 'key' ? keyName(id) : id
}

export function percentText(part: number, all: number): string {
  return `${Math.round((100 * part) / all)} %`
}

/** Change of the cost of a group between the compared windows. Undefined if a cost is unknown. */
function changeOf({ compared }: Row) {
  if (!compared) return undefined
  const { current_cost_usd: now, previous_cost_usd: before } = compared
  return { text: before === 0 ? 'new' : growthText(now, before), before, now }
}

const PARTS = { project: 'project_name', key: 'key_name', model: 'model' } as const

/** The project, key and model with the highest cost in a group, such as `key app (92 %), model m1 (80 %)`. Empty if the group has no cost. */
function mostlyText(by: Group, { group, cost_usd }: Row, { parts }: Spending): string {
  if (by === 'endpoint' || cost_usd === 0) return ''
  const own = parts.data.filter(({ groups }) => groups?.[by] === group)
  const others = (Object.keys(PARTS) as (keyof typeof PARTS)[]).filter(
    (name) => name !== by && (name !== 'project' || isOperator.value),
  )
  const tops = others.flatMap((name) => {
    const top = topOf(own, name)
    return top ? [`${name} ${top.text} (${percentText(top.cost, cost_usd)})`] : []
  })
  return tops.join(', ')
}

/** The project, key or model with the highest cost in the rows. Undefined without a cost or a name. */
export function topOf(rows: readonly Row[], name: keyof typeof PARTS) {
  // By id, because two keys may have the same name.
  const costs = new Map<string, { readonly id: string; readonly text: string; readonly cost: number }>()
  for (const { groups, cost_usd } of rows) {
    const id = groups?.[name] ?? ''
    const text = groups?.[PARTS[name]] || nameOf(name, id)
    costs.set(id, { id, text, cost: (costs.get(id)?.cost ?? 0) + cost_usd })
  }
  const [top] = [...costs.values()].toSorted((a, b) => b.cost - a.cost)
  return top?.text && top.cost > 0 ? top : undefined
}

interface GroupRowProps {
  readonly row: Row
  readonly view: View
  readonly spending: Spending
}

function GroupRow({ row, view, spending }: GroupRowProps) {
  const { by, filters } = view
  const { total } = spending.groups
  const { group, name, calls, failed, input_tokens, output_tokens, cost_usd } = row
  const query = { ...filters, [by]: group, status: 'failed', ...windowOf(view) }
  const share = total.cost_usd > 0 ? cost_usd / total.cost_usd : calls / Math.max(1, total.calls)
  const mostly = mostlyText(by, row, spending)
  const change = changeOf(row)
  const coverage = spending.groups.comparison ? coverageText(spending.groups.comparison) : ''
  return (
    <tr>
      <Cell column={GROUPS[by]}>
        {group === '' ? (
          <span
            class="dim"
            title="Calls without this field, for example because they were refused before their body was read"
          >
            unknown
          </span>
        ) : (
          <a href={urlWith({ [by]: group, by: NEXT[by] })}>{nameIn(by, row)}</a>
        )}
        {name && (
          <span class="dim below">
            <ShortId id={group} />
          </span>
        )}
        {mostly && <span class="dim below">mostly {mostly}</span>}
      </Cell>
      <Cell column="Cost">{usdText(cost_usd)}</Cell>
      <Cell column="Change">
        {change && (change.before > 0 || cost_usd > 0) ? change.text : '–'}
        {change && change.before > 0 && coverage && <abbr title={`Previous period: ${coverage}`}>*</abbr>}
        {change && change.before > 0 && (
          <span class="dim below">
            {usdText(change.now)} after {usdText(change.before)}
          </span>
        )}
      </Cell>
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

/** Budgets of projects and keys in this month, and the projects without a budget. */
export function Budgets({ report: { budgets, total, alerts_to, project } }: { readonly report: Report }) {
  const isOpen = useSignal(false)
  const isShown = (id: string) => (project === null || id === project) && !budgets.some((one) => one.id === id)
  const unlimited = namedProjects.value.filter(({ id }) => isShown(id))
  if (budgets.length + unlimited.length === 0) return <p class="dim">There is no budget.</p>
  const month = budgets[0]?.month ?? dayOf(serviceNow()).slice(0, 7)
  const isLong = !isOpen.value && budgets.length + unlimited.length > SHOWN_MAX
  return (
    <>
      <div class="title">
        <h2>Budgets of {monthText(month)}</h2>
        <ExportCsv what="budgets" file={`budgets-${month}.csv`} rows={rowsOf(budgets)} />
      </div>
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
      >
        {budgets.slice(0, isLong ? SHOWN_MAX : budgets.length).map((budget) => {
          const { owner, id, name, budget_usd, spent_usd, remaining_usd } = budget
          return (
            <tr key={owner + id}>
              <Owner owner={owner} id={id} name={name} />
              <Cell column="Spent">
                {usdText(spent_usd)} of {usdText(budget_usd)} ({spentPartText(budget)})
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
            <Owner owner="project" id={id} name={name} />
            <Cell column="Spent">
              <a href={`${BASE}/keys?edit=${encodeURIComponent(id)}`} aria-label={`Set a budget for ${name ?? id}`}>
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

function Owner({ owner, id, name }: Pick<Report['budgets'][number], 'owner' | 'id' | 'name'>) {
  return (
    <Cell column="Budget of">
      <Filter name={owner} value={id}>
        {name ?? id}
      </Filter>{' '}
      <span class="dim">{owner}</span>
      {name && (
        <span class="dim below">
          <ShortId id={id} />
        </span>
      )}
    </Cell>
  )
}

function rowsOf(budgets: Report['budgets']) {
  return [
    ['owner', 'id', 'name', 'month', 'budget_usd', 'spent_usd', 'remaining_usd', 'forecast'],
    ...budgets.map((one) => [
      ...[one.owner, one.id, one.name, one.month, one.budget_usd, one.spent_usd, one.remaining_usd],
      forecastText(one),
    ]),
  ]
}

/** Number of budgets that are shown at first. Budgets with the largest spent share come first. */
const SHOWN_MAX = 5
