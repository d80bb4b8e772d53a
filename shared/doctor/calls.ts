/*
 * Findings about calls: models that fail, failure rates, refusals and budgets.
 *
 * 1. A model fails if its newest calls failed: three in a row, or all that the request log has of the model. The finding stays until a call
 *    succeeds, however long ago the last call was.
 * 2. Rates and refusals cover the last 15 minutes. A few failed or refused calls are no problem of the service, so each rate has a minimum count.
 * 3. An open circuit breaker is a finding of its own, unless rule 1 already reports its model.
 *
 * Rule 1 ignores calls that do not show whether a model works. Examples are calls that were refused for lack of capacity, were cancelled, exceeded
 * their own deadline, or were rejected because of their content.
 */
import type { BudgetState } from '#schemas/usage.ts'
import { type Finding, failed, warned } from './check.ts'

export const RECENT_MINUTES = 15
const STREAK_MIN = 3
const FAILED_MIN = 3
const FAILED_PART_MIN = 0.1
const REFUSED_MIN = 3
const BUDGET_PART_MIN = 0.8
const NAMES_MAX = 3

/** Outcome of a call for the health of its model. Undefined: the call does not show whether the model works. */
export function outcomeOf({ status, errorCode }: { readonly status: number; readonly errorCode: string | null }) {
  if (status < 400) return 'completed'
  return status >= 500 && !REFUSALS.has(errorCode ?? '') ? 'failed' : undefined
}

/** Codes of calls that a limit or a lack of capacity refused, with the remedy. */
const REFUSALS: ReadonlyMap<string, string> = new Map([
  ['rate_limit_exceeded', 'Raise the limit of the key or project, or send fewer calls.'],
  ['token_limit_exceeded', 'Raise the tokens per minute of the key or project, or send fewer tokens.'],
  ['insufficient_quota', 'Raise the budget of the key or project, or wait for the next month.'],
  ['overloaded', 'Start more workers or servers, or raise the limits of the queue.'],
  ['model_loading', 'Wait until the model is loaded.'],
])

interface RecentCalls {
  readonly project: string
  readonly model: string | null
  readonly status: number
  readonly errorCode: string | null
  readonly calls: number
}

export interface FailingModel {
  readonly model: string
  /** Number of consecutive failed calls, up to the newest. */
  readonly streak: number
  /** True if more calls in a row may have failed, because older calls in the log were not read. */
  readonly isCut: boolean
  readonly cause: string
  /** Error code of the newest failure. */
  readonly code: string | null
  readonly lastAtMs: number
}

export interface CallFacts {
  readonly recent: readonly RecentCalls[]
  /** Models whose newest calls failed. */
  readonly failing: readonly FailingModel[]
  /** Models with open circuit breakers, each with the number of workers that report them. */
  readonly openCircuits: readonly { readonly model: string; readonly workers: number }[]
  readonly budgets: readonly BudgetState[]
  readonly nameOf: (project: string) => string | null
}

export const NO_CALLS: CallFacts = { recent: [], failing: [], openCircuits: [], budgets: [], nameOf: () => null }

export function callFindings(facts: CallFacts, nowMs: number): Finding[] {
  const { failing, openCircuits, budgets } = facts
  const reported = new Set([...failing, ...openCircuits].map(({ model }) => model))
  return [
    ...failing.map((one) => failingFinding(one, openCircuits, nowMs)),
    ...openCircuits.filter(({ model }) => !failing.some((one) => one.model === model)).map(circuitFinding),
    ...rateFindings(facts, reported),
    ...refusalFindings(facts, reported),
    ...budgets.flatMap(budgetFinding),
  ]
}

interface EndedRow {
  readonly status: number
  readonly errorCode: string | null
  readonly errorMessage: string | null
  readonly endedAtMs: number
}

/** Decides whether a model fails, from its newest calls in the log, the newest first. */
export function failingModel(model: string, rows: readonly EndedRow[], hasMore: boolean): FailingModel | undefined {
  // A call that has exceeded its own deadline says nothing about its model, because the deadline may be too short for
  // any upstream.
  const decisive = rows.filter((row) => outcomeOf(row) !== undefined && row.errorCode !== 'timeout')
  const lastSuccess = decisive.findIndex((row) => outcomeOf(row) === 'completed')
  const failures = lastSuccess === -1 ? decisive : decisive.slice(0, lastSuccess)
  const [newest] = failures
  const isCut = hasMore && lastSuccess === -1
  if (!newest || (failures.length < STREAK_MIN && (isCut || lastSuccess !== -1))) return undefined
  const cause = newest.errorMessage ?? newest.errorCode ?? `HTTP ${newest.status}`
  return { model, streak: failures.length, isCut, cause, code: newest.errorCode, lastAtMs: newest.endedAtMs }
}

function failingFinding(
  { model, streak, isCut, cause, code, lastAtMs }: FailingModel,
  circuits: CallFacts['openCircuits'],
  nowMs: number,
): Finding {
  const calls = streak === 1 && !isCut ? 'The last call' : `The last ${streak}${isCut ? ' or more' : ''} calls`
  const minutes = Math.round((nowMs - lastAtMs) / 60_000)
  const ago = minutes < 1 ? 'just now' : minutes < 120 ? `${minutes} min ago` : `${Math.round(minutes / 60)} h ago`
  const paused = circuits.some((one) => one.model === model) ? ' New calls are refused until a test call succeeds.' : ''
  const message = `${calls} of '${model}' failed, the newest ${ago}: ${sentence(cause)}${paused}`
  return { ...failed('upstream', message, remedyOf(code)), model }
}

function circuitFinding({ model, workers }: CallFacts['openCircuits'][number]): Finding {
  const reporters = workers === 1 ? '1 worker' : `${workers} workers`
  const message = `The upstream of '${model}' keeps failing, as ${reporters} reported: its calls are refused until a test call succeeds.`
  return { ...failed('upstream', message, remedyOf(null)), model }
}

const UNTIL_SUCCESS = 'This finding ends with the next successful call.'
const REMEDIES: ReadonlyMap<string | null, string> = new Map([
  ['upstream_error', `Start or check the upstream server, or correct its base_url in models.yaml. ${UNTIL_SUCCESS}`],
  [
    'upstream_refused',
    `Correct the variable of api_key_env in models.yaml, or the account of the provider. ${UNTIL_SUCCESS}`,
  ],
  [
    'upstream_timeout',
    `Check the load of the upstream server, or raise the timeouts of the model in models.yaml. ${UNTIL_SUCCESS}`,
  ],
])

function remedyOf(code: string | null): string {
  const general =
    'Check the upstream server, and the base_url and key of the model in models.yaml. `npx sluice logs --status failed` shows the calls.'
  return REMEDIES.get(code) ?? general
}

function sentence(text: string): string {
  const first = text.length > 200 ? `${text.slice(0, 200)}…` : text
  return /[.…!?]$/.test(first) ? first : `${first}.`
}

function rateFindings({ recent }: CallFacts, reported: ReadonlySet<string>): Finding[] {
  const rates = new Map<string, { ended: number; failed: number; codes: Map<string, number> }>()
  for (const { model, calls, ...one } of recent) {
    const outcome = outcomeOf(one)
    if (model === null || outcome === undefined || reported.has(model)) continue
    const rate = rates.get(model) ?? { ended: 0, failed: 0, codes: new Map() }
    rates.set(model, rate)
    rate.ended += calls
    if (outcome === 'completed') continue
    rate.failed += calls
    add(rate.codes, one.errorCode ?? `HTTP ${one.status}`, calls)
  }
  const bad = [...rates].filter(([, rate]) => rate.failed >= FAILED_MIN && rate.failed >= rate.ended * FAILED_PART_MIN)
  return bad.map(([model, rate]) => {
    const message = `${count(rate.failed)} of ${count(rate.ended)} calls of '${model}' failed in the last ${RECENT_MINUTES} minutes: ${listed(rate.codes)}.`
    const remediation = `\`npx sluice logs --model ${model} --status failed\` shows the errors.`
    return { ...warned('calls', message, remediation), model }
  })
}

function refusalFindings({ recent, nameOf }: CallFacts, reported: ReadonlySet<string>): Finding[] {
  return [...REFUSALS].flatMap(([code, remedy]) => {
    const refused = recent.filter(({ errorCode, model }) => errorCode === code && !reported.has(model ?? ''))
    const sum = refused.reduce((total, { calls }) => total + calls, 0)
    if (sum < REFUSED_MIN) return []
    const projects = new Map<string, number>()
    for (const { project, calls } of refused) add(projects, nameOf(project) ?? project, calls)
    const message = `${count(sum)} calls were refused in the last ${RECENT_MINUTES} minutes (${code}), by project: ${listed(projects)}.`
    return [warned('refusals', message, `${remedy} \`npx sluice logs --error-code ${code}\` shows the calls.`)]
  })
}

function budgetFinding({ owner, id, name, month, budget_usd, spent_usd }: BudgetState): Finding[] {
  if (budget_usd === 0 || spent_usd < budget_usd * BUDGET_PART_MIN) return []
  const part = Math.floor((spent_usd / budget_usd) * 100)
  const used = `$${spent_usd.toFixed(2)} of $${budget_usd.toFixed(2)}`
  const remediation = `Raise it: npx sluice ${owner}s update ${id} --budget USD`
  if (spent_usd >= budget_usd) {
    const message = `The budget of the ${owner} '${name ?? id}' for ${month} is spent (${used}): its calls are refused.`
    return [failed('budget', message, remediation)]
  }
  return [
    warned('budget', `The budget of the ${owner} '${name ?? id}' for ${month} is at ${part} % (${used}).`, remediation),
  ]
}

function add(counts: Map<string, number>, name: string, calls: number): void {
  counts.set(name, (counts.get(name) ?? 0) + calls)
}

function listed(counts: ReadonlyMap<string, number>): string {
  const all = [...counts].toSorted(([, a], [, b]) => b - a)
  const more = all.length > NAMES_MAX ? [`${all.length - NAMES_MAX} more`] : []
  return [...all.slice(0, NAMES_MAX).map(([name, calls]) => `${name} ${count(calls)}`), ...more].join(', ')
}

function count(value: number): string {
  return value.toLocaleString('en')
}
