import {
  type BudgetState,
  type CurrentMonth,
  HISTORY_RANGES,
  type HistoryReport,
  HOURS_DAYS,
  ReadHistory,
  ReadUsage,
  USAGE_DAYS_MAX,
  type UsageComparison,
  type UsageGroup,
  type UsageReport,
  type UsageSums,
} from '#schemas/usage.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { projectIdNamed } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { budgetsIn } from '#shared/capacity/budgets.ts'
import { hasScope, projectIdOf } from '#shared/keys/keys.ts'
import { type CsvCell, csvLine } from '#shared/lib/csv.ts'
import { ServiceError } from '#shared/lib/error.ts'
import {
  GROUP_SEPARATOR,
  type HistorySample,
  type UsageAmounts,
  type UsageLedger,
  type UsageQuery,
} from '#shared/store/records.ts'
import { type Window, windowsOf } from '#shared/usage/comparison.ts'
import { FORECAST_DAYS, forecastOf } from '#shared/usage/forecast.ts'
import { WHOLE_SERVICE } from '#shared/usage/history.ts'
import { dayOf, monthOf, NANOS_PER_USD } from '#shared/usage/usage.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
/** Maximum groups of a report in JSON that is grouped by one field (`group_by`). */
const GROUPS_MAX = 1_000
/** Maximum rows of a report in CSV, or with several dimensions. */
const ROWS_MAX = 20_000
/** Maximum budgets in a report. Limited, because each budget is a read of the ledger. */
const BUDGETS_MAX = 500

/**
 * GET /v1/usage (docs/operate/usage.md, Read usage): usage of the caller's project. Operators receive the usage of all
 * projects, or of the project that they name.
 *
 * @throws ServiceError `invalid_value`; `permission_denied` for another project; `jobs_unavailable` without a store
 */
export async function readUsage(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ReadUsage, call.query)
  const asked = parseBody(ReadUsage, { ...call.query }, 'openai')
  const { group_by, order_by, key: keyId, model, endpoint } = asked
  const dimensions = group_by.split(',') as UsageGroup[]
  const isCsv = isCsvAsked(call, asked)
  const project = projectFor(context, call, asked.project)
  const { from, to } = rangeOf(asked)
  const ledger = context.usage?.ledger
  if (!ledger) throw new ServiceError('jobs_unavailable', 'Usage is not available: the deployment has no database.')
  const filters = { project, keyId, model, endpoint }
  const groupsMax = dimensions.length > 1 || isCsv ? ROWS_MAX : GROUPS_MAX
  const sums = await ledger.sum({ ...filters, from, to, groupBy: dimensions, orderBy: order_by, limit: groupsMax + 1 })
  const shown = sums.slice(0, groupsMax)
  const hasMore = sums.length > groupsMax
  if (hasMore && isCsv) throw tooManyRows()
  const groupOf = groupsBy(context, dimensions)
  const parts = { ...filters, groupBy: dimensions, limit: groupsMax + 1 }
  const compared = asked.compare && !isCsv ? await compare(ledger, { from, to }, parts) : undefined
  const report: UsageReport = {
    ...{ object: 'usage', from, to, group_by, project: project ?? null },
    data: shown.map(({ group, ...sum }) => ({ ...groupOf(group), ...shownAs(sum), ...compared?.costsOf(group) })),
    has_more: hasMore,
    total: shownAs(totalOf(shown)),
    comparison: compared?.comparison ?? null,
    current_month: isCsv || to.slice(0, 10) < dayOf(Date.now()) ? null : await currentMonth(ledger, filters),
    budgets: isCsv ? [] : await withForecasts(ledger, await budgetsFor(context, call, project), project),
    alerts_to: hasScope(call.key, 'admin') ? hostOf(context.config.budgetWebhookUrl) : null,
  }
  if (!isCsv) return await call.reply.whole(report)
  await replyCsv(call, `usage-by-${dimensions.join('-')}-${from}-${to}.csv`, tableOf(report, dimensions))
}

type Filters = Omit<UsageQuery, 'from' | 'to' | 'groupBy' | 'limit'>

/** The totals of the two windows, and a function that returns the costs of a group in both. Undefined if the period has no comparison. */
async function compare(ledger: UsageLedger, period: Window, parts: Filters & Pick<UsageQuery, 'groupBy' | 'limit'>) {
  const nowMs = Date.now()
  const windows = windowsOf(period, nowMs / 1_000, dayOf(nowMs - HOURS_DAYS * DAY_MS))
  if (!windows) return undefined
  const { unit } = windows
  // The groups of two periods have no times in common, so a row of one time has no earlier cost.
  const hasTimes = [parts.groupBy].flat().some((by) => by === 'day' || by === 'hour')
  const read = async (window: Window) => {
    const byUnit = await ledger.sum({ ...parts, ...window, groupBy: unit, limit: ROWS_MAX })
    const groups = hasTimes ? [] : await ledger.sum({ ...parts, ...window })
    const costs = new Map(groups.map(({ group, costNanos }) => [group, costNanos / NANOS_PER_USD]))
    const isComplete = !hasTimes && groups.length < parts.limit
    const costOf = (group: string) => costs.get(group) ?? (isComplete ? 0 : undefined)
    return { costOf, window: { ...window, total: shownAs(totalOf(byUnit)), units_with_usage: byUnit.length } }
  }
  const [current, previous] = [await read(windows.now), await read(windows.before)]
  const length = unit === 'day' ? DAY_MS : HOUR_MS
  const units = (atMsOf(windows.now.to) - atMsOf(windows.now.from)) / length + 1
  const comparison: UsageComparison = { unit, units, current: current.window, previous: previous.window }
  const costsOf = (group: string) => {
    const [current_cost_usd, previous_cost_usd] = [current.costOf(group), previous.costOf(group)]
    if (current_cost_usd === undefined || previous_cost_usd === undefined) return {}
    return { compared: { current_cost_usd, previous_cost_usd } }
  }
  return { comparison, costsOf }
}

/** Spending of the current month, with its forecast. */
async function currentMonth(ledger: UsageLedger, filters: Filters): Promise<CurrentMonth> {
  const nowMs = Date.now()
  const { name: month, from, endsAtMs } = monthOf(nowMs)
  const weekAgo = dayOf(nowMs - FORECAST_DAYS * DAY_MS)
  const range = { from: from < weekAgo ? from : weekAgo, to: dayOf(nowMs) }
  const costs = await ledger.sum({ ...filters, ...range, groupBy: 'day', limit: ROWS_MAX })
  const days = costs.map(({ group, costNanos }) => [group, costNanos / NANOS_PER_USD] as const)
  const spent_usd = days.reduce((sum, [day, usd]) => sum + (day >= from ? usd : 0), 0)
  const state = { month, spent_usd, resets_at: endsAtMs / 1_000 }
  return { ...state, forecast: forecastOf(state, new Map(days.filter(([day]) => day >= weekAgo)), nowMs) }
}

/**
 * Returns a function that converts the group of a row to fields of the answer. With one dimension, `group` is its value, and `name` is the name of
 * the project or key. With several, `group` has all values, separated by commas, and `groups` has the value of each dimension by itself.
 */
function groupsBy(context: IngressContext, dimensions: readonly UsageGroup[]) {
  const names = dimensions.map((by) => namesOf(context, by))
  return (group: string): Pick<UsageReport['data'][number], 'group' | 'name' | 'groups'> => {
    const values = group
      .split(GROUP_SEPARATOR)
      .map((value, nth) => value + (dimensions[nth] === 'hour' ? ':00:00Z' : ''))
    if (dimensions.length === 1) return { group: values.join(), name: names[0]?.(group) ?? null }
    const groups = dimensions.flatMap((by, nth) => {
      const value = values[nth] ?? ''
      return [[by, value], ...(isNamed(by) ? [[`${by}_name`, names[nth]?.(value) ?? '']] : [])]
    })
    return { group: values.join(','), name: null, groups: Object.fromEntries(groups) }
  }
}

function isNamed(by: UsageGroup): by is 'project' | 'key' {
  return by === 'project' || by === 'key'
}

function tooManyRows(): ServiceError {
  const message = `The report has more than ${ROWS_MAX} rows. Choose a shorter period, a filter, or fewer dimensions in group_by.`
  return new ServiceError('invalid_value', message, { param: 'from' })
}

function hostOf(url: string | undefined): string | null {
  return url === undefined ? null : new URL(url).host
}

/** Whether the caller asked for CSV, by the parameter `format` or by the header `accept`. */
export function isCsvAsked({ headers }: Call, { format }: { readonly format?: 'json' | 'csv' | undefined }): boolean {
  return format === undefined ? /^\s*text\/csv\b/i.test(headers.accept ?? '') : format === 'csv'
}

/** Sends a table as CSV. @param table The names of the columns, and the rows */
export async function replyCsv(call: Call, file: string, table: readonly (readonly CsvCell[])[]): Promise<void> {
  call.reply.setHeader('content-type', 'text/csv; charset=utf-8')
  call.reply.setHeader('content-disposition', `attachment; filename="${file}"`)
  await call.reply.whole(table.map(csvLine).join(''))
}

/**
 * Returns the report as a table, with one row per group. If the report has one dimension, then the name of a project or key is in
 * the column `name`. Otherwise, the name is in the column `project_name` or `key_name`.
 */
function tableOf({ data }: UsageReport, dimensions: readonly UsageGroup[]): CsvCell[][] {
  const amounts = Object.keys(shownAs(totalOf([]))) as (keyof UsageSums)[]
  const isSingle = dimensions.length === 1
  const columns = dimensions.flatMap((by) => [
    by,
    ...(isNamed(by) ? [isSingle ? 'name' : (`${by}_name` as const)] : []),
  ])
  const cellsOf = ({ group, name, groups = {} }: UsageReport['data'][number]) =>
    columns.map((column) => (column === 'name' ? name : isSingle ? group : groups[column]))
  const rows = data.map((row) => [...cellsOf(row), ...amounts.map((name) => row[name])])
  return [[...columns, ...amounts], ...rows]
}

/** Returns a function that finds the name of a project or key by its id. Null if the project or key has no name. */
export function namesOf({ keys }: IngressContext, by: UsageGroup): (id: string) => string | null {
  if (!isNamed(by)) return () => null
  const names = new Map(keys.known.keys.map(({ id, name }) => [id, name]))
  if (by === 'project') for (const { id, name } of keys.known.projects) names.set(id, name)
  return (id) => names.get(id) ?? null
}

/**
 * Returns the project whose data a caller may read. Undefined for all projects.
 *
 * @throws ServiceError `permission_denied`
 */
export function projectFor({ keys }: IngressContext, { key }: Call, asked: string | undefined): string | undefined {
  const own = projectIdOf(key)
  if (hasScope(key, 'admin')) return asked === undefined ? undefined : projectIdNamed(keys.known, asked)
  const ownName = keys.known.projects.find(({ id }) => id === own)?.name
  if (asked === undefined || asked === own || asked === ownName) return own
  throw new ServiceError(
    'permission_denied',
    "This API key may read only its own project. Omit 'project', or use a key with the scope 'admin'.",
    {
      param: 'project',
    },
  )
}

function rangeOf({ from, to, group_by }: ReadUsage): { from: string; to: string } {
  const now = Date.now()
  const last = to ?? dayOf(now)
  const hasHours = group_by.split(',').includes('hour')
  const first = from ?? (hasHours ? last : monthOf(atMsOf(last)).from)
  const days = (atMsOf(last.slice(0, 10)) - atMsOf(first.slice(0, 10))) / DAY_MS + 1
  if (days < 1 || (first.length === last.length && first > last))
    throw new ServiceError('invalid_value', `'from' is later than 'to', ${last}.`, { param: 'from' })
  const oldest = dayOf(now - HOURS_DAYS * DAY_MS)
  const isByHour = hasHours || first.length > oldest.length || last.length > oldest.length
  if (isByHour && first < oldest) {
    const message = `Hours are stored for ${HOURS_DAYS} days. Choose a 'from' of ${oldest} or later, or group_by=day.`
    throw new ServiceError('invalid_value', message, { param: 'from' })
  }
  if (days <= USAGE_DAYS_MAX) return { from: first, to: last }
  const message = `Expected at most ${USAGE_DAYS_MAX} days, but 'from' and 'to' span ${days}.`
  throw new ServiceError('invalid_value', message, { param: 'from' })
}

/** Converts the start of a UTC day (`2026-11-28`) or hour (`2026-11-28T02`) to Unix time in ms. */
function atMsOf(time: string): number {
  return Date.parse(time.length > 10 ? `${time}:00:00Z` : time)
}

/** Returns the budgets of the calling key and its project. Operators receive all budgets, sorted by the spent fraction, highest first. */
export async function budgetsFor(
  context: IngressContext,
  { key }: Call,
  project: string | undefined,
): Promise<BudgetState[]> {
  const { budgets, keys } = context
  const asked = budgetsIn(keys.known, Date.now()).filter((budget) => (project ?? budget.project) === budget.project)
  const states = hasScope(key, 'admin')
    ? await budgets.statesOf(asked.slice(0, BUDGETS_MAX))
    : await budgets.stateOf(key)
  const names = new Map(asked.map(({ id, name }) => [id, name]))
  return states.map((state) => ({ ...state, name: names.get(state.id) ?? null })).toSorted(bySpentPart)
}

/** Adds the forecast of each budget, from one read of the costs of the last days. */
async function withForecasts(
  ledger: UsageLedger,
  budgets: readonly BudgetState[],
  project: string | undefined,
): Promise<UsageReport['budgets']> {
  const nowMs = Date.now()
  const range = { from: dayOf(nowMs - FORECAST_DAYS * DAY_MS), to: dayOf(nowMs) }
  const query = { project, ...range, groupBy: ['project', 'key', 'day'], limit: ROWS_MAX + 1 } as const
  const rows = budgets.length === 0 ? [] : await ledger.sum(query)
  // A truncated list does not contain all costs, and forecasts from it would be too low. In this case no forecast is made.
  const costs = rows.length > ROWS_MAX ? [] : rows
  const days = new Map<string, Map<string, number>>()
  for (const { group, costNanos } of costs) {
    const [ofProject = '', ofKey = '', day = ''] = group.split(GROUP_SEPARATOR)
    for (const owner of [`project ${ofProject}`, `key ${ofKey}`]) {
      const of = days.get(owner) ?? new Map<string, number>()
      days.set(owner, of.set(day, (of.get(day) ?? 0) + costNanos / NANOS_PER_USD))
    }
  }
  return budgets.map((budget) => ({
    ...budget,
    forecast: forecastOf(budget, days.get(`${budget.owner} ${budget.id}`) ?? new Map(), nowMs),
  }))
}

function bySpentPart(a: BudgetState, b: BudgetState): number {
  const part = ({ spent_usd, budget_usd }: BudgetState) => (budget_usd === 0 ? 1 : spent_usd / budget_usd)
  return part(b) - part(a) || (a.id < b.id ? -1 : 1)
}

function shownAs(amounts: UsageAmounts): UsageSums {
  const { calls, failed, inputTokens, cachedInputTokens, outputTokens, audioMs, costNanos } = amounts
  const tokens = { input_tokens: inputTokens, cached_input_tokens: cachedInputTokens, output_tokens: outputTokens }
  return { calls, failed, ...tokens, audio_seconds: audioMs / 1_000, cost_usd: costNanos / NANOS_PER_USD }
}

function totalOf(all: readonly UsageAmounts[]): UsageAmounts {
  const sum = (of: (amounts: UsageAmounts) => number) => all.reduce((total, amounts) => total + of(amounts), 0)
  return {
    calls: sum(({ calls }) => calls),
    failed: sum(({ failed }) => failed),
    inputTokens: sum(({ inputTokens }) => inputTokens),
    cachedInputTokens: sum(({ cachedInputTokens }) => cachedInputTokens),
    outputTokens: sum(({ outputTokens }) => outputTokens),
    audioMs: sum(({ audioMs }) => audioMs),
    costNanos: sum(({ costNanos }) => costNanos),
  }
}

/**
 * GET /v1/history (docs/operate/usage.md, History): calls, waits and usage of the caller's project over time. Operators
 * receive the history of the whole service, or of the project that they name.
 *
 * @throws ServiceError `invalid_value`; `permission_denied` for another project; `jobs_unavailable` without a store
 */
export async function readHistory(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ReadHistory, call.query)
  const { range, project: asked } = parseBody(ReadHistory, { ...call.query }, 'openai')
  const project = projectFor(context, call, asked)
  const { store } = context
  if (!store)
    throw new ServiceError(
      'jobs_unavailable',
      'The history of calls and usage is not available: the deployment has no database.',
    )
  const { length, step } = HISTORY_RANGES[range]
  // The last interval ends now or later, so that the newest sample is included.
  const to = (Math.floor(Date.now() / 1_000 / step) + 1) * step
  const from = to - length
  const found = await store.history.read({ project: project ?? WHOLE_SERVICE, from, to, step })
  const byTime = new Map(found.map((sample) => [sample.atSeconds, sample]))
  const data = Array.from({ length: length / step }, (_, nth) =>
    pointOf(from + nth * step, byTime.get(from + nth * step)),
  )
  const report: HistoryReport = { object: 'history', project: project ?? null, from, to, step_seconds: step, data }
  await call.reply.whole(report)
}

function pointOf(at: number, sample: HistorySample | undefined): HistoryReport['data'][number] {
  const { calls = 0, failed = 0, inputTokens = 0, outputTokens = 0, costNanos = 0 } = sample ?? {}
  const { queueCalls = 0, queueMs = 0, queueMsMax = 0, firstCalls = 0, firstMs = 0, firstMsMax = 0 } = sample ?? {}
  const { running = 0, waiting = 0, jobsRunning = 0, jobsWaiting = 0 } = sample ?? {}
  return {
    ...{
      at,
      calls,
      failed,
      input_tokens: inputTokens,
      output_tokens: outputTokens,
      cost_usd: costNanos / NANOS_PER_USD,
    },
    queue_seconds: queueCalls === 0 ? null : queueMs / queueCalls / 1_000,
    queue_seconds_max: queueCalls === 0 ? null : queueMsMax / 1_000,
    first_output_seconds: firstCalls === 0 ? null : firstMs / firstCalls / 1_000,
    first_output_seconds_max: firstCalls === 0 ? null : firstMsMax / 1_000,
    running: running + jobsRunning,
    waiting: waiting + jobsWaiting,
  }
}
