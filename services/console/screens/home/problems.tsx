import type { ComponentChildren } from 'preact'
import { type Finding, isOperator } from '#services/console/api/client.ts'
import { ageText, clockText, countText, dateText, dayOfMonthText, serviceNow } from '#services/console/api/clock.ts'
import { projectName } from '#services/console/api/names.ts'
import { Icon } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { durationText } from '#shared/lib/duration.ts'
import { percentOf, VERDICTS, verdictText } from '#shared/usage/comparison.ts'
import { listPath, type Work } from './summary.tsx'

/** Maximum number of projects that an alert names. */
const NAMES_MAX = 3
const NARROW = '(max-width: 760px)'

export interface QueuedWork {
  /** Id of the pool. Undefined for the work of the project of the key, in all pools together. */
  readonly id?: string
  readonly waiting: number
  readonly durable?: Work['durable']
  readonly oldestSeconds?: number | undefined
}

interface ProblemsProps {
  /** Results of the health checks. Undefined until the first checks have ended. */
  readonly findings: readonly Finding[] | undefined
  /** Problems that `/readyz` reports. */
  readonly readyProblems: readonly string[]
  /** Error of the last refresh, or an empty text. */
  readonly refreshError: string
  readonly isPreparing: boolean
  readonly queued: readonly QueuedWork[]
}

/** Current problems, or a note that there are none. */
export function Problems(props: ProblemsProps) {
  const all = problemsOf(props)
  if (all.length === 0) return <NoProblems {...props} />
  return (
    <ul class="attention" aria-label="Problems">
      {all.map((problem) => (
        <Alert key={`${problem.title} ${problem.finding?.model} ${problem.text}`} problem={problem} />
      ))}
    </ul>
  )
}

function NoProblems({ findings, isPreparing, queued }: ProblemsProps) {
  // While models are loading, no text is shown here, because the page lists these models below.
  if (isPreparing) return null
  // The note has the height of the later one, so that the page below does not move.
  if (findings === undefined) return <p class="note dim">Checking the service…</p>
  const queue = queueText(queued)
  const sumOf = (count: (work: QueuedWork) => number) => queued.reduce((sum, work) => sum + count(work), 0)
  const path = listPath(
    'queued',
    sumOf(({ waiting }) => waiting),
    sumOf(({ durable }) => durable?.waiting ?? 0),
  )
  if (queue) {
    return (
      <p class="note">
        <Icon name="jobs" /> No problems found. <a href={`${BASE}/${path}`}>{queue}</a>
      </p>
    )
  }
  return (
    <p class="note good">
      <Icon name="check" />{' '}
      {isOperator.value ? 'All systems operational.' : 'No problems found. The requests of your project succeed.'}
    </p>
  )
}

function Alert({ problem: { title, isError, text, finding } }: { readonly problem: Problem }) {
  return (
    <li class={isError ? 'note bad' : 'note warn'}>
      <Icon name="warn" />
      <div class="alert">
        <strong>{title}</strong>
        {finding ? <Incident finding={finding} /> : <Remedies text={text} />}
      </div>
    </li>
  )
}

function Remedies({ text }: { readonly text: string }) {
  return text === '' ? null : (
    <p>
      <Remedy text={text} />
    </p>
  )
}

/**
 * A finding about requests: the verdict with its trend, the failed requests by project, the most frequent error, the remedy, and links. In a narrow
 * window, these facts are hidden until a click, so that several alerts fit.
 */
export function Incident({ finding }: { readonly finding: Finding }) {
  const { trend, errors = [], projects, cause, remediation, not_sent = 0 } = finding
  const query = failedRequestsOf(finding)
  const [error] = errors
  const facts: readonly (readonly [name: string, value: ComponentChildren])[] = [
    ['Failed requests', trend && query && <Counts finding={finding} trend={trend} />],
    [
      'Not sent',
      not_sent > 0 && `${countText(not_sent)} of those of the last hour, because the server was paused after failures`,
    ],
    ['Projects', isOperator.value && query && <Projects projects={projects} query={query} />],
    [
      'Most frequent error',
      error && (
        <>
          <code>{error.name}</code> {countText(error.requests)}
          {cause && `: ${cause}`}
        </>
      ),
    ],
    ['Remedy', remediation && <Remedy text={remediation} />],
  ]
  return (
    <>
      <p>{verdictOf(finding)}</p>
      <TrendBars trend={trend} />
      <details open={!matchMedia(NARROW).matches}>
        <summary>Cause and remedy</summary>
        <dl class="facts">
          {facts.map(
            ([name, value]) =>
              value && (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd>{value}</dd>
                </div>
              ),
          )}
        </dl>
      </details>
      {query && (
        <p class="links">
          <a href={`${BASE}/requests?${query}`}>Show these requests</a>
          {finding.model && (
            <a href={`${BASE}/usage?${new URLSearchParams({ model: finding.model, by: 'project' })}`}>Usage</a>
          )}
        </p>
      )}
    </>
  )
}

function Projects({ projects, query }: { readonly projects: Finding['projects']; readonly query: string }) {
  const more = projects.length - NAMES_MAX
  return (
    <>
      {projects.slice(0, NAMES_MAX).map(({ name, requests }, nth) => (
        <span key={name}>
          {nth > 0 && ', '}
          <a href={`${BASE}/requests?${query}&${new URLSearchParams({ project: name })}`}>{projectName(name)}</a>{' '}
          {countText(requests)}
        </span>
      ))}
      {more > 0 && ` and ${more} more`}
    </>
  )
}

/** Queued work as a sentence, or an empty text. */
function queueText(queued: readonly QueuedWork[]): string {
  const busy = queued.filter(({ waiting }) => waiting > 0)
  const waiting = busy.reduce((sum, pool) => sum + pool.waiting, 0)
  if (waiting === 0) return ''
  const oldest = Math.max(0, ...busy.map(({ oldestSeconds = 0 }) => oldestSeconds))
  const names = busy.flatMap(({ id }) => id ?? []).join(', ')
  const since = oldest >= 1 ? `; the oldest has waited ${durationText(oldest)}` : ''
  const jobs = waiting === 1 ? '1 job' : `${waiting.toLocaleString('en')} jobs`
  const where = names ? ` in ${names}` : ''
  return `${jobs}${names ? '' : ' of your project'} ${waiting === 1 ? 'waits' : 'wait'} for a free slot${where}${since}.`
}

/**
 * Commands of `sluice` that a remedy may name, each with the screen of the console that replaces the command. `pathOf` receives the words of the
 * command, because some paths contain one of its arguments.
 */
const SCREENS: readonly (readonly [command: RegExp, name: string, pathOf: (words: readonly string[]) => string])[] = [
  [/^logs\b/, 'Requests', (words) => `requests?${logsQuery(words)}`],
  [/^doctor\b/, 'the checks on Home', () => ''],
  [/^jobs\b/, 'Jobs', (words) => (words.includes('queued') ? 'jobs?status=queued' : 'jobs')],
  [/^dead-letters\b/, 'Dead letters', () => 'dead-letters'],
  [/^drain\b/, 'Workers', () => 'workers'],
  [/^(resume|pause) model\b/, 'Models', () => 'models'],
  [/^(resume|pause) pool\b/, 'Pools', () => 'pools'],
  [/^(keys|projects) update\b/, 'Keys and projects', ([, , id = '']) => `keys?edit=${encodeURIComponent(id)}`],
  [/^(keys|projects)\b/, 'Keys and projects', () => 'keys'],
]

/** Converts the options of `sluice logs` to the query of the screen Requests. Example: `--error-code overloaded` becomes `error_code=overloaded`. */
function logsQuery(words: readonly string[]): string {
  const options = words.flatMap((word, nth) =>
    word.startsWith('--') ? [[word.slice(2).replaceAll('-', '_'), words[nth + 1] ?? '']] : [],
  )
  return new URLSearchParams(options).toString()
}

/** Matches a command in a remedy: in backticks, after the last colon, or as words without punctuation. */
const COMMAND = /`([^`]+)`|(?<=: )((?:npx|node) [^`]+)$|(npx sluice [\w-]+(?: [\w-]+)*)/g

/** The text of a remedy. If a screen of the console replaces a command in the text, then the command is a link to this screen. */
export function Remedy({ text }: { readonly text: string }) {
  const parts: ComponentChildren[] = []
  let end = 0
  for (const found of text.matchAll(COMMAND)) {
    const command = found[1] ?? found[2] ?? found[3] ?? ''
    const words = command.replace(/^npx sluice /, '').split(' ')
    const [, name, pathOf] =
      (command.startsWith('npx sluice ') && SCREENS.find(([one]) => one.test(words.join(' ')))) || []
    parts.push(text.slice(end, found.index))
    parts.push(
      name && pathOf ? (
        <a href={`${BASE}/${pathOf(words)}`} title={command}>
          {name}
        </a>
      ) : (
        <code>{command}</code>
      ),
    )
    end = found.index + found[0].length
  }
  return (
    <>
      {parts}
      {text.slice(end)}
    </>
  )
}

interface Problem {
  readonly title: string
  /** Cause and remedy, without a finding. */
  readonly text: string
  /** Whether the problem makes calls fail, so that the page shows an error instead of a warning. */
  readonly isError: boolean
  readonly finding?: Finding
}

/**
 * Current problems, errors first: the health checks of `sluice doctor`, and the problems that `/readyz` reports. A key
 * without the admin scope receives only the checks of its own project.
 */
function problemsOf({ findings, readyProblems, refreshError }: ProblemsProps): readonly Problem[] {
  if (refreshError) {
    const text = 'This page retries automatically. The data below may be out of date.'
    return [{ title: refreshError, text, isError: true }]
  }
  const found = findings
    ?.filter(({ status, check }) => (status === 'warn' || status === 'fail') && !isCoveredByFleet(check, findings))
    .map(problemOf)
  const notReady = readyProblems.map((title) => ({
    title,
    text: 'New requests are rejected until this is resolved. Run `npx sluice doctor` for a full check with remedies.',
    isError: true,
  }))
  // If a health check fails, then the problems of /readyz are left out, because the health checks report the same
  // problems with remedies.
  const all = found?.some(({ isError }) => isError) ? found : [...notReady, ...(found ?? [])]
  return all.toSorted((a, b) => Number(b.isError) - Number(a.isError))
}

/** Converts a finding to an alert. If the finding has no title, then the first clause of its message becomes the title. */
function problemOf(finding: Finding): Problem {
  const { message, status, remediation, title } = finding
  const isError = status === 'fail'
  if (title && failedRequestsOf(finding)) return { title, text: '', isError, finding }
  const [, clause = message, rest = ''] = /^(.{1,80}?)(?:: |\. )(.*)$/s.exec(message) ?? []
  const text = capitalized(`${title ? message : rest} ${remediation ?? ''}`.trim())
  return { title: title ?? clause.replace(/\.$/, ''), text, isError }
}

/**
 * Maps a check of this machine to the check of the fleet that reports the same outage. If both fail, then only the fleet check is shown, because it
 * also states the consequence.
 */
const FLEET_CHECKS: Readonly<Record<string, string>> = { postgres: 'store', kafka: 'broker' }

function isCoveredByFleet(check: string, findings: readonly Finding[]): boolean {
  return findings.some((one) => one.status === 'fail' && one.check === FLEET_CHECKS[check])
}

/** Returns the query with which the screen Requests lists exactly the failed requests that a finding counts. Empty if it counts none. */
function failedRequestsOf({ model, error_codes, window_start }: Finding): string {
  if (!model && error_codes.length === 0) return ''
  return new URLSearchParams({
    ...(model && { model }),
    ...(error_codes.length > 0 ? { error_code: error_codes.join(',') } : { status: '5xx' }),
    ...(window_start !== null && { since: String(window_start) }),
  }).toString()
}

/** The state of an incident in one line: `Getting worse: 85 % of the calls failed in the last hour, 53 % in the hour before. Failing since 14:02 (3 h ago)`. */
function verdictOf({ summary, message, since, trend }: Finding): ComponentChildren {
  if (since === null || !trend) return summary ? `${capitalized(summary)}.` : message
  const start = `Failing since ${sinceText(since)} (${ageText(since)})`
  if (trend.verdict === 'new' || !trend.last_hour) return `${start}. ${capitalized(summary ?? '')}.`
  const text = verdictText({ lastHour: trend.last_hour, previousHour: trend.previous_hour })
  return (
    <>
      <b>{VERDICTS[trend.verdict]}:</b> {text}. {start}, last failure {sinceText(trend.last_failure_at)}.
    </>
  )
}

type Trend = NonNullable<Finding['trend']>

interface CountsProps {
  readonly finding: Finding
  readonly trend: Trend
}

/** The failed requests of the last hour and since the start of an incident. Each count is a link to its requests. */
function Counts({ finding, trend: { failed, calls, is_lower_bound, last_hour } }: CountsProps) {
  const all = `${is_lower_bound ? 'at least ' : ''}${countText(failed)} of ${countText(calls)} calls since the failures began`
  const { since } = finding
  return (
    <>
      {last_hour && (
        <>
          <a href={`${BASE}/requests?${failedRequestsOf(finding)}`}>
            {countText(last_hour.failed)} of {countText(last_hour.calls)} calls in the last hour
          </a>
          {'; '}
        </>
      )}
      <a href={`${BASE}/requests?${failedRequestsOf({ ...finding, window_start: since ?? finding.window_start })}`}>
        {all}
      </a>
    </>
  )
}

/** Bars and a legend with the failed share of each clock hour since the start of a problem. Absent within the first hour. */
function TrendBars({ trend }: { readonly trend: Finding['trend'] | undefined }) {
  if (!trend || trend.hours.length < 2) return null
  const texts = trend.hours.map(
    (hour) => `${clockText(hour.at)} ${hour.calls === 0 ? 'no calls' : `${percentOf(hour)} %`}`,
  )
  return (
    <>
      <span class="trend" role="img" aria-label={`Failed share per hour: ${texts.join(', ')}`}>
        {trend.hours.map((hour, nth) => (
          <span
            key={hour.at}
            title={`${texts[nth]}: ${countText(hour.failed)} of ${countText(hour.calls)} calls failed`}
          >
            <span style={{ height: `${percentOf(hour)}%` }} />
          </span>
        ))}
      </span>
      <small class="dim">Failed share per hour</small>
    </>
  )
}

/** Returns the time of day, with the date in front unless it is today. Both are in the time zone of the browser. */
function sinceText(seconds: number): string {
  const isToday = dateText(seconds) === dateText(serviceNow())
  return isToday ? clockText(seconds) : `${dayOfMonthText(seconds)}, ${clockText(seconds)}`
}

function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1)
}
