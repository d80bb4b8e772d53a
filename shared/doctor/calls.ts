/*
 * Findings about calls: models that fail, failure rates, refusals and budgets.
 *
 * 1. A model fails if more than half of its calls in the last hour failed, and at least three of them. The finding ends when at most half failed, or
 *    when the newest ten calls succeeded, so that it ends soon after a repair. Example: 78 of 92 calls failed since 14:02.
 * 2. Lower rates and refusals cover the last 15 minutes. A few failed or refused calls are no problem of the service, so each rate has a minimum count.
 * 3. An open circuit breaker is a finding of its own, unless rule 1 already reports its model.
 *
 * Rules 1 and 2 ignore calls that do not show whether a model works. Examples are calls that were refused for lack of capacity, were cancelled, or
 * were rejected because of their content. Rule 1 also ignores calls that exceeded their own deadline, which may be too short for any upstream. A call
 * with the code `overloaded` that a worker ran was not refused. The upstream was busy, or the circuit breaker of the upstream was open.
 */
import type { BudgetState } from '#schemas/usage.ts'
import type { RequestOutcome, RequestRow } from '#shared/store/requests.ts'
import { type FailureCount, VERDICTS, verdictOf, verdictText } from '#shared/usage/comparison.ts'
import { spentPartText } from '#shared/usage/forecast.ts'
import { type FailureTrend, type Finding, failed, type RequestCount, warned } from './check.ts'

export const RECENT_MINUTES = 15
const RECENT_MS = RECENT_MINUTES * 60_000
/** Window of rule 1, in ms. */
export const FAILING_WINDOW_MS = 3_600_000
/** Number of newest calls that must succeed to end the finding of a failing model. */
const RECOVERED_CALLS = 10
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

type RecentCalls = Pick<
  RequestOutcome,
  | 'project'
  | 'model'
  | 'status'
  | 'errorCode'
  | 'isRun'
  | 'calls'
  | 'notSent'
  | 'firstEndedAtMs'
  | 'lastEndedAtMs'
  | 'message'
>

/** Failed calls of a model, and all its calls that show whether the model works. */
export interface FailureRate extends FailureCount {
  /** Failed calls by error code and by project. */
  readonly codes: ReadonlyMap<string, number>
  readonly projects: ReadonlyMap<string, number>
  /** Failed calls that an open circuit breaker refused. */
  readonly notSent: number
  /** Times at which the first and the last failed call ended. */
  readonly firstAtMs: number
  readonly lastAtMs: number
  /** Most frequent message of the most frequent failure. */
  readonly message: string | null
}

export interface FailingModel extends FailureRate {
  readonly model: string
  /** Start of the window. Later than an hour ago if the model had more calls than were read. */
  readonly windowFromMs: number
  /** Whether the window is shorter than an hour. */
  readonly isCut: boolean
  /** Start of the failures, which may precede the window. If `isSinceCut`, then the failures may have begun earlier. */
  readonly sinceMs: number
  readonly isSinceCut: boolean
  readonly trend: FailureTrend
}

export interface CallFacts {
  readonly recent: readonly RecentCalls[]
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
    ...rateFindings(facts, reported, nowMs),
    ...refusalFindings(facts, reported, nowMs),
    ...budgets.flatMap(budgetFinding),
  ]
}

export function failureRateOf(outcomes: readonly RecentCalls[]): FailureRate {
  const [codes, projects] = [new Map<string, number>(), new Map<string, number>()]
  let [calls, sum, notSent, firstAtMs, lastAtMs] = [0, 0, 0, Number.MAX_VALUE, 0]
  let most: RecentCalls | undefined
  for (const one of outcomes) {
    const outcome = outcomeOf(one)
    if (outcome === undefined) continue
    calls += one.calls
    if (outcome === 'completed') continue
    sum += one.calls
    notSent += one.notSent
    firstAtMs = Math.min(firstAtMs, one.firstEndedAtMs)
    lastAtMs = Math.max(lastAtMs, one.lastEndedAtMs)
    add(projects, one.project, one.calls)
    add(codes, codeOf(one), one.calls)
    if (!most || one.calls > most.calls) most = one
  }
  return { failed: sum, calls, codes, projects, notSent, firstAtMs, lastAtMs, message: most?.message ?? null }
}

function codeOf({ errorCode, status }: Pick<RecentCalls, 'errorCode' | 'status'>): string {
  return errorCode ?? `HTTP ${status}`
}

/** Returns all outcomes except those of calls that exceeded their own deadline. */
export function withoutTimeouts<One extends { readonly errorCode: string | null }>(all: readonly One[]): One[] {
  return all.filter(({ errorCode }) => errorCode !== 'timeout')
}

/** @param failedMin Minimum number of failed calls */
export function isFailing({ failed, calls }: Pick<FailureRate, 'failed' | 'calls'>, failedMin = FAILED_MIN): boolean {
  return failed >= failedMin && failed > calls / 2
}

type EndedRow = Pick<RequestRow, 'status' | 'errorCode' | 'worker' | 'endedAtMs'>

/** Whether the newest calls of a model succeeded. @param rows Calls of the model, newest first */
export function hasRecovered(rows: readonly EndedRow[]): boolean {
  const newest = decisive(rows).slice(0, RECOVERED_CALLS)
  return newest.length === RECOVERED_CALLS && newest.every(({ hasFailed }) => !hasFailed)
}

/**
 * Returns the start of a series of calls of which more than half failed: the end of its first failed call. Undefined if there is no such series.
 *
 * @param rows Calls of the model, newest first
 */
export function startOfFailures(rows: readonly EndedRow[]): number | undefined {
  let [failures, first]: [number, number | undefined] = [0, undefined]
  for (const [nth, { hasFailed, endedAtMs }] of decisive(rows).entries()) {
    if (!hasFailed) continue
    failures++
    if (failures > (nth + 1) / 2) first = endedAtMs
  }
  return first
}

function decisive(rows: readonly EndedRow[]) {
  return withoutTimeouts(rows).flatMap(({ status, errorCode, worker, endedAtMs }) => {
    const outcome = outcomeOf({ status, errorCode, isRun: worker !== null })
    return outcome === undefined ? [] : [{ hasFailed: outcome === 'failed', endedAtMs }]
  })
}

function failingFinding(one: FailingModel, { openCircuits, nameOf }: CallFacts, nowMs: number): Finding {
  const { model, codes, notSent, message: cause, sinceMs, isSinceCut, windowFromMs, isCut, trend } = one
  const [code = null] = ranked(codes)
  const projects = countsOf(one.projects, nameOf)
  const minutes = Math.max(1, Math.round((nowMs - windowFromMs) / 60_000))
  const summary = summaryOf(one, isCut ? `in the last ${minutes} min` : 'in the last hour')
  const more = trend.isLowerBound ? 'at least ' : ''
  const start = `First failure ${agoText(nowMs - sinceMs)}${isSinceCut ? ' or earlier' : ''}; since then, ${more}${count(trend.failed)} of ${count(trend.calls)} calls failed, the last ${agoText(nowMs - trend.lastFailureAtMs)}.`
  const details = [
    ...(trend.previousHour ? [`${VERDICTS[verdictOf(trend)]}: ${verdictText(trend)}.`] : []),
    start,
    `Failed requests by project: ${listed(projects)}.`,
    ...(cause === null ? [] : [`Most frequent message: ${sentence(cause)}`]),
    ...(notSent === 0
      ? []
      : [
          `Not sent: ${count(notSent)} of the failed calls of the last hour, because the server was paused after failures.`,
        ]),
  ]
  const message = `The model '${model}' is failing: ${summary}.`
  const isRefusing = openCircuits.some((circuit) => circuit.model === model)
  const refusal = isRefusing ? 'New calls are refused until a test call succeeds. ' : ''
  return {
    ...failed('upstream', message, `${upstreamRemedyOf(code, cause ?? '')} ${refusal}${UNTIL_SUCCESS}`),
    ...{ details, model, title: `${model} is failing`, summary, cause: cause === null ? '' : sentence(cause) },
    ...{ notSent, sinceMs, trend, windowFromMs, errorCodes: codesIn(one), errors: countsOf(codes), projects },
  }
}

/** The failure rate as a text, such as `78 of 92 calls failed in the last hour, mostly upstream_error`. */
function summaryOf({ failed, calls, codes }: FailureRate, window: string): string {
  const [most = ''] = ranked(codes)
  const kinds = codes.size === 1 ? `all with ${most}` : `mostly ${most}`
  return `${count(failed)} of ${count(calls)} calls failed ${window}, ${kinds}`
}

/** Error codes of the failed calls. Empty if a call failed without a code. */
function codesIn({ codes }: FailureRate): readonly string[] {
  const all = ranked(codes)
  return all.some((code) => code.startsWith('HTTP ')) ? [] : all
}

function agoText(ms: number): string {
  const minutes = Math.round(ms / 60_000)
  return minutes < 1 ? 'just now' : minutes < 120 ? `${minutes} min ago` : `${Math.round(minutes / 60)} h ago`
}

function circuitFinding({ model, workers }: CallFacts['openCircuits'][number]): Finding {
  const reporters = workers === 1 ? '1 worker' : `${workers} workers`
  const message = `The upstream of '${model}' keeps failing, as ${reporters} reported. Calls of this model are refused until a test call succeeds.`
  return { ...failed('upstream', message, upstreamRemedyOf(null)), model, title: `${model} is failing` }
}

const UNTIL_SUCCESS = `The alert ends after at most ${RECOVERED_CALLS} successful calls in a row.`
/** Remedies for an operator by the error code of a call that an upstream server failed. */
export const UPSTREAM_REMEDIES = {
  upstream_error: 'Start or check the upstream server, or correct its base_url in models.yaml.',
  upstream_refused: 'Correct the variable of api_key_env in models.yaml, or the account of the provider.',
  upstream_timeout: 'Check the load of the upstream server, or raise the timeouts of the model in models.yaml.',
  overloaded: 'Check the load and the log of the upstream server, or add servers to base_urls in models.yaml.',
} as const

/** Remedies for causes that the text of the error names, because one error code has several causes. */
const REMEDIES_BY_CAUSE: readonly (readonly [RegExp, string])[] = [
  [
    /out of memory/i,
    'The upstream server lacks memory. Restart it with fewer parallel requests or a shorter context, or add servers to base_urls.',
  ],
  [/HTTP 5\d\d/, 'The upstream server answers with errors, so check its log.'],
]

/**
 * The remedy for an operator. The alert about a failing model and the page of a failed request show the same text.
 *
 * @param cause Message of the error
 */
export function upstreamRemedyOf(code: string | null, cause = ''): string {
  const byCause = REMEDIES_BY_CAUSE.find(([text]) => code !== 'upstream_refused' && text.test(cause))
  if (byCause) return byCause[1]
  if (code !== null && Object.hasOwn(UPSTREAM_REMEDIES, code))
    return UPSTREAM_REMEDIES[code as keyof typeof UPSTREAM_REMEDIES]
  return 'Check the upstream server, and the base_url and key of the model in models.yaml. `npx sluice logs --status failed` shows the calls.'
}

function sentence(text: string): string {
  const first = text.length > 200 ? `${text.slice(0, 200)}…` : text
  return /[.…!?]$/.test(first) ? first : `${first}.`
}

function rateFindings({ recent, nameOf }: CallFacts, reported: ReadonlySet<string>, nowMs: number): Finding[] {
  const byModel = Map.groupBy(recent, ({ model }) => model)
  return [...byModel].flatMap(([model, outcomes]) => {
    const rate = failureRateOf(outcomes)
    const { failed, calls, codes } = rate
    if (model === null || reported.has(model) || failed < FAILED_MIN || failed < calls * FAILED_PART_MIN) return []
    const message = `${count(failed)} of ${count(calls)} calls of '${model}' failed in the last ${RECENT_MINUTES} minutes: ${listed(countsOf(codes))}.`
    const remediation = `\`npx sluice logs --model ${model} --status failed\` shows the errors.`
    const title = `${model}: ${Math.round((100 * failed) / calls)} % of the calls fail`
    const summary = summaryOf(rate, `in the last ${RECENT_MINUTES} minutes`)
    const projects = countsOf(rate.projects, nameOf)
    const window = { windowFromMs: nowMs - RECENT_MS, errorCodes: codesIn(rate), errors: countsOf(codes) }
    return [{ ...warned('calls', message, remediation), model, title, summary, cause: '', ...window, projects }]
  })
}

function refusalFindings({ recent, nameOf }: CallFacts, reported: ReadonlySet<string>, nowMs: number): Finding[] {
  return [...REFUSALS].flatMap(([code, remedy]) => {
    const refused = recent.filter(
      ({ errorCode, isRun, model }) => errorCode === code && isRefused(code, isRun) && !reported.has(model ?? ''),
    )
    const sum = refused.reduce((total, { calls }) => total + calls, 0)
    if (sum < REFUSED_MIN) return []
    const byProject = new Map<string, number>()
    for (const { project, calls } of refused) add(byProject, project, calls)
    const projects = countsOf(byProject, nameOf)
    const message = `${count(sum)} calls were refused in the last ${RECENT_MINUTES} minutes (${code}), by project: ${listed(projects)}.`
    const remediation = `${remedy} \`npx sluice logs --error-code ${code}\` shows the calls.`
    const alert = { title: `Calls are refused (${code})`, windowFromMs: nowMs - RECENT_MS, projects }
    return [{ ...warned('refusals', message, remediation), errorCodes: [code], ...alert }]
  })
}

function budgetFinding({ owner, id, name, month, budget_usd, spent_usd }: BudgetState): Finding[] {
  if (budget_usd === 0 || spent_usd < budget_usd * BUDGET_PART_MIN) return []
  const used = `$${spent_usd.toFixed(2)} of $${budget_usd.toFixed(2)}`
  const remediation = `To raise the budget: npx sluice ${owner}s update ${id} --budget USD`
  if (spent_usd >= budget_usd) {
    const message = `The budget of the ${owner} '${name ?? id}' for ${month} is spent (${used}), so calls of this ${owner} are refused.`
    return [failed('budget', message, remediation)]
  }
  return [
    warned(
      'budget',
      `The budget of the ${owner} '${name ?? id}' for ${month} is at ${spentPartText({ spent_usd, budget_usd })} (${used}).`,
      remediation,
    ),
  ]
}

function add(counts: Map<string, number>, name: string, calls: number): void {
  counts.set(name, (counts.get(name) ?? 0) + calls)
}

/** Returns the names in descending order of their counts. */
function ranked(counts: ReadonlyMap<string, number>): readonly string[] {
  return [...counts].toSorted(([, a], [, b]) => b - a).map(([name]) => name)
}

/** The counts with names, the highest first. */
function countsOf(counts: ReadonlyMap<string, number>, nameOf: CallFacts['nameOf'] = () => null): RequestCount[] {
  return ranked(counts).map((id) => ({ name: nameOf(id) ?? id, requests: counts.get(id) ?? 0 }))
}

function listed(all: readonly RequestCount[]): string {
  const more = all.length > NAMES_MAX ? [`${all.length - NAMES_MAX} more`] : []
  return [...all.slice(0, NAMES_MAX).map(({ name, requests }) => `${name} ${count(requests)}`), ...more].join(', ')
}

function count(value: number): string {
  return value.toLocaleString('en')
}
