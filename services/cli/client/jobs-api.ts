import { setTimeout as delay } from 'node:timers/promises'
import { z } from 'zod'
import { AdminApi, jobPath as pathOfJob } from './admin-api.ts'
import { ApiError, type HttpClient, type HttpResponse, readApiError } from './http.ts'
import { endedAt, exitCodeOf, JobPage, JobView, StepPage, type StepView } from './job.ts'

/** Maximum duration of one long poll, in seconds (docs/guides/jobs.md). A longer wait takes several requests. */
const WAIT_SECONDS_MAX = 60
const PAGE_MAX = 100
/** Poll interval in ms for jobs of other projects, which are read from the admin API without long polls. */
const POLL_INTERVAL_MS = 1_000

export interface JobFilter {
  readonly statuses?: readonly string[] | undefined
  readonly endpoint?: string | undefined
  /** Only child jobs of the batch or composed job with this id. */
  readonly group?: string | undefined
  readonly metadata?: Readonly<Record<string, string>> | undefined
  readonly includeChildren?: boolean | undefined
  /** Only jobs created at or after this time, in Unix seconds. */
  readonly since?: number | undefined
}

/**
 * Client of the jobs API (docs/guides/jobs.md). The client uses the admin API, which needs the `admin` scope, for a job of another project or for a
 * key without the `calls` scope.
 *
 * @throws CommandError for every error response
 */
export class JobsApi {
  readonly http: HttpClient
  readonly admin: AdminApi

  constructor(http: HttpClient) {
    this.http = http
    this.admin = new AdminApi(http)
  }

  async submit(request: object, idempotencyKey: string | undefined): Promise<JobView> {
    const headers = idempotencyKey !== undefined && { 'idempotency-key': idempotencyKey }
    return await this.http.json(JobView, '/v1/jobs', { method: 'POST', ...(headers && { headers }), body: request })
  }

  /** Reads a job. With `waitSeconds`, waits until the job has finished or the time is over. */
  async get(id: string, waitSeconds = 0): Promise<JobView> {
    return await withAdminFallback(
      () => this.#getOwn(id, waitSeconds),
      () => this.#getAsAdmin(id, waitSeconds),
    )
  }

  async #getAsAdmin(id: string, waitSeconds: number): Promise<JobView> {
    for (let left = waitSeconds; ; left--) {
      const job = await this.admin.get(id)
      if (exitCodeOf(job) !== undefined || left <= 0) return job
      await delay(POLL_INTERVAL_MS)
    }
  }

  async #getOwn(id: string, waitSeconds: number): Promise<JobView> {
    for (let left = waitSeconds; ; ) {
      const wait = Math.min(left, WAIT_SECONDS_MAX)
      left -= wait
      const path = wait > 0 ? `${jobPath(id)}?wait=${wait}` : jobPath(id)
      const job = await this.http.json(JobView, path, { waitMs: wait * 1_000 })
      if (exitCodeOf(job) !== undefined || left === 0) return job
    }
  }

  /** Returns the result of a completed job, with the bytes that the synchronous call would have returned. The caller must read the body. */
  async result(id: string): Promise<HttpResponse> {
    const response = await this.http.send(`${jobPath(id)}/result`, { headers: { accept: '*/*' } })
    if (response.statusCode >= 300) throw await readApiError(response)
    return response
  }

  async cancel(id: string, signal?: AbortSignal): Promise<JobView> {
    return await withAdminFallback(
      () => this.http.json(JobView, `${jobPath(id)}/cancel`, { method: 'POST', ...(signal && { signal }) }),
      () => this.admin.cancel(id),
    )
  }

  async *steps(id: string): AsyncGenerator<StepView> {
    for (let after = 0; ; ) {
      const page = await this.http.json(StepPage, `${jobPath(id)}/steps?after=${after}`)
      yield* page.data
      const last = page.last_number ?? after
      if (!page.has_more || last <= after) return
      after = last
    }
  }

  async redrive(id: string): Promise<JobView> {
    return await withAdminFallback(
      () => this.http.json(JobView, `${jobPath(id)}/redrive`, { method: 'POST' }),
      () => this.admin.redrive(id),
    )
  }

  async replay(id: string): Promise<JobView> {
    return await this.http.json(JobView, `${jobPath(id)}/replay`, { method: 'POST' })
  }

  /**
   * Finds the job that a redrive of `job` created. This job and the child jobs of `job` have the same parent id, but
   * only this job was created after `job` had ended.
   */
  async findRedriven(job: JobView): Promise<JobView | undefined> {
    const path = `/v1/jobs?limit=1&parent_id=${encodeURIComponent(job.id)}`
    const [child] = (await this.http.json(JobPage, path)).data
    const isRedriven = child?.endpoint === job.endpoint && (child?.created_at ?? 0) >= (endedAt(job) ?? 0)
    return isRedriven ? child : undefined
  }

  async *list(filter: JobFilter, max: number): AsyncGenerator<JobView> {
    let after: string | undefined
    for (let left = max; left > 0; ) {
      const page = await this.http.json(JobPage, `/v1/jobs?${queryOf(filter, Math.min(left, PAGE_MAX), after)}`)
      for (const job of page.data) {
        if (job.created_at < (filter.since ?? 0)) return
        yield job
      }
      after = page.last_id ?? page.data.at(-1)?.id
      if (!page.has_more || after === undefined) return
      left -= page.data.length
    }
  }

  async models(): Promise<string[]> {
    const Models = z.looseObject({ data: z.array(z.looseObject({ id: z.string() })) })
    return (await this.http.json(Models, '/v1/models')).data.map(({ id }) => id)
  }
}

/**
 * Sends a request to the API for jobs of the key's own project. If the answer is 403 or 404, then the request is repeated with the admin API. If the
 * admin API refuses too, then the first error is thrown, because its remedy fits most callers.
 */
async function withAdminFallback<T>(own: () => Promise<T>, asAdmin: () => Promise<T>): Promise<T> {
  try {
    return await own()
  } catch (ownError) {
    if (!(ownError instanceof ApiError) || (ownError.status !== 403 && ownError.status !== 404)) throw ownError
    return await asAdmin().catch((error: unknown) => {
      const isDenied =
        error instanceof ApiError && (error.status === 403 || (error.status === 404 && ownError.status === 404))
      throw isDenied ? ownError : error
    })
  }
}

export function jobPath(id: string): string {
  return `/v1/${pathOfJob(id)}`
}

function queryOf(
  { statuses, endpoint, group, metadata = {}, includeChildren }: JobFilter,
  limit: number,
  after: string | undefined,
): string {
  const query = new URLSearchParams({ limit: String(limit) })
  if (after) query.set('after', after)
  if (statuses) query.set('status', statuses.join(','))
  if (endpoint) query.set('endpoint', endpoint)
  if (group) query.set('group', group)
  if (includeChildren) query.set('include_children', 'true')
  for (const [name, value] of Object.entries(metadata)) query.set(`metadata[${name}]`, value)
  return query.toString()
}
