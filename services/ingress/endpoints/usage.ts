import {
  type BudgetState,
  HISTORY_RANGES,
  type HistoryReport,
  HOURS_DAYS,
  ReadHistory,
  ReadUsage,
  USAGE_DAYS_MAX,
  type UsageReport,
  type UsageSums,
} from '#schemas/usage.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { projectIdNamed } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { budgetsIn } from '#shared/capacity/budgets.ts'
import { hasScope, projectIdOf } from '#shared/keys/keys.ts'
import { csvLine } from '#shared/lib/csv.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { HistorySample, UsageAmounts } from '#shared/store/records.ts'
import { WHOLE_SERVICE } from '#shared/usage/history.ts'
import { dayOf, monthOf } from '#shared/usage/usage.ts'

const DAY_MS = 86_400_000
const NANOS_PER_USD = 1_000_000_000
const GROUPS_MAX = 1_000
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
  const project = projectFor(context, call, asked.project)
  const { from, to } = rangeOf(asked)
  const ledger = context.usage?.ledger
  if (!ledger) throw new ServiceError('jobs_unavailable', 'Usage is not available: the deployment has no database.')
  const filters = { project, keyId, model, endpoint }
  const limit = GROUPS_MAX + 1
  const sums = await ledger.sum({ ...filters, from, to, groupBy: group_by, orderBy: order_by, limit })
  const shown = sums.slice(0, GROUPS_MAX)
  const nameOf = namesOf(context, group_by)
  const report: UsageReport = {
    ...{ object: 'usage', from, to, group_by, project: project ?? null },
    data: shown.map(({ group, ...sum }) => ({
      group: group + (group_by === 'hour' ? ':00:00Z' : ''),
      name: nameOf(group),
      ...shownAs(sum),
    })),
    has_more: sums.length > GROUPS_MAX,
    total: shownAs(totalOf(shown)),
    budgets: await budgetsFor(context, call, project),
    alerts_to: hasScope(call.key, 'admin') ? hostOf(context.config.budgetWebhookUrl) : null,
  }
  const format = asked.format ?? (isCsvAccepted(call) ? 'csv' : 'json')
  if (format === 'json') return await call.reply.whole(report)
  call.reply.setHeader('content-type', 'text/csv; charset=utf-8')
  call.reply.setHeader('content-disposition', `attachment; filename="usage-by-${group_by}-${from}-${to}.csv"`)
  await call.reply.whole(csvOf(report))
}

function hostOf(url: string | undefined): string | null {
  return url === undefined ? null : new URL(url).host
}

function isCsvAccepted({ headers }: Call): boolean {
  return /^\s*text\/csv\b/i.test(headers.accept ?? '')
}

function csvOf({ group_by, data }: UsageReport): string {
  const isNamed = group_by === 'project' || group_by === 'key'
  const amounts = Object.keys(shownAs(totalOf([]))) as (keyof UsageSums)[]
  const head = [group_by, ...(isNamed ? ['name'] : []), ...amounts]
  const rows = data.map((row) => [row.group, ...(isNamed ? [row.name] : []), ...amounts.map((name) => row[name])])
  return [head, ...rows].map(csvLine).join('')
}

/** Names of projects or keys by id; null for those without a name. */
export function namesOf({ keys }: IngressContext, by: ReadUsage['group_by']): (id: string) => string | null {
  if (by !== 'project' && by !== 'key') return () => null
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
  throw new ServiceError('permission_denied', 'This API key may only see its own project.', {
    param: 'project',
  })
}

function rangeOf({ from, to, group_by }: ReadUsage): { from: string; to: string } {
  const now = Date.now()
  const last = to ?? dayOf(now)
  const first = from ?? (group_by === 'hour' ? last : monthOf(Date.parse(last)).from)
  const days = (Date.parse(last) - Date.parse(first)) / DAY_MS + 1
  if (days < 1) throw new ServiceError('invalid_value', `'from' is later than 'to', ${last}.`, { param: 'from' })
  const oldest = dayOf(now - HOURS_DAYS * DAY_MS)
  if (group_by === 'hour' && first < oldest) {
    const message = `Hours are stored for ${HOURS_DAYS} days. Choose a 'from' of ${oldest} or later, or group_by=day.`
    throw new ServiceError('invalid_value', message, { param: 'from' })
  }
  if (days <= USAGE_DAYS_MAX) return { from: first, to: last }
  const message = `Expected at most ${USAGE_DAYS_MAX} days, but 'from' and 'to' span ${days}.`
  throw new ServiceError('invalid_value', message, { param: 'from' })
}

/** Budgets of the calling key and its project. Operators receive all budgets, those with the largest spent part first. */
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
  if (!store) throw new ServiceError('jobs_unavailable', 'History is not available: the deployment has no database.')
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
