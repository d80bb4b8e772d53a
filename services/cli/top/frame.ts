import { stripVTControlCharacters } from 'node:util'
import type { PoolView, WorkerView } from '#services/cli/client/admin-api.ts'
import { jobTable } from '#services/cli/commands/jobs.ts'
import { workerTable } from '#services/cli/operator/fleet.ts'
import { ageOf } from '#services/cli/text/job-text.ts'
import { beginning, coloured, plain, tableOf } from '#services/cli/text/output.ts'
import type { ModelView, Snapshot } from './snapshot.ts'
import { keysLine, sorted, type View } from './view.ts'

/** Everything that a frame depends on, but the snapshot. */
export interface Frame {
  readonly columns: number
  readonly rows: number
  readonly view: View
  readonly url: string
  /** Why the snapshot is an old one; undefined where it is not. */
  readonly trouble: string | undefined
}

/** Lines that belong to no section: the title and the keys. */
const OUTSIDE = 2

/** Rows below which a section tells nothing: a blank line, its head, a row, and how many there are below. */
const HEIGHT_MIN = 4

/** A table in the frame. */
interface Section {
  /** The one with the lowest goes first where there is too little room for all. */
  readonly rank: number
  /** Its head, and a line for each row. */
  readonly lines: readonly string[]
  /** Rows that the snapshot leaves out. */
  readonly hasMore: boolean
}

/**
 * A whole screen as lines: at most `rows` of them, none wider than `columns`. Sections that need little room get all of it, and
 * the others share the rest evenly; what is cut off is counted in the last line of its section.
 */
export function frameOf(snapshot: Snapshot, frame: Frame): string[] {
  const { columns, rows, view, trouble } = frame
  const room = Math.max(0, rows - OUTSIDE)
  const sections = fitting(sectionsOf(snapshot, frame), room)
  const heights = shared(sections.map(heightOf), room)
  const body = sections.flatMap((section, i) => cutDown(section, (heights[i] ?? 0) - 1))
  const blank = Array.from({ length: Math.max(0, room - body.length) }, () => '')
  const last = trouble === undefined ? coloured('dim', keysLine(view)) : coloured('red', plain(trouble))
  return [titleOf(snapshot, frame), ...body, ...blank, last].slice(0, rows).map((line) => narrowed(line, columns))
}

function titleOf({ sees, jobs, has_more_jobs, created_at }: Snapshot, { url }: Frame): string {
  const waiting = jobs?.filter(({ status }) => status === 'queued').length ?? 0
  const more = has_more_jobs ? ' or more' : ''
  const counts = jobs && `${jobs.length - waiting} jobs run, ${waiting} wait${more}`
  const time = new Date(created_at * 1_000).toLocaleTimeString('sv-SE')
  const whose = sees === 'all' ? 'all projects' : 'own project'
  return [`sluice top ${time}`, counts, whose, url].filter(Boolean).join(' · ')
}

function sectionsOf(snapshot: Snapshot, { columns, view }: Frame): Section[] {
  const { pools, workers, models, jobs, has_more_jobs: hasMore, created_at } = snapshot
  const tables = [
    { rank: 2, text: pools?.length ? poolTable(busyFirst(pools, isPoolBusy), created_at, columns) : '' },
    { rank: 1, text: models.length > 0 ? modelTable(models, columns) : '' },
    { rank: 0, text: workers?.length ? workerTable(busyFirst(workers, isWorkerBusy), columns) : '' },
  ]
  const shown = tables.filter(({ text }) => text !== '')
  const sections = shown.map(({ rank, text }) => ({ rank, lines: linesOf(text), hasMore: false }))
  return [...sections, { rank: 3, lines: jobLines(jobs, view, columns), hasMore }]
}

/** Those first of which there is something to tell: the others are cut off sooner. Each part keeps its order. */
function busyFirst<Row>(rows: readonly Row[], isBusy: (row: Row) => boolean): Row[] {
  return [...rows.filter(isBusy), ...rows.filter((row) => !isBusy(row))]
}

function isPoolBusy(pool: PoolView): boolean {
  return pool.running > 0 || waitingIn(pool) > 0 || pool.draining > 0 || pool.paused.length > 0
}

function isWorkerBusy({ running, draining, silent }: WorkerView): boolean {
  return running > 0 || draining || silent === true
}

function jobLines(jobs: Snapshot['jobs'], view: View, columns: number): string[] {
  if (jobs === null) return ['This service keeps no durable jobs.']
  return jobs.length === 0 ? ['No durable job runs or waits.'] : linesOf(jobTable(sorted(jobs, view), columns))
}

function linesOf(table: string): string[] {
  const [head = '', ...rows] = table.trimEnd().split('\n')
  return [coloured('dim', head), ...rows]
}

function poolTable(pools: readonly PoolView[], nowSeconds: number, columnsMax: number): string {
  const rows = pools.map((pool) => {
    const { id, workers, draining, slots, running, attached, durable, oldest_queued_at: oldest } = pool
    const queued = durable ? [durable.queued.normal, durable.queued.low, durable.scheduled].map(String) : ['', '', '']
    const age = typeof oldest === 'number' ? ageOf(oldest, nowSeconds * 1_000) : ''
    const up = draining > 0 ? `${workers} (${draining} drain)` : String(workers)
    return [id, up, `${running}/${slots}`, String(attached.queued), ...queued, age, stateOf(pool)]
  })
  const head = ['pool', 'workers', 'running', 'calls here', 'jobs', 'low', 'later', 'oldest', '']
  return tableOf({ head, rows, spare: ['later', 'low'] }, columnsMax)
}

/** What somebody should know of a pool; empty where it is as it should be. */
function stateOf(pool: PoolView): string {
  if (pool.paused.some(({ what }) => what === 'pool')) return 'paused'
  return pool.workers === 0 && waitingIn(pool) > 0 ? 'no worker' : ''
}

function waitingIn({ attached, durable }: PoolView): number {
  return attached.queued + (durable ? durable.queued.normal + durable.queued.low : 0)
}

function modelTable(models: readonly ModelView[], columnsMax: number): string {
  const seesWorkers = models.some(({ workers }) => workers !== null)
  const rows = models.map(({ id, workers, capacity, running, waiting, paused }) => {
    const figures = seesWorkers ? [workers, capacity] : []
    return [id, ...[...figures, running, waiting].map((figure) => String(figure ?? '')), paused ? 'paused' : '']
  })
  const head = ['model', ...(seesWorkers ? ['workers', 'at once'] : []), 'jobs run', 'jobs wait', '']
  return tableOf({ head, rows, spare: [] }, columnsMax)
}

function heightOf({ lines }: Section): number {
  return lines.length + 1
}

/** As many sections as there is room for, without the least important ones. */
function fitting(sections: readonly Section[], room: number): readonly Section[] {
  const needed = sections.reduce((sum, section) => sum + Math.min(heightOf(section), HEIGHT_MIN), 0)
  if (needed <= room || sections.length <= 1) return sections
  const least = Math.min(...sections.map(({ rank }) => rank))
  return fitting(
    sections.filter(({ rank }) => rank !== least),
    room,
  )
}

/**
 * Shares rows among sections that want so many each: who wants less than an even share gets it all.
 *
 * @returns The rows of each, which together are at most `room`
 */
export function shared(wanted: readonly number[], room: number): number[] {
  const given = wanted.map(() => 0)
  let left = room
  const smallestFirst = wanted.map((want, at) => ({ want, at })).toSorted((one, other) => one.want - other.want)
  for (const [nth, { want, at }] of smallestFirst.entries()) {
    given[at] = Math.min(want, Math.floor(left / (wanted.length - nth)))
    left -= given[at]
  }
  return given
}

/** A blank line, and as much of a section as fits `height` lines below it; nothing where not even a row of it does. */
function cutDown({ lines, hasMore }: Section, height: number): string[] {
  if (height < Math.min(lines.length, 2)) return []
  if (lines.length <= height) return ['', ...lines]
  const hidden = lines.length - height + 1
  if (height === 2) return ['', ...lines.slice(0, 2)]
  return ['', ...lines.slice(0, height - 1), coloured('dim', `… ${hidden}${hasMore ? ' or more' : ''} below`)]
}

/** A line that fits. One that was too wide loses its colours, whose ends might be cut off. */
function narrowed(line: string, columns: number): string {
  const bare = stripVTControlCharacters(line)
  return bare.length > columns ? `${beginning(bare, columns - 1)}…` : line
}
