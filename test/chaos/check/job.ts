/**
 * What must hold for one job, whatever happened to the processes around it (docs/internals/design.md, Invariants).
 *
 * Each rule is a function from all that is known about the job to sentences that say what is wrong.
 */
import { childrenAreSingle, childrenEndWithIt, isWhole, stepsAreDoneOnce } from './family.ts'
import type { End, JobHistory, Of, Recorded } from './history.ts'

const TERMINAL = new Set(['completed', 'failed', 'cancelled', 'expired'])
const TERMINAL_EVENTS = new Set(['job.completed', 'job.failed', 'job.cancelled', 'job.expired'])
/** Workers a job may lose before it is given up as poison. */
const CRASHES_MAX = 3

/** A rule that a job broke. */
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

/** Applies every rule to one job. */
export function checkJob(job: JobHistory): Violation[] {
  return Object.entries(RULES).flatMap(([rule, check]) =>
    check(job).map((problem) => ({ rule, job_id: job.id, problem })),
  )
}

/** The entries of one type. */
export function of<T extends Recorded['type']>(job: JobHistory, type: T): Of<T>[] {
  return job.entries.filter((entry) => entry.type === type) as Of<T>[]
}

/** Whether somebody holds a promise about the job: a 202, or a stream that gave an event. */
export function isAccepted(job: JobHistory): boolean {
  return job.entries.some((entry) => entry.type === 'frame' || (entry.type === 'submit' && entry.phase === 'ok'))
}

function isNotLost(job: JobHistory): string[] {
  const { row } = job
  const missing = of(job, 'follow').filter(({ phase }) => phase === 'missing')
  const problems = missing.map(({ ingress }) => `${ingress} answered 404 for it`)
  if (!row) return isAccepted(job) ? ['it was accepted, and has no row', ...problems] : problems
  if (!TERMINAL.has(row.state)) return [`it is still ${row.state}`, ...problems]
  return [...problems, ...endedWithoutReason(job, row)]
}

/** Nothing in the workload fails for good: only a cancel or three lost workers may keep a job from completing. */
function endedWithoutReason({ expect, parent }: JobHistory, row: Of<'row'>): string[] {
  if (row.state === 'completed') return []
  if (parent) return endedWithoutParent(row, parent)
  if (row.state === 'cancelled' && (expect?.is_cancelled ?? row.is_cancel_requested)) return []
  if (row.state === 'failed' && row.crashes >= CRASHES_MAX) return []
  return [`it ended ${row.state} for no reason${row.error ? `: ${row.error}` : ''}`]
}

/** A child is cancelled with its parent alone. */
function endedWithoutParent(row: Of<'row'>, parent: JobHistory): string[] {
  if (row.state === 'failed' && row.crashes >= CRASHES_MAX) return []
  const isTold = parent.row?.is_cancel_requested || parent.row?.state === 'failed'
  if (row.state === 'cancelled' && isTold) return []
  return [`it ended ${row.state}, its parent ${parent.row?.state}${row.error ? `: ${row.error}` : ''}`]
}

function hasOneEnd(job: JobHistory): string[] {
  const ends = job.entries.flatMap((entry) => {
    const end = entry.type === 'read' || entry.type === 'frame' ? entry.end : undefined
    return end && TERMINAL.has(end.status) ? [{ entry, end }] : []
  })
  const stored = job.events.filter(({ event }) => TERMINAL_EVENTS.has(event))
  const problems: string[] = []
  if (stored.length > 1) problems.push(`it has ${stored.length} terminal events: ${stored.map(({ event }) => event)}`)
  const last = job.events.at(-1)
  if (stored[0] && last && stored[0].seq < last.seq) problems.push(`${last.event} was stored after ${stored[0].event}`)
  if (job.row && stored[0] && stored[0].event !== `job.${job.row.state}`)
    problems.push(`its row is ${job.row.state}, its terminal event ${stored[0].event}`)
  const first = ends[0]?.end
  for (const { entry, end } of ends) {
    if (first && !isSame(first, end)) problems.push(`two different ends were seen: ${say(first)} and ${say(end)}`)
    if (job.row && (job.row.state !== end.status || job.row.attempt !== end.attempt))
      problems.push(`${entry.actor} saw ${say(end)}, its row is ${job.row.state} (attempt ${job.row.attempt})`)
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
  if (row && row.last_seq !== events.length) problems.push(`its row counts ${row.last_seq} events of ${events.length}`)
  const attempts = events.filter(({ event }) => event === 'job.started').map(({ attempt }) => attempt)
  for (const [i, attempt] of attempts.entries())
    if (attempt !== i + 1) problems.push(`its start number ${i + 1} says attempt ${attempt}`)
  return problems
}

function hasItsOutput(job: JobHistory): string[] {
  const { row, expect, events } = job
  if (!row || !expect || row.state !== 'completed') return []
  const problems: string[] = []
  // Without a child that was given up a report may say less: what it says is then what everybody must see.
  const text = isWhole(job) ? expect.text : row.text
  if (row.text !== text) problems.push(`its result is ${quote(row.text)}, not ${quote(text)}`)
  if (isWhole(job) && expect.research && row.family?.report !== expect.research.report)
    problems.push(`its report is ${row.family?.report}, and ${expect.research.report} when nothing happens`)
  if (!expect.stream) return problems
  const stored = join(events)
  if (stored !== text) problems.push(`its stored output is ${quote(stored)}, not ${quote(text)}`)
  for (const [follower, frames] of byFollower(job)) {
    const seen = join(frames)
    const hasEnd = frames.some(({ end }) => end)
    if (hasEnd && seen !== text) problems.push(`${follower} saw ${quote(seen)}, not ${quote(text)}`)
  }
  return problems
}

/** The output of the last attempt: a retry takes back what came before it. */
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
      if (!stored || stored.event !== event) problems.push(`event ${seq} was ${event}, stored is ${stored?.event}`)
    }
  }
  for (const follower of new Set(of(job, 'follow').map((entry) => entry.follower))) {
    const phases = of(job, 'follow').filter((entry) => entry.follower === follower)
    const frames = byFollower(job).get(follower) ?? []
    if (phases.some(({ phase }) => phase === 'missing')) continue
    if (!phases.some(({ phase }) => phase === 'end')) problems.push(`${follower} never reached the end`)
    else if (!frames.some(({ end }) => end)) problems.push(`${follower} was told of an end it had not seen`)
  }
  return problems
}

function byFollower(job: JobHistory): Map<string, Of<'frame'>[]> {
  return Map.groupBy(of(job, 'frame'), ({ follower }) => follower)
}

/** Each execution is an attempt, and each attempt but the first was announced: by a retry with its reason, or by a wait. */
function hasSeenExecutions(job: JobHistory): string[] {
  const problems: string[] = []
  const started = job.events.filter(({ event }) => event === 'job.started')
  const retries = job.events.filter(({ event }) => event === 'job.retrying')
  const waits = job.events.filter(({ event }) => event === 'job.waiting').length
  if (job.row && job.row.attempt !== started.length)
    problems.push(`its row counts ${job.row.attempt} attempts, its events ${started.length}`)
  if (started.length > 1 + retries.length + waits)
    problems.push(`it was started ${started.length} times with ${retries.length} retries and ${waits} waits announced`)
  const runs = of(job, 'run').filter(({ phase }) => phase === 'start')
  for (const [attempt, same] of Map.groupBy(runs, (run) => run.attempt)) {
    if (same.length > 1) problems.push(`attempt ${attempt} ran ${same.length} times`)
    if (!started.some((event) => event.attempt === attempt)) problems.push(`attempt ${attempt} ran unseen`)
  }
  // The loss that ends a job is no retry.
  const lost = retries.filter(({ reason }) => reason === 'worker_lost').length + (job.row?.state === 'failed' ? 1 : 0)
  if (job.row && job.row.crashes > lost)
    problems.push(`its row counts ${job.row.crashes} lost workers, its events ${lost}`)
  return problems
}

function staysCancelled(job: JobHistory): string[] {
  const asked = job.events.findIndex(({ event }) => event === 'job.cancelling')
  const isAgain = asked >= 0 && job.events.slice(asked).some(({ event }) => event === 'job.started')
  return [...(isAgain ? ['it was started after its cancel was asked for'] : []), ...isCancelledAsTold(job)]
}

function isCancelledAsTold(job: JobHistory): string[] {
  const said = job.entries.find(
    (entry) =>
      (entry.type === 'cancel' && entry.state === 'cancelled') ||
      ((entry.type === 'frame' || entry.type === 'read') && entry.end?.status === 'cancelled'),
  )
  if (!said || !job.row || job.row.state === 'cancelled') return []
  return [`${said.actor} was told that it is cancelled, and it is ${job.row.state}`]
}

function startsInTime({ row, expect }: JobHistory): string[] {
  const earlyMs = (expect?.run_at_wall_ms ?? 0) - (row?.started_at_wall_ms ?? Number.POSITIVE_INFINITY)
  return earlyMs > 0 ? [`it started ${earlyMs} ms before its time`] : []
}

function quote(text: string | null): string {
  if (text === null) return 'nothing'
  return text.length > 120 ? `"${text.slice(0, 120)}…" (${text.length} characters)` : `"${text}"`
}
