/** What must hold for a composed job and its children, whatever happened to the processes around them (docs/internals/design.md, Families). */
import { isDeepStrictEqual } from 'node:util'
import type { JobHistory, Of } from './history.ts'

/** How long a child may go on after the end of its parent: one that is to be cancelled, and one that nobody has told. */
const OUTLIVES_MS = 60_000
const UNTOLD_MS = 20_000

/** How often one attempt asks for the same, where it has no answer in time. */
const TRIES_MAX = 2

/** Of one attempt that goes on: whoever was held up for so long may have given up what it asked for outside. */
const HELD_UP_MS = 8_000

/** After these nothing of it is under way. */
const STANDS = new Set(['job.queued', 'job.waiting', 'job.retrying'])

type ParentRow = Of<'row'> & { readonly family: NonNullable<Of<'row'>['family']> }

/** I12: what one attempt was given the next one has, unless that attempt was broken off, for what it had under way is not kept. */
export function stepsAreDoneOnce(job: JobHistory): string[] {
  const row = parentRowOf(job)
  const problems = repeatProblems(job)
  if (!row) return problems
  const { steps, kept_steps } = row.family
  if (steps !== kept_steps.length) problems.push(`its row counts ${steps} steps of ${kept_steps.length}`)
  const wanted = job.expect?.research?.steps
  if (wanted && isWhole(job) && !isDeepStrictEqual(wanted, kept_steps))
    problems.push(`its steps are ${kept_steps.join(' ')}, not ${wanted.join(' ')}`)
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
        ? [`${what} was asked for in ${attempts.size} attempts, and ${breaks} broke off`]
        : []),
      ...(calls.length > TRIES_MAX * (1 + breaks) ? [`${what} was asked for ${calls.length} times`] : []),
    ]
  })
}

/** I13: each child is one job, and a report has the children that it needs. */
export function childrenAreSingle(job: JobHistory): string[] {
  const problems = orphanProblems(job)
  const row = parentRowOf(job)
  if (!row) return problems
  const { children } = job
  if (row.family.children !== children.length)
    problems.push(`its row counts ${row.family.children} children of ${children.length}`)
  const asked = Map.groupBy(children, ({ row: child }) => child?.family?.request)
  for (const twins of asked.values())
    if (twins.length > 1) problems.push(`its children ${twins.map(({ id }) => id).join(' and ')} do the same`)
  const wanted = job.expect?.research?.children
  if (wanted !== undefined && isWhole(job) && children.length !== wanted)
    problems.push(`it has ${children.length} children instead of ${wanted}`)
  if (wanted !== undefined && children.length > wanted) problems.push(`it has more children than ${wanted}`)
  return problems
}

/** I13: no child begins or goes on after its parent's end, and whoever has ended has told its family. */
export function childrenEndWithIt(job: JobHistory): string[] {
  const { row } = job
  if (!row?.finished_at_wall_ms) return []
  const problems: string[] = []
  if (row.family?.is_settled === false && (row.family.parent_id !== null || job.children.length > 0))
    problems.push('it has ended, and nobody told its family')
  const end = row.finished_at_wall_ms
  for (const { id, row: child } of job.children) {
    const endsAt = child?.finished_at_wall_ms ?? Number.POSITIVE_INFINITY
    if (child && child.created_at_wall_ms > end) problems.push(`child ${id} was submitted after its end`)
    // A report is made of what its children said.
    if (row.state === 'completed' && endsAt > end) problems.push(`child ${id} went on when it had completed`)
    else if (endsAt > end + (child?.is_cancel_requested ? OUTLIVES_MS : UNTOLD_MS))
      problems.push(`child ${id} went on for ${endsAt - end} ms after its end`)
    if (row.state === 'completed' && child?.state === 'cancelled') problems.push(`child ${id} was cancelled for nobody`)
  }
  return problems
}

/** Whether it has all that it was to have: it completed, none of its children was given up, and it was not held up. */
export function isWhole(job: JobHistory): boolean {
  const { row, children } = job
  return row?.state === 'completed' && children.every((child) => child.row?.state !== 'failed') && !isHeldUp(job)
}

/**
 * Whether an attempt of a research stood still for long, because its process was stopped or the machine was too busy for
 * it: a page has seconds to be read in, and a report says of one that was not read that it could not be.
 */
export function isHeldUp({ expect, events }: JobHistory): boolean {
  if (!expect?.research) return false
  return events.some(({ event, wall_ms }, i) => {
    const next = events[i + 1]
    return next !== undefined && !STANDS.has(event) && next.wall_ms - wall_ms >= HELD_UP_MS
  })
}

function orphanProblems({ row, parent }: JobHistory): string[] {
  const id = row?.family?.parent_id
  return typeof id === 'string' && !parent?.row ? [`it is a child of ${id}, which has no row`] : []
}

/** Its row, where it is one that composes. */
function parentRowOf({ row }: JobHistory): ParentRow | undefined {
  return row?.family && row.family.parent_id === null ? { ...row, family: row.family } : undefined
}
