import { stripVTControlCharacters } from 'node:util'
import type { PoolView, WorkerView } from '#services/cli/client/admin-api.ts'
import { jobTable } from '#services/cli/commands/jobs.ts'
import { workerTable } from '#services/cli/operator/fleet.ts'
import { ageOf } from '#services/cli/text/job-text.ts'
import { beginning, coloured, plain, tableOf } from '#services/cli/text/output.ts'
import { JOBS_MAX, type ModelView, type Snapshot } from './snapshot.ts'
import { keysLine, sorted, type View } from './view.ts'

export interface Frame {
  readonly columns: number
  readonly rows: number
  readonly view: View
  readonly url: string
  /** Error of the last read. The snapshot is then older than the last read. Undefined if the last read succeeded. */
  readonly readError: string | undefined
}

const FIXED_LINES = 2

/** Minimum useful height of a section: a blank line, the table head, one row, and the number of hidden rows. */
const HEIGHT_MIN = 4

interface Section {
  /** The section with the lowest rank is dropped first. */
  readonly rank: number
  readonly lines: readonly string[]
  /** The snapshot contains only a part of the rows. */
  readonly hasMore: boolean
}

/**
 * Renders the screen as at most `rows` lines of at most `columns` characters. Small sections are shown completely; the larger ones
 * share the remaining rows evenly. The last line of a truncated section shows the number of hidden rows.
 */
export function frameOf(snapshot: Snapshot, frame: Frame): string[] {
  const { columns, rows, view, readError } = frame
  const height = Math.max(0, rows - FIXED_LINES)
  const sections = visibleSections(sectionsOf(snapshot, frame), height)
  const heights = shareRows(sections.map(heightOf), height)
  const body = sections.flatMap((section, i) => truncated(section, (heights[i] ?? 0) - 1))
  const blank = Array.from({ length: Math.max(0, height - body.length) }, () => '')
  const last = readError === undefined ? coloured('dim', keysLine(view)) : coloured('red', plain(readError))
  return [titleOf(snapshot, frame), ...body, ...blank, last].slice(0, rows).map((line) => fitted(line, columns))
}

function titleOf({ sees, jobs, has_more_jobs, created_at }: Snapshot, { url }: Frame): string {
  const queued = jobs?.filter(({ status }) => status === 'queued').length ?? 0
  const countText = (count: number) => `${count}${has_more_jobs && count >= JOBS_MAX ? '+' : ''}`
  const counts = jobs && `${countText(jobs.length - queued)} running, ${countText(queued)} queued`
  const time = new Date(created_at * 1_000).toLocaleTimeString('sv-SE')
  const scope = sees === 'all' ? 'all projects' : 'own project'
  return [`sluice top ${time}`, counts, scope, url].filter(Boolean).join(' · ')
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

/** Moves busy rows to the top, so that idle rows are cut off first. The order is otherwise preserved. */
function busyFirst<Row>(rows: readonly Row[], isBusy: (row: Row) => boolean): Row[] {
  return [...rows.filter(isBusy), ...rows.filter((row) => !isBusy(row))]
}

function isPoolBusy(pool: PoolView): boolean {
  return pool.running > 0 || waitingIn(pool) > 0 || pool.draining > 0 || pool.paused.length > 0
}

function isWorkerBusy({ running, draining, suspected }: WorkerView): boolean {
  return running > 0 || draining || suspected === true
}

function jobLines(jobs: Snapshot['jobs'], view: View, columns: number): string[] {
  if (jobs === null) return ['Durable jobs are not available: the service has no job store.']
  return jobs.length === 0 ? ['No running or queued durable jobs.'] : linesOf(jobTable(sorted(jobs, view), columns))
}

function linesOf(table: string): string[] {
  const [head = '', ...rows] = table.trimEnd().split('\n')
  return [coloured('dim', head), ...rows]
}

function poolTable(pools: readonly PoolView[], nowSeconds: number, columnsMax: number): string {
  const rows = pools.map((pool) => {
    const { id, workers, draining, slots, running, calls, jobs, oldest_queued_at: oldest } = pool
    const queued = jobs ? [jobs.queued.normal, jobs.queued.low, jobs.scheduled].map(String) : ['', '', '']
    const age = typeof oldest === 'number' ? ageOf(oldest, nowSeconds * 1_000) : ''
    const up = draining > 0 ? `${workers} (${draining} draining)` : String(workers)
    return [id, up, `${running}/${slots}`, String(calls.queued), ...queued, age, stateOf(pool)]
  })
  const head = ['pool', 'workers', 'running', 'calls here', 'jobs', 'low', 'scheduled', 'oldest', '']
  return tableOf({ head, rows, spare: ['scheduled', 'low'] }, columnsMax)
}

/** An unusual state of a pool, or an empty text. */
function stateOf(pool: PoolView): string {
  if (pool.paused.some(({ target }) => target === 'pool')) return 'paused'
  return pool.workers === 0 && waitingIn(pool) > 0 ? 'no workers' : ''
}

function waitingIn({ calls, jobs }: PoolView): number {
  return calls.queued + (jobs ? jobs.queued.normal + jobs.queued.low : 0)
}

function modelTable(models: readonly ModelView[], columnsMax: number): string {
  const hasWorkers = models.some(({ workers }) => workers !== null)
  const rows = models.map(({ id, workers, capacity, running, waiting, paused }) => {
    const figures = hasWorkers ? [workers, capacity] : []
    return [id, ...[...figures, running, waiting].map((figure) => String(figure ?? '')), paused ? 'paused' : '']
  })
  const head = ['model', ...(hasWorkers ? ['workers', 'capacity'] : []), 'running', 'queued', '']
  return tableOf({ head, rows, spare: [] }, columnsMax)
}

function heightOf({ lines }: Section): number {
  return lines.length + 1
}

/** Drops the sections of the lowest rank until the others fit. */
function visibleSections(sections: readonly Section[], height: number): readonly Section[] {
  const needed = sections.reduce((sum, section) => sum + Math.min(heightOf(section), HEIGHT_MIN), 0)
  if (needed <= height || sections.length <= 1) return sections
  const lowest = Math.min(...sections.map(({ rank }) => rank))
  return visibleSections(
    sections.filter(({ rank }) => rank !== lowest),
    height,
  )
}

/**
 * Max-min fair allocation of rows. A section that needs less than an even share gets all its rows. The others divide the rest
 * evenly.
 *
 * @returns Rows per section; their sum is at most `total`
 */
export function shareRows(needed: readonly number[], total: number): number[] {
  const allocated = needed.map(() => 0)
  let left = total
  const smallestFirst = needed.map((need, at) => ({ need, at })).toSorted((one, other) => one.need - other.need)
  for (const [nth, { need, at }] of smallestFirst.entries()) {
    allocated[at] = Math.min(need, Math.floor(left / (needed.length - nth)))
    left -= allocated[at]
  }
  return allocated
}

/** A blank line, then as much of the section as fits into `height` lines; empty if not even one row fits. */
function truncated({ lines, hasMore }: Section, height: number): string[] {
  if (height < Math.min(lines.length, 2)) return []
  if (lines.length <= height) return ['', ...lines]
  const hidden = lines.length - height + 1
  if (height === 2) return ['', ...lines.slice(0, 2)]
  return ['', ...lines.slice(0, height - 1), coloured('dim', `… ${hidden}${hasMore ? '+' : ''} more`)]
}

/** Cuts a line to the width. A cut line is printed without colours, because the sequence that resets the colour might be cut off. */
function fitted(line: string, columns: number): string {
  const bare = stripVTControlCharacters(line)
  return bare.length > columns ? `${beginning(bare, columns - 1)}…` : line
}
