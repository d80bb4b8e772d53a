import { signal } from '@preact/signals'
import { type AnyJob, type Batch, fetchJson, isOperator, messageOf, type Page } from '#services/console/api/client.ts'
import { serviceNow } from '#services/console/api/clock.ts'
import { durationText } from '#shared/lib/duration.ts'

const PAGE_SIZE = 100
const JOBS_MAX = 20_000

export interface Filter {
  readonly status: string
  readonly model: string
  readonly endpoint: string
  /** Id of a parent job or batch. Empty for no restriction. */
  readonly group: string
  readonly isAll: boolean
}

/**
 * Jobs that match a filter, newest first.
 *
 * Scrolling loads further pages. A refresh reads the first page, and then some of the unfinished jobs on the later pages, one by one. Successive
 * refreshes rotate through all unfinished jobs. A refresh therefore costs a bounded number of requests, and each job is updated eventually. If more
 * new jobs arrived than fit into a page, then some are missing between the pages. The list then starts again from the first page.
 */
export class JobList {
  readonly jobs = signal<readonly AnyJob[]>([])
  readonly problem = signal('')
  readonly isLoaded = signal(false)
  readonly hasMore = signal(false)
  readonly #filter: Filter
  readonly #known = new Map<string, AnyJob>()
  #last: string | null = null
  #isLoading = false
  /** Aborted when the screen no longer shows this list. Undefined before the first refresh. */
  #signal: AbortSignal | undefined
  /** Index of the next unfinished job to refresh. Each refresh reads the first page, and a few jobs of the pages after it. */
  #rotation = 0

  constructor(filter: Filter) {
    this.#filter = filter
  }

  async refresh(signal: AbortSignal): Promise<void> {
    this.#signal = signal
    await this.#reportErrors(async () => {
      const page = await this.#page({})
      const isFirst = !this.isLoaded.value
      if (isFirst) this.#setCursor(page)
      const isBlank = isFirst && !page.data.some((job) => this.#matches(job))
      const isGap = !isFirst && page.has_more && !page.data.some(({ id }) => this.#known.has(id))
      if (isGap) this.#reset(page)
      this.#merge(page.data)
      void this.#loadBatchModels(signal)
      const open = [...this.#known.values()].filter(({ status }) => !isEnded(status))
      const seen = new Set(page.data.map(({ id }) => id))
      if (open.some(({ id }) => !seen.has(id))) await this.#refreshOpen(open, seen, signal)
      this.#show()
      if (isBlank) void this.more()
    })
  }

  async more(): Promise<void> {
    if (this.#isLoading || !this.hasMore.value || this.#known.size >= JOBS_MAX) return
    this.#isLoading = true
    await this.#reportErrors(async () => {
      const before = this.#known.size
      // A page of queued jobs may contain only scheduled and retrying jobs, which this list does not show. Further pages are then read
      // until a job can be shown.
      while (this.#known.size === before && this.hasMore.value) {
        const page = await this.#page({ after: this.#last ?? '' })
        this.#setCursor(page)
        this.#merge(page.data)
      }
      this.#show()
    })
    this.#isLoading = false
  }

  /**
   * The job of a batch does not contain the model of its requests. This method therefore reads the models of the listed batches. A running
   * batch without a model is read again. An ended batch without a model gets an empty text, because its model stays unknown.
   */
  async #loadBatchModels(signal: AbortSignal): Promise<void> {
    const known = batchModels.peek()
    const unknown = [...this.#known.values()].filter((job) => isBatch(job) && !known.has(job.id))
    const url = this.#filter.isAll ? '/v1/admin/batches' : '/v1/batches'
    const read = async ({ id, status }: AnyJob): Promise<[string, string][]> => {
      const batch = await fetchJson<Batch>(`${url}/${id.replace('job_', 'batch_')}`, { signal }).catch(() => undefined)
      return batch?.model || isEnded(status) ? [[id, batch?.model ?? '']] : []
    }
    const found = (await Promise.all(unknown.slice(0, BATCH_READS_MAX).map(read))).flat()
    if (found.length > 0) batchModels.value = new Map([...batchModels.peek(), ...found])
  }

  async #refreshOpen(open: readonly AnyJob[], seen: ReadonlySet<string>, signal: AbortSignal): Promise<void> {
    const below = open.filter(({ id }) => !seen.has(id))
    const begin = this.#rotation < below.length ? this.#rotation : 0
    const batch = below.slice(begin, begin + OPEN_READS_MAX)
    this.#rotation = begin + OPEN_READS_MAX
    const url = this.#filter.isAll ? '/v1/admin/jobs' : '/v1/jobs'
    const now = await Promise.all(
      batch.map(({ id }) => fetchJson<AnyJob>(`${url}/${id}`, { signal }).catch(() => undefined)),
    )
    this.#merge(now.filter((job) => job !== undefined))
  }

  #setCursor({ last_id, has_more }: Page<AnyJob>): void {
    this.#last = last_id
    this.hasMore.value = has_more && last_id !== null
    this.isLoaded.value = true
  }

  #reset(page: Page<AnyJob>): void {
    this.#known.clear()
    this.#setCursor(page)
  }

  #merge(jobs: readonly AnyJob[]): void {
    for (const job of jobs) {
      if (this.#matches(job)) this.#known.set(job.id, job)
      else this.#known.delete(job.id)
    }
  }

  #matches(job: AnyJob): boolean {
    return this.#filter.status === '' || this.#filter.status.split(',').includes(shownStatusOf(job))
  }

  /** Shows the newest job first. Ids begin with their creation time, so sorting by id sorts by age. */
  #show(): void {
    this.jobs.value = [...this.#known.values()].toSorted((a, b) => (a.id < b.id ? 1 : -1))
  }

  async #reportErrors(work: () => Promise<void>): Promise<void> {
    try {
      await work()
      this.problem.value = ''
    } catch (error) {
      if ((error as Error).name !== 'AbortError') this.problem.value = messageOf(error)
    }
  }

  async #page(more: Readonly<Record<string, string>>): Promise<Page<AnyJob>> {
    const { status, model, endpoint, group, isAll } = this.#filter
    const query = new URLSearchParams({ limit: String(PAGE_SIZE), ...more })
    if (status) query.set('status', status)
    if (isAll && model) query.set('model', model)
    if (!isAll && endpoint) query.set('endpoint', endpoint)
    if (group) query.set('group', group)
    const path = `${isAll ? '/v1/admin/jobs' : '/v1/jobs'}?${query}`
    return await fetchJson(path, this.#signal ? { signal: this.#signal } : {})
  }
}

/** Models of the requests of batches, by the id of the batch's job. */
export const batchModels = signal<ReadonlyMap<string, string>>(new Map())
/** Maximum batches whose models one refresh reads. */
const BATCH_READS_MAX = 10
/** Maximum unfinished jobs on the later pages that one refresh reads. */
const OPEN_READS_MAX = 20

export function isEnded(status: string): boolean {
  return ['completed', 'failed', 'cancelled', 'expired'].includes(status)
}

/** Returns the time of the end of a job or batch. Null if it has not ended. */
export function endedAtOf({ completed_at, failed_at, cancelled_at, expired_at }: AnyJob | Batch): number | null {
  return completed_at ?? failed_at ?? cancelled_at ?? expired_at
}

/** Returns the status that the console shows. Queued jobs that wait for a time are `scheduled` before the first attempt, and `retrying` afterwards. */
export function shownStatusOf({ status, run_at, attempt }: AnyJob): string {
  if (status !== 'queued' || run_at === null) return status
  return attempt === 0 ? 'scheduled' : 'retrying'
}

/** Returns the time until a job starts, such as `in 2 h`. Empty if the job does not wait for a time. */
export function dueText({ status, run_at }: AnyJob): string {
  if (status !== 'queued' || run_at === null) return ''
  const left = run_at - serviceNow()
  return left < 1 ? 'now' : `in ${durationText(left)}`
}

/** Returns the progress of the child jobs, such as `120 of 500 done`. Empty without children. */
export function progressText({ child_counts }: AnyJob): string {
  if (!child_counts) return ''
  const { total, completed, failed } = child_counts
  return `${(completed + failed).toLocaleString('en')} of ${total.toLocaleString('en')} done`
}

interface Document {
  readonly paths: Readonly<Record<string, { readonly post?: { readonly parameters?: readonly { name: string }[] } }>>
}

/**
 * Endpoint that always creates a durable job. {@link endpointsOf} finds the other endpoints by the header `Prefer`. This endpoint does not
 * accept that header, so its path is added.
 */
const BATCHES = '/v1/batches'

export function isBatch(job: AnyJob | undefined): boolean {
  return job?.endpoint === BATCHES
}

/**
 * Returns the counts that are shown as part of the status of a batch. Undefined for any other job, such as a research job, because that job
 * can succeed although some of its child jobs failed.
 */
export function batchCountsOf(job: AnyJob): AnyJob['child_counts'] {
  return isBatch(job) ? job.child_counts : undefined
}

/** Ids of models that the filters suggest. Empty until loaded. */
export const modelIds = signal<readonly string[]>([])

/**
 * Loads the suggestions of the filters: the models, and the endpoints whose requests can run as durable jobs. If
 * a request fails, then its suggestions are left out.
 */
export async function loadSuggestions(): Promise<void> {
  const path = isOperator.peek() ? '/v1/admin/models' : '/v1/models'
  const models = async () => {
    modelIds.value = (await fetchJson<Page<{ readonly id: string }>>(path)).data.map(({ id }) => id)
  }
  await Promise.allSettled([models(), loadJobEndpoints()])
}

/** Endpoints whose requests can run as durable jobs. Empty until loaded. */
export const jobEndpoints = signal<readonly string[]>([])

export async function loadJobEndpoints(): Promise<void> {
  if (jobEndpoints.value.length === 0) jobEndpoints.value = endpointsOf(await fetchJson<Document>('/openapi.json'))
}

/** Returns the endpoints that can run as a job, which are those that accept `Prefer: respond-async`. */
export function endpointsOf({ paths }: Document): readonly string[] {
  const async = Object.entries(paths).filter(([, { post }]) => post?.parameters?.some(({ name }) => name === 'prefer'))
  return [...async.map(([path]) => path), BATCHES]
}
