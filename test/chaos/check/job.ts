/**
 * Rules for one job, which must hold after any faults (docs/internals/design.md, Invariants).
 *
 * Each rule is a function from the history of a job to a list of problems, which is empty if the rule holds.
 */
import { childrenAreSingle, childrenEndWithIt, isWhole, stepsAreDoneOnce } from './family.ts'
import type { End, JobHistory, Of, Recorded } from './history.ts'

const TERMINAL = new Set(['completed', 'failed', 'cancelled', 'expired'])
const TERMINAL_EVENTS = new Set(['job.completed', 'job.failed', 'job.cancelled', 'job.expired'])
/** Number of lost workers after which a job fails (poison job). */
const CRASHES_MAX = 3

export interface Violation {
  readonly rule: string
  readonly job_id: string
  readonly problem: string
}

type Rule = (job: JobHistory) => string[]

const RULES: Readonly<Record<string, Rule>> = {
  'I1 lost': isNotLost,
  'I2 terminal': hasOneEnd,
  'I4 numbered': isNumberedWithoutGaps,
  'I5 output': hasItsOutput,
  'I6 resumed': isFollowedWithoutGaps,
  'I7 executions': hasSeenExecutions,
  'I10 cancelled': staysCancelled,
  'I11 start': startsInTime,
  'I12 steps': stepsAreDoneOnce,
  'I13 children': childrenAreSingle,
  'I13 outlived': childrenEndWithIt,
}

export function checkJob(job: JobHistory): Violation[] {
  return Object.entries(RULES).flatMap(([rule, check]) =>
    check(job).map((problem) => ({ rule, job_id: job.id, problem })),
  )
}

export function of<T extends Recorded['type']>(job: JobHistory, type: T): Of<T>[] {
  return job.entries.filter((entry) => entry.type === type) as Of<T>[]
}

/** Whether the service has accepted the job: a client received the 202 response or an event of the job. */
export function isAccepted(job: JobHistory): boolean {
  return job.entries.some((entry) => entry.type === 'frame' || (entry.type === 'submit' && entry.phase === 'ok'))
}

function isNotLost(job: JobHistory): string[] {
  const { row } = job
  const missing = of(job, 'follow').filter(({ phase }) => phase === 'missing')
  const problems = missing.map(({ ingress }) => `${ingress} answered 404`)
  if (!row) return isAccepted(job) ? ['accepted, but without a row', ...problems] : problems
  if (!TERMINAL.has(row.state)) return [`state is still ${row.state}`, ...problems]
  return [...problems, ...endedWithoutReason(job, row)]
}

/** Every job of the workload can succeed. A job may end in another state than completed only if it was cancelled or lost three workers. */
function endedWithoutReason({ expect, parent }: JobHistory, row: Of<'row'>): string[] {
  if (row.state === 'completed') return []
  if (parent) return endedWithoutParent(row, parent)
  if (row.state === 'cancelled' && (expect?.is_cancelled ?? row.is_cancel_requested)) return []
  if (row.state === 'failed' && row.crashes >= CRASHES_MAX) return []
  return [`ended ${row.state} without a cause${row.error ? `: ${row.error}` : ''}`]
}

/** A child may end without success only if its parent failed or was cancelled, or if the child lost three workers. */
function endedWithoutParent(row: Of<'row'>, parent: JobHistory): string[] {
  if (row.state === 'failed' && row.crashes >= CRASHES_MAX) return []
  const wasNotified = parent.row?.is_cancel_requested || parent.row?.state === 'failed'
  if (row.state === 'cancelled' && wasNotified) return []
  return [`ended ${row.state}, the parent ${parent.row?.state}${row.error ? `: ${row.error}` : ''}`]
}

function hasOneEnd(job: JobHistory): string[] {
  const ends = job.entries.flatMap((entry) => {
    const end = entry.type === 'read' || entry.type === 'frame' ? entry.end : undefined
    return end && TERMINAL.has(end.status) ? [{ entry, end }] : []
  })
  const stored = job.events.filter(({ event }) => TERMINAL_EVENTS.has(event))
  const problems: string[] = []
  if (stored.length > 1) problems.push(`${stored.length} terminal events: ${stored.map(({ event }) => event)}`)
  const last = job.events.at(-1)
  if (stored[0] && last && stored[0].seq < last.seq) problems.push(`${last.event} was stored after ${stored[0].event}`)
  if (job.row && stored[0] && stored[0].event !== `job.${job.row.state}`)
    problems.push(`the row is ${job.row.state}, the terminal event ${stored[0].event}`)
  const first = ends[0]?.end
  for (const { entry, end } of ends) {
    if (first && !isSame(first, end)) problems.push(`two different ends were observed: ${say(first)} and ${say(end)}`)
    if (job.row && (job.row.state !== end.status || job.row.attempt !== end.attempt))
      problems.push(`${entry.actor} saw ${say(end)}, the row is ${job.row.state} (attempt ${job.row.attempt})`)
  }
  return [...new Set(problems)]
}

function isSame(a: End, b: End): boolean {
  return a.status === b.status && a.attempt === b.attempt && a.hash === b.hash
}

function say({ status, attempt, hash }: End): string {
  return `${status} (attempt ${attempt}, result ${hash})`
}

function isNumberedWithoutGaps({ row, events }: JobHistory): string[] {
  const problems: string[] = []
  for (const [i, { seq }] of events.entries()) if (seq !== i + 1) return [`stored event ${i + 1} has the number ${seq}`]
  if (row && row.last_seq !== events.length)
    problems.push(`the row counts ${row.last_seq} events, but ${events.length} are stored`)
  const attempts = events.filter(({ event }) => event === 'job.started').map(({ attempt }) => attempt)
  for (const [i, attempt] of attempts.entries())
    if (attempt !== i + 1) problems.push(`start event ${i + 1} of the job has the attempt number ${attempt}`)
  return problems
}

function hasItsOutput(job: JobHistory): string[] {
  const { row, expect, events } = job
  if (!row || !expect || row.state !== 'completed') return []
  const problems: string[] = []
  // If a child of the job failed, then the report may be shorter than expected. The outputs that clients received must then equal the stored
  // text instead.
  const text = isWhole(job) ? expect.text : row.text
  if (row.text !== text) problems.push(`the result is ${quote(row.text)}, not ${quote(text)}`)
  if (isWhole(job) && expect.research && row.family?.report !== expect.research.report)
    problems.push(`the report is ${row.family?.report}, but ${expect.research.report} in an undisturbed run`)
  if (!expect.stream) return problems
  const stored = join(events)
  if (stored !== text) problems.push(`the stored output is ${quote(stored)}, not ${quote(text)}`)
  for (const [follower, frames] of byFollower(job)) {
    const seen = join(frames)
    const hasEnd = frames.some(({ end }) => end)
    if (hasEnd && seen !== text) problems.push(`${follower} saw ${quote(seen)}, not ${quote(text)}`)
  }
  return problems
}

/** Joins the output of the last attempt. A retry event discards the output before it. */
function join(events: readonly { text?: string; reset?: boolean }[]): string {
  let joined = ''
  for (const { text, reset } of events) joined = reset ? '' : joined + (text ?? '')
  return joined
}

function isFollowedWithoutGaps(job: JobHistory): string[] {
  const problems: string[] = []
  for (const [follower, frames] of byFollower(job)) {
    let last = 0
    for (const { seq, event } of frames) {
      if (seq <= last) problems.push(`${follower} got event ${seq} again (${event}), after ${last}`)
      else if (seq > last + 1) problems.push(`${follower} got event ${seq} after ${last}: a gap`)
      last = Math.max(last, seq)
      const stored = job.events[seq - 1]
      if (!stored || stored.event !== event) problems.push(`event ${seq} was ${event}, but ${stored?.event} is stored`)
    }
  }
  for (const follower of new Set(of(job, 'follow').map((entry) => entry.follower))) {
    const phases = of(job, 'follow').filter((entry) => entry.follower === follower)
    const frames = byFollower(job).get(follower) ?? []
    if (phases.some(({ phase }) => phase === 'missing')) continue
    if (!phases.some(({ phase }) => phase === 'end')) problems.push(`${follower} never received the terminal event`)
    else if (!frames.some(({ end }) => end)) problems.push(`${follower} got a 204 before the terminal event`)
  }
  return problems
}

function byFollower(job: JobHistory): Map<string, Of<'frame'>[]> {
  return Map.groupBy(of(job, 'frame'), ({ follower }) => follower)
}

/** Checks that each execution is a numbered attempt. Each attempt after the first must follow a retry event, or a wait for children. */
function hasSeenExecutions(job: JobHistory): string[] {
  const problems: string[] = []
  const started = job.events.filter(({ event }) => event === 'job.started')
  const retries = job.events.filter(({ event }) => event === 'job.retrying')
  const waits = job.events.filter(({ event }) => event === 'job.waiting').length
  if (job.row && job.row.attempt !== started.length)
    problems.push(`the row counts ${job.row.attempt} attempts, but ${started.length} start events are stored`)
  if (started.length > 1 + retries.length + waits)
    problems.push(`started ${started.length} times with ${retries.length} retry events and ${waits} waits`)
  const runs = of(job, 'run').filter(({ phase }) => phase === 'start')
  for (const [attempt, same] of Map.groupBy(runs, (run) => run.attempt)) {
    if (same.length > 1) problems.push(`attempt ${attempt} ran ${same.length} times`)
    if (!started.some((event) => event.attempt === attempt))
      problems.push(`attempt ${attempt} ran without a start event`)
  }
  // Each loss of a worker is followed by a retry event, except the last loss of a job that then fails. For a failed job, one loss is
  // therefore added.
  const lost = retries.filter(({ reason }) => reason === 'worker_lost').length + (job.row?.state === 'failed' ? 1 : 0)
  if (job.row && job.row.crashes > lost)
    problems.push(`the row counts ${job.row.crashes} lost workers, but the events only ${lost}`)
  return problems
}

function staysCancelled(job: JobHistory): string[] {
  const asked = job.events.findIndex(({ event }) => event === 'job.cancelling')
  const isAgain = asked >= 0 && job.events.slice(asked).some(({ event }) => event === 'job.started')
  return [...(isAgain ? ['started after a cancel request'] : []), ...isCancelledAsReported(job)]
}

function isCancelledAsReported(job: JobHistory): string[] {
  const said = job.entries.find(
    (entry) =>
      (entry.type === 'cancel' && entry.state === 'cancelled') ||
      ((entry.type === 'frame' || entry.type === 'read') && entry.end?.status === 'cancelled'),
  )
  if (!said || !job.row || job.row.state === 'cancelled') return []
  return [`${said.actor} got the answer "cancelled", but the job is ${job.row.state}`]
}

function startsInTime({ row, expect }: JobHistory): string[] {
  const earlyMs = (expect?.run_at_wall_ms ?? 0) - (row?.started_at_wall_ms ?? Number.POSITIVE_INFINITY)
  return earlyMs > 0 ? [`started ${earlyMs} ms before the scheduled time`] : []
}

function quote(text: string | null): string {
  if (text === null) return 'nothing'
  return text.length > 120 ? `"${text.slice(0, 120)}…" (${text.length} characters)` : `"${text}"`
}
