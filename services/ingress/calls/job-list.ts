import { setImmediate as nextTurn } from 'node:timers/promises'
import type { DurableJob, DurableState } from '#schemas/durable-job.ts'
import { ListJobs } from '#schemas/jobs.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { JsonText } from '#shared/json/write.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { batch, batchPart } from '#shared/kinds/batch.ts'
import { promptText } from '#shared/kinds/body-text.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { childJobId, firstJobId, jobIdTime } from '#shared/store/jobs.ts'
import type { ListQuery } from '#shared/store/store.ts'
import type { Call, IngressContext } from './call.ts'
import { previewOf } from './call-bodies.ts'
import { childCountsOfPage } from './child-counts.ts'
import { hasStatus, isJobId, jobObject, requireJobs } from './job-object.ts'

const PARTS_MAX = 500

const LAST = '~'

/** Maximum jobs that are read for one page if the store has no index for the filter. */
const SCANNED_MAX = 2_000
const SCANNED_PER_READ = 200
/**
 * Maximum jobs and maximum time in ms of the search for the first job of a page. If no job is found, then the call
 * fails, because SDKs would treat an empty page as the last page.
 */
const SCANNED_UNTIL_MATCH_MAX = 100_000
const SCAN_MS_MAX = 10_000
const RESULTS_CHARS_MAX = 8 * 1024 * 1024
const PAIRS_MAX = 16

type Matches = (job: DurableJob) => boolean

/**
 * GET /v1/jobs: jobs of the caller's project, newest first. Results are included only on request. Child jobs, such as
 * the requests of a batch, are listed only with their parent, because they would hide all other jobs.
 *
 * A page may have fewer jobs than its limit, because no index supports filters by metadata, by group, or by statuses
 * that share a state. A page with `has_more` has at least one job.
 */
export async function listJobs(context: IngressContext, call: Call): Promise<void> {
  const jobs = requireJobs(context)
  const { pairs, rest } = readPairs(call.query)
  refuseUnknown(ListJobs, rest)
  const query = parseBody(ListJobs, rest, 'openai')
  const group = query.group === undefined ? undefined : new Group(query.group)
  const statuses = query.status?.split(',').map((status) => status.trim())
  const matches: Matches = (job) =>
    hasStatus(job, statuses) &&
    (group?.has(job) ?? true) &&
    pairs.every(([name, value]) => job.metadata[name] === value)
  const needsScan = group !== undefined || pairs.length > 0
  const page = await pageOf(jobs, projectIdOf(call.key), storeQuery(query, statuses, group), {
    matches,
    group,
    needsScan: needsScan,
  })
  const shown = await show(context, page.jobs, query.include === 'result')
  const isCut = shown.length < page.jobs.length
  const last_id = isCut ? (page.jobs[shown.length - 1]?.id ?? null) : page.lastId
  const end = JSON.stringify({ first_id: page.jobs[0]?.id ?? null, last_id, has_more: page.hasMore || isCut })
  await call.reply.whole(new JsonText(`{"object":"list","data":[${shown.join(',')}],${end.slice(1)}`))
}

function storeQuery(query: ListJobs, statuses: readonly string[] | undefined, group: Group | undefined): ListQuery {
  const after = query.after === undefined ? undefined : idOf(query.after, 'after')
  const from = group?.cursor(after, query.order) ?? after
  return {
    limit: query.limit,
    order: query.order,
    ...(from !== undefined && { after: from }),
    ...(statuses && { states: statesOfAll(statuses) }),
    ...(query.endpoint !== undefined && { endpoint: query.endpoint }),
    ...(query.parent_id !== undefined && { parentId: idOf(query.parent_id, 'parent_id') }),
    ...(query.include_children !== 'true' && !group && query.parent_id === undefined && { isOwn: true }),
  }
}

interface JobScan {
  readonly matches: Matches
  readonly group: Group | undefined
  readonly needsScan: boolean
}

interface Page {
  readonly jobs: readonly DurableJob[]
  readonly lastId: string | null
  readonly hasMore: boolean
}

export async function pageOf(jobs: DurableJobs, tenant: string, query: ListQuery, look: JobScan): Promise<Page> {
  const { matches, group, needsScan } = look
  const startedAt = performance.now()
  const found: DurableJob[] = []
  let lastId: string | null = null
  for (let looked = 0; ; ) {
    const limit = needsScan || looked > 0 ? SCANNED_PER_READ : query.limit
    const page = await jobs.list(tenant, { ...query, limit, ...(lastId !== null && { after: lastId }) })
    looked += page.jobs.length
    for (const job of page.jobs) {
      if (group && !group.isNear(job.id)) return { jobs: found, lastId, hasMore: false }
      if (found.length === query.limit) return { jobs: found, lastId, hasMore: true }
      lastId = job.id
      if (matches(job)) found.push(job)
    }
    if (!page.hasMore || (found.length > 0 && (!needsScan || looked >= SCANNED_MAX))) {
      return { jobs: found, lastId, hasMore: page.hasMore }
    }
    if (looked >= SCANNED_UNTIL_MATCH_MAX || performance.now() - startedAt > SCAN_MS_MAX) throw noneFound(lastId)
    // An embedded store (SQLite) answers synchronously. Without this yield, a long scan would block the event loop.
    await nextTurn()
  }
}

export async function firstPage<Item>(
  after: string | undefined,
  read: (after: string | undefined) => Promise<{ readonly page: readonly Item[]; readonly next: string | null }>,
): Promise<{ readonly page: readonly Item[]; readonly next: string | null }> {
  const startedAt = performance.now()
  for (let cursor = after; ; ) {
    const found = await read(cursor)
    if (found.page.length > 0 || found.next === null) return found
    if (performance.now() - startedAt > SCAN_MS_MAX) throw noneFound(found.next)
    cursor = found.next
    await nextTurn()
  }
}

function noneFound(lastId: string | null): ServiceError {
  const message = `No entry matches the filters so far, and older entries were not searched. Add filters, or continue with after=${lastId}.`
  return new ServiceError('invalid_request', message, { param: 'after' })
}

/** Maximum bytes of a stored request that a list reads for a preview. */
const PREVIEW_BYTES_MAX = 16 * 1024

/**
 * Returns the beginning of the prompt of each job, by the id of the job. Only jobs of `tenant` have an entry. Batches, requests in blobs and
 * long requests have none.
 */
export async function previewsOf(
  { store }: IngressContext,
  tenant: string,
  jobs: readonly DurableJob[],
): Promise<ReadonlyMap<string, string>> {
  // The input of a batch is the key of a file.
  const isShown = (job: DurableJob) => job.tenant === tenant && job.kind !== batch.name && job.kind !== batchPart.name
  const ids = jobs.filter(isShown).map(({ id }) => id)
  const requests = (await store?.findRequests(tenant, ids, PREVIEW_BYTES_MAX)) ?? new Map<string, unknown>()
  const previews = new Map<string, string>()
  for (const [id, request] of requests) {
    const { body } = (request ?? {}) as { body?: { after_history?: unknown } }
    const preview = previewOf(promptText(body?.after_history ?? body))
    if (preview) previews.set(id, preview)
  }
  return previews
}

async function show(context: IngressContext, found: readonly DurableJob[], withResults: boolean): Promise<string[]> {
  const jobs = requireJobs(context)
  const counts = await childCountsOfPage(context, found)
  const previews = await previewsOf(context, found[0]?.tenant ?? '', found)
  const positions = await Promise.all(found.map((job) => jobs.positions.of(job)))
  const shown: string[] = []
  let chars = 0
  for (const [nth, job] of found.entries()) {
    const isCompleted = withResults && job.state === 'completed'
    const result = isCompleted ? ((await jobs.resultText(job.tenant, job.id)) ?? 'null') : 'null'
    chars += result.length
    if (chars > RESULTS_CHARS_MAX && shown.length > 0) break
    const details = { position: positions[nth] ?? null, counts: counts.get(job.id), preview: previews.get(job.id) }
    const { result: _, ...rest } = jobObject(job, details)
    const text = JSON.stringify(rest)
    // Without `include=result`, the field is left out, because null would mean that the job has no result.
    shown.push(withResults ? `${text.slice(0, -1)},"result":${result}}` : text)
    if (isCompleted) await nextTurn()
  }
  return shown
}

export function readPairs(query: Call['query']): { pairs: [string, string][]; rest: Record<string, unknown> } {
  const pairs: [string, string][] = []
  const others: [string, unknown][] = []
  for (const [key, value] of Object.entries(query)) {
    const [, name] = /^metadata\[(.*)\]$/s.exec(key) ?? []
    if (name !== undefined && typeof value === 'string') pairs.push([name, value])
    else others.push([key, value])
  }
  // Object.fromEntries sets the field `__proto__` like any other field. An assignment would change the prototype
  // instead.
  if (pairs.length <= PAIRS_MAX) return { pairs, rest: Object.fromEntries(others) }
  throw new ServiceError('invalid_value', `Expected at most ${PAIRS_MAX} pairs of metadata.`, { param: 'metadata' })
}

function idOf(text: string, param: string): string {
  if (isJobId(text)) return text
  throw new ServiceError('invalid_value', `Expected the id of a job; got '${beginningOf(text, 64)}'.`, { param })
}

/**
 * All calls of a batch, or all child jobs of a deep-research job. A job id begins with its creation time, and the id of
 * a child job begins with the time of the root job. The list of a project is sorted by id, so the jobs of a group are
 * adjacent.
 */
export class Group {
  readonly root: string
  readonly #parents: ReadonlySet<string>
  readonly #beginning: string

  constructor(id: string) {
    const root = id.replace(/^(msg)?batch_/, 'job_')
    const atMs = isJobId(root) ? jobIdTime(root) : undefined
    if (atMs === undefined) {
      throw new ServiceError('invalid_value', 'Expected the id of a job or of a batch.', { param: 'group' })
    }
    this.root = root
    this.#beginning = firstJobId(atMs)
    this.#parents = new Set([root, ...Array.from({ length: PARTS_MAX }, (_, nth) => childJobId(root, String(nth)))])
  }

  /** Whether a job belongs to the group. The parts of a batch are not included, because a part only groups up to 100 requests. */
  has({ depth, parent_id, kind }: DurableJob): boolean {
    return depth > 0 && kind !== batchPart.name && this.#parents.has(parent_id ?? '')
  }

  isNear(id: string): boolean {
    return id.startsWith(this.#beginning)
  }

  cursor(after: string | undefined, order: 'asc' | 'desc'): string {
    const edge = order === 'asc' ? this.#beginning : this.#beginning + LAST
    if (after === undefined) return edge
    return (order === 'asc' ? after > edge : after < edge) ? after : edge
  }
}

const STATES: Readonly<Record<string, readonly DurableState[]>> = {
  queued: ['queued', 'scheduled'],
  scheduled: ['scheduled'],
  retrying: ['scheduled'],
  in_progress: ['in_progress', 'waiting'],
  cancelling: ['queued', 'scheduled', 'in_progress'],
  completed: ['completed'],
  failed: ['failed'],
  cancelled: ['cancelled'],
  expired: ['expired'],
}

export function statesOfAll(statuses: readonly string[]): DurableState[] {
  // The store prepares one SQL statement per number of states. Removing duplicates keeps this number low.
  return [...new Set(statuses.flatMap(statesOf))]
}

function statesOf(status: string): readonly DurableState[] {
  const states = Object.hasOwn(STATES, status) ? STATES[status] : undefined
  if (states) return states
  const known = Object.keys(STATES).join(', ')
  throw new ServiceError('invalid_value', `Unknown status. Expected one of ${known}.`, { param: 'status' })
}
