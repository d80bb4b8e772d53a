/*
 * Findings about calls: models that fail, failure rates, refusals and budgets.
 *
 * 1. A model fails if its newest calls failed: three in a row, or all that the request log has of the model. The finding stays until a call
 *    succeeds, however long ago the last call was.
 * 2. Rates and refusals cover the last 15 minutes. A few failed or refused calls are no problem of the service, so each rate has a minimum
 *    count.
 * 3. An open circuit breaker is a finding of its own, unless rule 1 already reports its model.
 *
 * Rule 1 ignores calls that do not show whether a model works. Examples are calls that were refused for lack of capacity, were cancelled,
 * exceeded their own deadline, or were rejected because of their content.
 *
 * A call with the code `overloaded` counts as failed if a worker ran it, because the upstream was then busy or its circuit breaker was
 * open. If no worker ran the call, then it was refused for lack of capacity.
 */
import type { BudgetState } from '#schemas/usage.ts'
import { type Finding, failed, warned } from './check.ts'

export const RECENT_MINUTES = 15
const STREAK_MIN = 3
/**
 * Minimum fraction of failed calls for a period in which a model counts as failing. The period begins at the oldest failure since which at
 * least this fraction of the calls failed. The fraction is below 1, so a few successes do not end the period.
 */
const FAILING_SHARE_MIN = 0.8
const FAILED_MIN = 3
const FAILED_PART_MIN = 0.1
const REFUSED_MIN = 3
const BUDGET_PART_MIN = 0.8
const NAMES_MAX = 3

/** Returns the outcome of a call for the health of its model. Undefined if the call does not show whether the model works, as after a cancel. */
export function outcomeOf({ status, errorCode, isRun }: Ended) {
  if (status < 400) return 'completed'
  return status >= 500 && !isRefused(errorCode, isRun) ? 'failed' : undefined
}

interface Ended {
  readonly status: number
  readonly errorCode: string | null
  /** Whether a worker ran the call. */
  readonly isRun: boolean
}

function isRefused(errorCode: string | null, isRun: boolean): boolean {
  return REFUSALS.has(errorCode ?? '') && !(isRun && errorCode === 'overloaded')
}

/** Error codes of calls that a limit or a lack of capacity refused, each with the remedy for the operator. */
const REFUSALS: ReadonlyMap<string, string> = new Map([
  ['rate_limit_exceeded', 'Raise the limit of the key or project, or send fewer calls.'],
  ['token_limit_exceeded', 'Raise the tokens per minute of the key or project, or send fewer tokens.'],
  ['insufficient_quota', 'Raise the budget of the key or project, or wait for the next month.'],
  ['overloaded', 'Start more workers or servers, or raise the limits of the queue.'],
  ['model_loading', 'Wait until the model is loaded.'],
])

interface RecentCalls extends Ended {
  readonly project: string
  readonly model: string | null
  readonly calls: number
}

export interface FailingModel {
  readonly model: string
  /** Number of consecutive failed calls, the newest included. */
  readonly streak: number
  /** True if the number of consecutive failures may be higher, because older calls in the log were not read. */
  readonly isCut: boolean
  readonly cause: string
  /** Error code of the newest failure. */
  readonly code: string | null
  /**
   * End of the oldest failed call since which at least 80 % of the calls failed, in ms since the epoch. If `isFirstCut`, then failures may
   * have begun earlier, because older calls in the log were not read.
   */
  readonly firstAtMs: number
  readonly isFirstCut: boolean
  /** Failed calls and all calls of the log since `firstAtMs`. */
  readonly failed: number
  readonly calls: number
  /** Calls of the newest consecutive days on which at least 80 % of the calls failed. Undefined if the newest day has fewer failures. */
  readonly days?: FailedDays | undefined
  /** Number of consecutive failed calls by project. */
  readonly projects: ReadonlyMap<string, number>
  readonly lastAtMs: number
}

export interface FailedDays {
  readonly failed: number
  readonly calls: number
  /** Start of the first day. */
  readonly sinceMs: number
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
    ...failing.map((one) => failingFinding(one, facts, nowMs)),
    ...openCircuits.filter(({ model }) => !failing.some((one) => one.model === model)).map(circuitFinding),
    ...rateFindings(facts, reported),
    ...refusalFindings(facts, reported),
    ...budgets.flatMap(budgetFinding),
  ]
}

interface EndedRow {
  readonly project: string
  readonly status: number
  readonly errorCode: string | null
  readonly worker: string | null
  readonly errorMessage: string | null
  /** Message of the upstream server, which only operators may read. */
  readonly upstreamMessage?: string | null
  readonly endedAtMs: number
}

/** Decides whether a model fails, from its calls in the request log, newest first. */
export function failingModel(model: string, rows: readonly EndedRow[], hasMore: boolean): FailingModel | undefined {
  // A call that exceeded its own deadline does not count, because the deadline may be too short for any upstream.
  const outcome = (row: EndedRow) => outcomeOf({ ...row, isRun: row.worker !== null })
  const decisive = rows.filter((row) => outcome(row) !== undefined && row.errorCode !== 'timeout')
  const lastSuccess = decisive.findIndex((row) => outcome(row) === 'completed')
  const failures = lastSuccess === -1 ? decisive : decisive.slice(0, lastSuccess)
  const [newest] = failures
  const isCut = hasMore && lastSuccess === -1
  if (!newest || (failures.length < STREAK_MIN && (isCut || lastSuccess !== -1))) return undefined
  const cause = newest.upstreamMessage || newest.errorMessage || newest.errorCode || `HTTP ${newest.status}`
  const projects = new Map<string, number>()
  for (const { project } of failures) add(projects, project, 1)
  const isFailed = (row: EndedRow) => outcome(row) !== 'completed'
  const first = firstFailureIn(decisive, isFailed) ?? newest
  const since = decisive.slice(0, decisive.indexOf(first) + 1)
  const counts = { failed: since.filter(isFailed).length, calls: since.length }
  const isFirstCut = hasMore && first === decisive.at(-1)
  const newestOnes = { cause, code: newest.errorCode, lastAtMs: newest.endedAtMs }
  return {
    model,
    streak: failures.length,
    isCut,
    ...counts,
    ...newestOnes,
    firstAtMs: first.endedAtMs,
    isFirstCut,
    projects,
  }
}

/**
 * Returns the oldest failure since which at least {@link FAILING_SHARE_MIN} of the calls failed. A model that answers only now and then
 * therefore counts as failing since its first failure.
 */
function firstFailureIn(rows: readonly EndedRow[], isFailed: (row: EndedRow) => boolean): EndedRow | undefined {
  let [count, first]: [number, EndedRow | undefined] = [0, undefined]
  for (const [nth, row] of rows.entries()) {
    if (!isFailed(row)) continue
    count++
    if (count >= FAILING_SHARE_MIN * (nth + 1)) first = row
  }
  return first
}

/**
 * Sums the calls of the newest consecutive days on which at least {@link FAILING_SHARE_MIN} of the calls failed. Undefined if the newest
 * day has fewer failures, for example because the model worked in the morning.
 *
 * @param days Sums per UTC day, such as `2030-01-31`
 */
export function failedDays(
  days: readonly { readonly day: string; readonly calls: number; readonly failed: number }[],
): FailedDays | undefined {
  let found: FailedDays | undefined
  const sums = { failed: 0, calls: 0 }
  for (const { day, calls, failed } of days.toSorted((a, b) => (a.day < b.day ? 1 : -1))) {
    if (failed < calls * FAILING_SHARE_MIN) break
    sums.failed += failed
    sums.calls += calls
    found = { ...sums, sinceMs: Date.parse(day) }
  }
  return found
}

function failingFinding(
  { model, streak, isCut, cause, code, firstAtMs, isFirstCut, lastAtMs, projects, days, ...counts }: FailingModel,
  { openCircuits, recent, nameOf }: CallFacts,
  nowMs: number,
): Finding {
  const calls = streak === 1 && !isCut ? 'The last call' : `The last ${streak}${isCut ? ' or more' : ''} calls`
  const isLonger = days !== undefined && days.calls > counts.calls
  const sum = isLonger ? days : counts
  const failedText = `${count(sum.failed)} of ${count(sum.calls)} calls failed${isLonger ? ` since ${dayText(days.sinceMs)}` : ''}`
  const first = isLonger
    ? failedText
    : `The first failure was ${agoText(nowMs - firstAtMs)}${isFirstCut ? ' or earlier' : ''}`
  const byName = new Map([...projects].map(([id, calls]) => [nameOf(id) ?? id, calls]))
  const paused = openCircuits.some((one) => one.model === model)
    ? ' New calls are refused until a test call succeeds.'
    : ''
  const rate = ratesOf(recent).get(model)
  const share = rate?.failed ? ` ${rateText(rate)}` : ''
  const message = `${calls} of '${model}' failed, the newest ${agoText(nowMs - lastAtMs)}: ${sentence(cause)} ${first}. By project: ${listed(byName)}.${paused}${share}`
  const sinceMs = isLonger ? Math.min(firstAtMs, days.sinceMs) : firstAtMs
  const shown = `${failedText}; last cause: ${sentence(cause)}`
  const alert = { title: `${model} is failing`, cause: shown, sinceMs, projects: ranked(byName) }
  return { ...failed('upstream', message, remedyOf(code, cause)), model, ...alert }
}

function dayText(ms: number): string {
  return new Date(ms).toLocaleDateString('en-GB', { day: 'numeric', month: 'short', timeZone: 'UTC' })
}

function agoText(ms: number): string {
  const minutes = Math.round(ms / 60_000)
  return minutes < 1 ? 'just now' : minutes < 120 ? `${minutes} min ago` : `${Math.round(minutes / 60)} h ago`
}

function circuitFinding({ model, workers }: CallFacts['openCircuits'][number]): Finding {
  const reporters = workers === 1 ? '1 worker' : `${workers} workers`
  const message = `The upstream of '${model}' keeps failing, as ${reporters} reported: its calls are refused until a test call succeeds.`
  return { ...failed('upstream', message, remedyOf(null)), model, title: `${model} is failing` }
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
  [
    'overloaded',
    `Check the load and the log of the upstream server, or add servers to base_urls in models.yaml. ${UNTIL_SUCCESS}`,
  ],
])

/** Remedies for causes that the text of the error names, because one error code has several causes. */
const REMEDIES_BY_CAUSE: readonly (readonly [RegExp, string])[] = [
  [
    /out of memory/i,
    `The upstream server lacks memory. Restart it with fewer parallel requests or a shorter context, or add servers to base_urls. ${UNTIL_SUCCESS}`,
  ],
  [/HTTP 5\d\d/, `The upstream server answers with errors, so check its log. ${UNTIL_SUCCESS}`],
]

function remedyOf(code: string | null, cause = ''): string {
  const byCause = REMEDIES_BY_CAUSE.find(([text]) => code !== 'upstream_refused' && text.test(cause))
  if (byCause) return byCause[1]
  const general =
    'Check the upstream server, and the base_url and key of the model in models.yaml. `npx sluice logs --status failed` shows the calls.'
  return REMEDIES.get(code) ?? general
}

function sentence(text: string): string {
  const first = text.length > 200 ? `${text.slice(0, 200)}…` : text
  return /[.…!?]$/.test(first) ? first : `${first}.`
}

interface Rate {
  ended: number
  failed: number
  readonly codes: Map<string, number>
  /** Failed calls by project. */
  readonly projects: Map<string, number>
}

function rateText({ failed, ended, codes }: Rate): string {
  return `In the last ${RECENT_MINUTES} minutes, ${count(failed)} of ${count(ended)} calls failed: ${listed(codes)}.`
}

/** Failure rates of the recent calls, by model. */
function ratesOf(recent: CallFacts['recent']): ReadonlyMap<string, Rate> {
  const rates = new Map<string, Rate>()
  for (const { model, project, calls, ...one } of recent) {
    const outcome = outcomeOf(one)
    if (model === null || outcome === undefined) continue
    const rate = rates.get(model) ?? { ended: 0, failed: 0, codes: new Map(), projects: new Map() }
    rates.set(model, rate)
    rate.ended += calls
    if (outcome === 'completed') continue
    rate.failed += calls
    add(rate.projects, project, calls)
    add(rate.codes, one.errorCode ?? `HTTP ${one.status}`, calls)
  }
  return rates
}

function rateFindings({ recent, nameOf }: CallFacts, reported: ReadonlySet<string>): Finding[] {
  const bad = [...ratesOf(recent)].filter(
    ([model, { failed, ended }]) => !reported.has(model) && failed >= FAILED_MIN && failed >= ended * FAILED_PART_MIN,
  )
  return bad.map(([model, rate]) => {
    const message = `${count(rate.failed)} of ${count(rate.ended)} calls of '${model}' failed in the last ${RECENT_MINUTES} minutes: ${listed(rate.codes)}.`
    const remediation = `\`npx sluice logs --model ${model} --status failed\` shows the errors.`
    const title = `${model}: ${Math.round((100 * rate.failed) / rate.ended)} % of the calls fail`
    const projects = ranked(rate.projects).map((id) => nameOf(id) ?? id)
    return { ...warned('calls', message, remediation), model, title, projects }
  })
}

function refusalFindings({ recent, nameOf }: CallFacts, reported: ReadonlySet<string>): Finding[] {
  return [...REFUSALS].flatMap(([code, remedy]) => {
    const refused = recent.filter(
      ({ errorCode, isRun, model }) => errorCode === code && isRefused(code, isRun) && !reported.has(model ?? ''),
    )
    const sum = refused.reduce((total, { calls }) => total + calls, 0)
    if (sum < REFUSED_MIN) return []
    const projects = new Map<string, number>()
    for (const { project, calls } of refused) add(projects, nameOf(project) ?? project, calls)
    const message = `${count(sum)} calls were refused in the last ${RECENT_MINUTES} minutes (${code}), by project: ${listed(projects)}.`
    const remediation = `${remedy} \`npx sluice logs --error-code ${code}\` shows the calls.`
    const alert = { title: `Calls are refused (${code})`, projects: ranked(projects) }
    return [{ ...warned('refusals', message, remediation), errorCode: code, ...alert }]
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

/** Returns the names, those with the highest counts first. */
function ranked(counts: ReadonlyMap<string, number>): readonly string[] {
  return [...counts].toSorted(([, a], [, b]) => b - a).map(([name]) => name)
}

function listed(counts: ReadonlyMap<string, number>): string {
  const all = [...counts].toSorted(([, a], [, b]) => b - a)
  const more = all.length > NAMES_MAX ? [`${all.length - NAMES_MAX} more`] : []
  return [...all.slice(0, NAMES_MAX).map(([name, calls]) => `${name} ${count(calls)}`), ...more].join(', ')
}

function count(value: number): string {
  return value.toLocaleString('en')
}
