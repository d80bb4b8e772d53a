import { stripVTControlCharacters } from 'node:util'
import type { PoolView, WorkerView } from '#services/cli/client/admin-api.ts'
import { ApiError } from '#services/cli/client/http.ts'
import type { JobView } from '#services/cli/client/job.ts'
import { ageOf } from '#services/cli/client/job-text.ts'
import type { JobsApi } from '#services/cli/client/jobs-api.ts'
import { workerTable } from '#services/cli/commands/fleet.ts'
import { jobTable } from '#services/cli/commands/jobs.ts'
import { beginning, coloured, plain, tableOf } from '#services/cli/text/output.ts'

/**
 * Maximum jobs per snapshot, separately for running and for queued jobs. A page has at most 100 jobs, and one more job is requested to detect whether
 * there are more.
 */
const JOBS_MAX = 99
const RUNNING = ['in_progress', 'cancelling']
const WAITING = ['queued']

interface ModelView {
  readonly id: string
  /** Number of workers that serve the model. Null without the admin scope. */
  readonly workers: number | null
  /** Maximum concurrent calls and jobs on these workers. Null without the admin scope. */
  readonly capacity: number | null
  /**
   * Number of running calls and durable jobs. Without the admin scope, only durable jobs of the key's project are
   * counted.
   */
  readonly running: number
  readonly waiting: number
  readonly paused: boolean
}

/** The state of the service as visible to a key. `sluice top --once` prints this object as JSON. */
export interface Snapshot {
  readonly object: 'top'
  readonly created_at: number
  /** Scope of the snapshot. `all`: all projects, because the key has the scope `admin`. `own`: only the project of the key. */
  readonly sees: 'all' | 'own'
  readonly pools: readonly PoolView[] | null
  readonly workers: readonly WorkerView[] | null
  readonly models: readonly ModelView[]
  /** Running durable jobs, then queued durable jobs, each newest first. Null if the service has no job store. */
  readonly jobs: readonly JobView[] | null
  readonly has_more_jobs: boolean
  /** Current problems, as in `sluice doctor`. Null if the service does not report them. */
  readonly problems: readonly { readonly status: string; readonly message: string }[] | null
}

/** Reads snapshots. The first read determines whether the key has the admin scope. */
export class Reader {
  readonly #api: JobsApi
  #sees: Snapshot['sees'] | undefined

  constructor(api: JobsApi) {
    this.#api = api
  }

  async read(): Promise<Snapshot> {
    const fleet = this.#sees === 'own' ? undefined : await this.#findFleet()
    this.#sees ??= fleet ? 'all' : 'own'
    const [problems, names, running, waiting, ...all] = await Promise.all([
      // If the problems cannot be read, then pools and jobs are still shown.
      this.#api.admin.findings(this.#sees === 'all' ? 'fleet' : 'project').catch(() => undefined),
      undefinedIfRefused([403], () => this.#api.models()),
      this.#findJobs(RUNNING),
      this.#findJobs(WAITING),
      this.#findJobs(RUNNING, true),
      this.#findJobs(WAITING, true),
    ])
    const jobs = running && waiting && [...running.jobs, ...waiting.jobs]
    const ofModels = all.flatMap((found) => found?.jobs ?? [])
    return {
      object: 'top',
      created_at: Math.floor(Date.now() / 1_000),
      sees: this.#sees,
      pools: fleet?.pools ?? null,
      workers: fleet?.workers ?? null,
      models: modelsOf(names ?? [], ofModels, fleet),
      jobs: jobs ?? null,
      has_more_jobs: running?.hasMore === true || waiting?.hasMore === true,
      problems: problems?.filter(({ status }) => status !== 'ok') ?? null,
    }
  }

  /** Reads pools and workers. Undefined if the key lacks the admin scope, or if the service has no admin API. */
  async #findFleet(): Promise<Fleet | undefined> {
    const { admin } = this.#api
    // After a successful read, a 403 means that the key has changed. The error is thrown, because the view must not switch to `own` silently.
    const expected = this.#sees === undefined ? [403, 404] : []
    return await undefinedIfRefused(expected, async () => {
      const [pools, workers] = await Promise.all([admin.pools(), admin.workers()])
      return { pools, workers }
    })
  }

  /** @param includeChildren Whether child jobs, such as the requests of a batch, are included */
  async #findJobs(
    statuses: readonly string[],
    includeChildren = false,
  ): Promise<{ jobs: JobView[]; hasMore: boolean } | undefined> {
    const filter = { statuses, includeChildren }
    const list =
      this.#sees === 'all' ? this.#api.admin.list(filter, JOBS_MAX + 1) : this.#api.list(filter, JOBS_MAX + 1)
    const jobs = await undefinedIfRefused(['jobs_unavailable'], () => Array.fromAsync(list))
    return jobs && { jobs: jobs.slice(0, JOBS_MAX), hasMore: jobs.length > JOBS_MAX }
  }
}

interface Fleet {
  readonly pools: readonly PoolView[]
  readonly workers: readonly WorkerView[]
}

async function undefinedIfRefused<T>(
  expected: readonly (number | string)[],
  read: () => Promise<T>,
): Promise<T | undefined> {
  try {
    return await read()
  } catch (error) {
    if (error instanceof ApiError && (expected.includes(error.status) || expected.includes(error.code)))
      return undefined
    throw error
  }
}

/** Returns the models that the key can call, and those that any worker serves, sorted by name. */
function modelsOf(names: readonly string[], jobs: readonly JobView[], fleet: Fleet | undefined): ModelView[] {
  const known = new Set([...names, ...(fleet?.workers ?? []).flatMap(({ models }) => models ?? [])])
  const paused = new Set(fleet?.pools.flatMap((pool) => pool.paused.map(({ target, id }) => `${target} ${id}`)))
  const loads = new Map(fleet?.pools.flatMap(({ models }) => models ?? []).map((load) => [load.id, load]))
  return [...known].toSorted().map((id) => {
    const load = loads.get(id)
    const own = jobs.filter(({ model }) => model === id)
    const serving = fleet?.workers.filter(({ models }) => models?.includes(id))
    return {
      id,
      workers: serving?.length ?? null,
      capacity: load?.limit ?? (serving ? capacityOf(id, serving) : null),
      running: load?.running ?? own.filter(({ status }) => RUNNING.includes(status)).length,
      waiting: load?.queued ?? own.filter(({ status }) => WAITING.includes(status)).length,
      paused: paused.has(`model ${id}`),
    }
  })
}

/**
 * Returns the maximum concurrent jobs of a model, summed over its workers that do not drain. For each worker, the maximum is the
 * smaller of its slots and its highest concurrency limit for the model.
 */
function capacityOf(model: string, workers: readonly WorkerView[]): number {
  return workers.reduce((sum, { slots, draining, concurrency_limits: bounds }) => {
    const own = bounds?.filter((bound) => bound.model === model).map(({ capacity }) => capacity) ?? []
    return draining ? sum : sum + Math.min(slots, own.length > 0 ? Math.max(...own) : slots)
  }, 0)
}

export interface View {
  readonly sort: Sort
  readonly isReversed: boolean
  readonly offset: number
}

type Order = (one: JobView, other: JobView) => number

const STATUSES = ['in_progress', 'cancelling', 'queued']
/** Compares jobs by age. Jobs of the same second are ordered by id, because ids increase with time. */
const byAge: Order = (one, other) => one.created_at - other.created_at || compare(one.id, other.id)
const byText = (read: (job: JobView) => string | null | undefined): Order => {
  return (one, other) => compare(read(one) ?? '', read(other) ?? '') || byAge(one, other)
}

const SORTS = {
  status: {
    key: 's',
    order: (one, other) => STATUSES.indexOf(one.status) - STATUSES.indexOf(other.status) || byAge(one, other),
  },
  age: { key: 'a', order: byAge },
  model: { key: 'm', order: byText(({ model }) => model) },
  project: { key: 'p', order: byText(({ project }) => project) },
  endpoint: { key: 'e', order: byText(({ endpoint }) => endpoint) },
} as const satisfies Readonly<Record<string, { readonly key: string; readonly order: Order }>>

type Sort = keyof typeof SORTS

/** View at the start: running jobs before queued jobs, each oldest first. */
export const FIRST_VIEW: View = { sort: 'status', isReversed: false, offset: 0 }

const SCROLLS: Readonly<Record<string, number>> = {
  ...{ down: 1, j: 1, up: -1, k: -1 },
  ...{ pagedown: 10, space: 10, pageup: -10, home: Number.NEGATIVE_INFINITY },
}

/**
 * Returns the view after a key press. Unknown keys change nothing.
 *
 * @param name Name of the key in `node:readline`
 * @param jobs Number of jobs
 */
export function afterKey(view: View, name: string, jobs: number): View {
  if (name === 'r') return { ...view, isReversed: !view.isReversed, offset: 0 }
  const sort = sortNames().find((one) => SORTS[one].key === name)
  if (sort) return { sort, isReversed: false, offset: 0 }
  const step = Object.hasOwn(SCROLLS, name) ? SCROLLS[name] : undefined
  if (step === undefined) return view
  return { ...view, offset: Math.max(0, Math.min(view.offset + step, jobs - 1)) }
}

/**
 * Returns the jobs in the order of the view, beginning at its scroll position. If the list has become shorter than the
 * scroll position, then only the last job is returned.
 */
export function sorted(jobs: readonly JobView[], { sort, isReversed, offset }: View): JobView[] {
  const inOrder = jobs.toSorted(SORTS[sort].order)
  if (isReversed) inOrder.reverse()
  return inOrder.slice(Math.min(offset, Math.max(0, jobs.length - 1)))
}

function keysLine({ sort, isReversed }: View): string {
  const sorts = sortNames().map((name) => `${SORTS[name].key} ${name}${mark(name === sort, isReversed)}`)
  return `q quit · sort: ${sorts.join(' ')} · r reverse · ↑↓`
}

function mark(isSorted: boolean, isReversed: boolean): string {
  return isSorted ? (isReversed ? '↑' : '↓') : ''
}

function sortNames(): Sort[] {
  return Object.keys(SORTS) as Sort[]
}

function compare(one: string, other: string): number {
  return one < other ? -1 : one > other ? 1 : 0
}

interface Frame {
  readonly columns: number
  readonly rows: number
  readonly view: View
  readonly url: string
  /** Error of the last read, which left the snapshot unchanged. Undefined if the last read succeeded. */
  readonly readError: string | undefined
}

const FIXED_LINES = 2

/** Minimum useful height of a section in lines: a blank line, the table head, one row, and a line with the number of hidden rows. */
const HEIGHT_MIN = 4

interface Section {
  /** Sections that do not fit into the terminal are dropped in the order of their ranks, the lowest first. */
  readonly rank: number
  readonly lines: readonly string[]
  readonly hasMore: boolean
}

/**
 * Renders the screen as at most `rows` lines of at most `columns` characters. Small sections are shown completely, and the larger sections share the
 * remaining rows evenly. The last line of a truncated section shows the number of hidden rows.
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
  const { pools, workers, models, jobs, has_more_jobs: hasMore, created_at, problems } = snapshot
  const tables = [
    { rank: 2, text: pools?.length ? poolTable(busyFirst(pools, isPoolBusy), created_at, columns) : '' },
    { rank: 1, text: models.length > 0 ? modelTable(models, columns) : '' },
    { rank: 0, text: workers?.length ? workerTable(busyFirst(workers, isWorkerBusy), columns) : '' },
  ]
  const shown = tables.filter(({ text }) => text !== '')
  const sections = shown.map(({ rank, text }) => ({ rank, lines: linesOf(text), hasMore: false }))
  const found = problems?.map(({ status, message }) => coloured(status === 'fail' ? 'red' : 'yellow', plain(message)))
  const first = found?.length ? [{ rank: 4, lines: [coloured('dim', 'problems'), ...found], hasMore: false }] : []
  return [...first, ...sections, { rank: 3, lines: jobLines(jobs, view, columns), hasMore }]
}

/** Moves busy rows to the top, so that idle rows are truncated first. The order is otherwise preserved. */
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
  const head = ['pool', 'workers', 'running', 'calls', 'jobs', 'low', 'scheduled', 'oldest', '']
  return tableOf({ head, rows, spare: ['scheduled', 'low'] }, columnsMax)
}

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
 * Max-min fair allocation of rows. A section that needs less than an even share gets all its rows. The other sections divide the remaining rows
 * evenly.
 *
 * @returns Rows per section. Their sum is at most `total`
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

/**
 * Returns a blank line, then as many lines of the section as fit into `height` lines. Empty if not even one row of the
 * section fits.
 */
function truncated({ lines, hasMore }: Section, height: number): string[] {
  if (height < Math.min(lines.length, 2)) return []
  if (lines.length <= height) return ['', ...lines]
  const hidden = lines.length - height + 1
  if (height === 2) return ['', ...lines.slice(0, 2)]
  return ['', ...lines.slice(0, height - 1), coloured('dim', `… ${hidden}${hasMore ? '+' : ''} more`)]
}

/** Truncates a line to the width. A truncated line is printed without colours, because the sequence that resets the colour might be missing. */
function fitted(line: string, columns: number): string {
  const bare = stripVTControlCharacters(line)
  return bare.length > columns ? `${beginning(bare, columns - 1)}…` : line
}
