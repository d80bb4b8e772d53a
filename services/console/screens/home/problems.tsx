import { type Finding, isOperator } from '#services/console/api/client.ts'
import { ageText, clockText, dayText, serviceNow } from '#services/console/api/clock.ts'
import { Icon } from '#services/console/parts/parts.tsx'
import { BASE } from '#services/console/parts/router.ts'
import { durationText } from '#shared/lib/duration.ts'

/** Maximum number of projects that an alert names. */
const NAMES_MAX = 3
const DAY_SECONDS = 86_400
const NARROW = '(max-width: 760px)'

export interface QueuedWork {
  /** Id of the pool. Undefined for the work of the project of the key, in all pools together. */
  readonly id?: string
  readonly waiting: number
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
        <Alert key={`${problem.title} ${problem.facts}`} problem={problem} />
      ))}
    </ul>
  )
}

function NoProblems({ findings, isPreparing, queued }: ProblemsProps) {
  // While models are loading, no text is shown here, because the page lists these models below. Before the first
  // checks have ended, their result is not known, so no text is shown either.
  if (isPreparing || findings === undefined) return null
  const queue = queueText(queued)
  if (queue) {
    return (
      <p class="note">
        <Icon name="jobs" /> No problems found. <a href={`${BASE}/requests?status=active`}>{queue}</a>
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

/** An alert. In a narrow window, cause and remedy are hidden until a click, so that several alerts fit. */
function Alert({ problem }: { readonly problem: Problem }) {
  const { title, facts, text, isError, requests } = problem
  return (
    <li class={isError ? 'note bad' : 'note warn'}>
      <Icon name="warn" />
      <div>
        <strong>{title}</strong>
        {(facts || requests) && (
          <p>
            {facts} {requests && <a href={`${BASE}/requests?${requests}`}>Show these requests</a>}
          </p>
        )}
        {text &&
          (facts ? (
            <details open={!matchMedia(NARROW).matches}>
              <summary>Cause and remedy</summary>
              <p>
                <Fix text={text} />
              </p>
            </details>
          ) : (
            <p>
              <Fix text={text} />
            </p>
          ))}
      </div>
    </li>
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

function Fix({ text }: { readonly text: string }) {
  return <>{partsOf(text).map((part, nth) => (nth % 2 === 1 ? <code key={nth}>{part}</code> : part))}</>
}

/** Splits a remedy into parts that are alternately text and a command. A command is quoted in backticks, or follows the last colon. */
function partsOf(text: string): readonly string[] {
  const [, before, command] = /^([^`]*: )((?:npx|node) [^`]+)$/.exec(text) ?? []
  return command === undefined ? text.split('`') : [before ?? '', command]
}

interface Problem {
  readonly title: string
  /** Counts, the time since which the problem exists, and the affected projects. May be empty. */
  readonly facts: string
  /** Cause and remedy. */
  readonly text: string
  /** Whether the problem makes calls fail, so that the page shows an error instead of a warning. */
  readonly isError: boolean
  /** Query of the screen Requests that selects exactly the requests that the problem counts. May be empty. */
  readonly requests?: string
}

/**
 * Current problems, errors first: the health checks of `sluice doctor`, and the problems that `/readyz` reports. A key
 * without the admin scope receives only the checks of its own project.
 */
function problemsOf({ findings, readyProblems, refreshError }: ProblemsProps): readonly Problem[] {
  if (refreshError) {
    const text = 'This page retries automatically. The data below may be out of date.'
    return [{ title: refreshError, facts: '', text, isError: true }]
  }
  const found = findings
    ?.filter(({ status, check }) => (status === 'warn' || status === 'fail') && !isCoveredByFleet(check, findings))
    .map(problemOf)
  const notReady = readyProblems.map((title) => ({
    title,
    facts: '',
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
  const { message, cause, projects, status } = finding
  const [, clause = message, rest = ''] = /^(.{1,80}?)(?:: |\. )(.*)$/s.exec(message) ?? []
  const remedy = finding.remediation ?? ''
  const names =
    projects.length > NAMES_MAX
      ? `${projects.slice(0, NAMES_MAX).join(', ')} and ${projects.length - NAMES_MAX} more`
      : projects.join(', ')
  const facts = [
    factsOf(finding),
    isOperator.value && names && `${projects.length === 1 ? 'Project' : 'Projects'}: ${names}`,
  ].filter(Boolean)
  return {
    title: finding.title ?? clause.replace(/\.$/, ''),
    facts: facts.map((fact) => `${fact}.`).join(' '),
    text: capitalized(`${cause ?? (finding.title ? message : rest)} ${remedy}`.trim()),
    isError: status === 'fail',
    requests: failedRequestsOf(finding),
  }
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
export function failedRequestsOf({ model, error_codes, window_start }: Finding): string {
  if (!model && error_codes.length === 0) return ''
  return new URLSearchParams({
    ...(model && { model }),
    ...(error_codes.length > 0 ? { error_code: error_codes.join(',') } : { status: '5xx' }),
    ...(window_start !== null && { since: String(window_start) }),
  }).toString()
}

/** The counts of a finding and its start, such as `78 of 92 calls failed in the last hour, mostly upstream_error; first failure 14:02 (38 min ago)`. */
export function factsOf({ summary, since }: Finding): string {
  const start = since === null ? '' : `first failure ${sinceText(since)} (${ageText(since)})`
  return capitalized([summary, start].filter(Boolean).join('; '))
}

/** Returns the time of day within the last 24 hours, and the UTC day for an earlier time. */
function sinceText(seconds: number): string {
  const isToday = serviceNow() - seconds < DAY_SECONDS
  return isToday ? clockText(seconds) : dayText(new Date(seconds * 1_000).toISOString().slice(0, 10))
}

function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1)
}
