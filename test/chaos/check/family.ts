/** Rules for a composed job and its children, which must hold after any faults (docs/internals/design.md, Composed jobs). */
import { isDeepStrictEqual } from 'node:util'
import type { JobHistory, Of } from './history.ts'

/**
 * Maximum time for which a child may continue after the end of its parent. The limit is higher for a cancelled child, because its worker
 * needs time to stop.
 */
const CANCELLED_CHILD_MS_MAX = 60_000
const CHILD_MS_MAX = 20_000

/** Maximum requests for one page or search per attempt: the request, and one repetition if its response times out. */
const TRIES_MAX = 2

/** Minimum pause of an attempt after which its requests to other servers may have timed out, so that the report may lack their results. */
const PAUSE_MS = 8_000

/** Events after which the job waits. The time from such an event to the next one is therefore not a pause of an attempt. */
const WAIT_EVENTS = new Set(['job.queued', 'job.waiting', 'job.retrying'])

type ParentRow = Of<'row'> & { readonly family: NonNullable<Of<'row'>['family']> }

/**
 * Invariant I12: an attempt reuses the stored steps of earlier attempts instead of repeating them. A step that was running when its attempt was
 * interrupted is not stored, so it may be repeated.
 */
export function stepsAreDoneOnce(job: JobHistory): string[] {
  const row = parentRowOf(job)
  const problems = repeatProblems(job)
  if (!row) return problems
  const { steps, kept_steps } = row.family
  if (steps !== kept_steps.length) problems.push(`the row counts ${steps} steps, but ${kept_steps.length} are stored`)
  const wanted = job.expect?.research?.steps
  if (wanted && isWhole(job) && !isDeepStrictEqual(wanted, kept_steps))
    problems.push(`the steps are ${kept_steps.join(' ')}, not ${wanted.join(' ')}`)
  return problems
}

function repeatProblems({ entries, events }: JobHistory): string[] {
  const breaks = events.filter(({ event }) => event === 'job.retrying').length
  const starts = events.filter(({ event }) => event === 'job.started')
  const attemptAt = (wallMs: number) => starts.filter(({ wall_ms }) => wall_ms <= wallMs).length
  const asked = entries.filter((entry) => entry.type === 'outside')
  return [...Map.groupBy(asked, ({ what }) => what)].flatMap(([what, calls]) => {
    const attempts = Map.groupBy(calls, ({ wall_ms }) => attemptAt(wall_ms))
    return [
      ...(attempts.size > 1 + breaks
        ? [`${what} was requested in ${attempts.size} attempts, but only ${breaks} were interrupted`]
        : []),
      ...(calls.length > TRIES_MAX * (1 + breaks) ? [`${what} was requested ${calls.length} times`] : []),
    ]
  })
}

/** Invariant I13: a composed job submits each child once, and its report uses all expected children. */
export function childrenAreSingle(job: JobHistory): string[] {
  const problems = orphanProblems(job)
  const row = parentRowOf(job)
  if (!row) return problems
  const { children } = job
  if (row.family.children !== children.length)
    problems.push(`the row counts ${row.family.children} children, but ${children.length} are stored`)
  const asked = Map.groupBy(children, ({ row: child }) => child?.family?.request)
  for (const twins of asked.values())
    if (twins.length > 1) problems.push(`the children ${twins.map(({ id }) => id).join(' and ')} have equal requests`)
  const wanted = job.expect?.research?.children
  if (wanted !== undefined && isWhole(job) && children.length !== wanted)
    problems.push(`${children.length} children instead of ${wanted}`)
  if (wanted !== undefined && children.length > wanted) problems.push(`more children than ${wanted}`)
  return problems
}

/**
 * Invariant I13: no child starts or continues after the end of its parent. The parent and the children of an ended job must have been notified of its
 * end.
 */
export function childrenEndWithIt(job: JobHistory): string[] {
  const { row } = job
  if (!row?.finished_at_wall_ms) return []
  const problems: string[] = []
  if (row.family?.is_settled === false && (row.family.parent_id !== null || job.children.length > 0))
    problems.push('the job has ended, but its family was not notified')
  const end = row.finished_at_wall_ms
  for (const { id, row: child } of job.children) {
    const endsAt = child?.finished_at_wall_ms ?? Number.POSITIVE_INFINITY
    if (child && child.created_at_wall_ms > end) problems.push(`child ${id} was submitted after the end of the job`)
    // A job cannot have completed before its children, because its report consists of their results.
    if (row.state === 'completed' && endsAt > end) problems.push(`child ${id} was running when the job completed`)
    else if (endsAt > end + (child?.is_cancel_requested ? CANCELLED_CHILD_MS_MAX : CHILD_MS_MAX))
      problems.push(`child ${id} ran on for ${endsAt - end} ms after the end of the job`)
    if (row.state === 'completed' && child?.state === 'cancelled')
      problems.push(`child ${id} was cancelled without a cause`)
  }
  return problems
}

/**
 * Whether a research completed, none of its children failed, and no attempt was paused for long. Only then must its report equal the expected
 * one.
 */
export function isWhole(job: JobHistory): boolean {
  const { row, children } = job
  return row?.state === 'completed' && children.every((child) => child.row?.state !== 'failed') && !wasPaused(job)
}

/**
 * Whether an attempt of a research was paused for long, because its process was stopped or the machine was busy.
 *
 * After such a pause, a page may have exceeded its time limit of a few seconds. The report then lists this page as unreadable.
 */
export function wasPaused({ expect, events }: JobHistory): boolean {
  if (!expect?.research) return false
  return events.some(({ event, wall_ms }, i) => {
    const next = events[i + 1]
    return next !== undefined && !WAIT_EVENTS.has(event) && next.wall_ms - wall_ms >= PAUSE_MS
  })
}

function orphanProblems({ row, parent }: JobHistory): string[] {
  const id = row?.family?.parent_id
  return typeof id === 'string' && !parent?.row ? [`child of ${id}, which has no row`] : []
}

/** Returns the row of a composed job; undefined for any other job. */
function parentRowOf({ row }: JobHistory): ParentRow | undefined {
  return row?.family && row.family.parent_id === null ? { ...row, family: row.family } : undefined
}
