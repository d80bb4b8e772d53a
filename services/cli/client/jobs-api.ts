import { setTimeout as delay } from 'node:timers/promises'
import { z } from 'zod'
import { AdminApi } from './admin-api.ts'
import { type Answer, type HttpClient, refusalOf } from './http.ts'
import { endedAt, exitOf, JobPage, JobView, StepPage, type StepView } from './job.ts'
import { Refusal } from './refusal.ts'

/** The service waits at most this long for a job in one request (docs/jobs.md, Wait for it). */
const WAIT_SECONDS_MAX = 60
const PAGE_MAX = 100
/** How often an operator looks at another project's job: nobody else can wait for it. */
const LOOK_MS = 1_000

/** Which jobs to list. */
export interface JobFilter {
  readonly statuses?: readonly string[] | undefined
  readonly endpoint?: string | undefined
  /** Those that this batch or job has others do. */
  readonly group?: string | undefined
  readonly metadata?: Readonly<Record<string, string>> | undefined
  /** Older ones are left out; unix seconds. */
  readonly since?: number | undefined
}

/**
 * The API of durable jobs (docs/jobs.md), as the commands need it. Jobs of other projects are found through the operator's door,
 * where the key opens it.
 *
 * @throws CommandError for every refusal
 */
export class JobsApi {
  readonly http: HttpClient
  readonly admin: AdminApi

  constructor(http: HttpClient) {
    this.http = http
    this.admin = new AdminApi(http)
  }

  /** Submits a job. @param request The body of `POST /v1/jobs`. */
  async submit(request: object, idempotencyKey: string | undefined): Promise<JobView> {
    const headers = idempotencyKey !== undefined && { 'idempotency-key': idempotencyKey }
    return await this.http.json(JobView, '/v1/jobs', { method: 'POST', ...(headers && { headers }), body: request })
  }

  /** A job as it is, or as it is `waitSeconds` later or at its end, whichever is first. */
  async get(id: string, waitSeconds = 0): Promise<JobView> {
    return await orAsOperator(
      () => this.#getOwn(id, waitSeconds),
      () => this.#getAny(id, waitSeconds),
    )
  }

  async #getAny(id: string, waitSeconds: number): Promise<JobView> {
    for (let left = waitSeconds; ; left--) {
      const job = await this.admin.get(id)
      if (exitOf(job) !== undefined || left <= 0) return job
      await delay(LOOK_MS)
    }
  }

  async #getOwn(id: string, waitSeconds: number): Promise<JobView> {
    for (let left = waitSeconds; ; ) {
      const wait = Math.min(left, WAIT_SECONDS_MAX)
      left -= wait
      const path = wait > 0 ? `${pathOf(id)}?wait=${wait}` : pathOf(id)
      const job = await this.http.json(JobView, path, { waitMs: wait * 1_000 })
      if (exitOf(job) !== undefined || left === 0) return job
    }
  }

  /** The result of a completed job as the synchronous call would have answered it. The caller reads it. */
  async result(id: string): Promise<Answer> {
    const answer = await this.http.send(`${pathOf(id)}/result`, { headers: { accept: '*/*' } })
    if (answer.statusCode >= 300) throw await refusalOf(answer)
    return answer
  }

  async cancel(id: string, signal?: AbortSignal): Promise<JobView> {
    return await orAsOperator(
      () => this.http.json(JobView, `${pathOf(id)}/cancel`, { method: 'POST', ...(signal && { signal }) }),
      () => this.admin.cancel(id),
    )
  }

  /** The steps of a job, in the order they were done, page by page as they are taken. */
  async *steps(id: string): AsyncGenerator<StepView> {
    for (let after = 0; ; ) {
      const page = await this.http.json(StepPage, `${pathOf(id)}/steps?after=${after}`)
      yield* page.data
      const last = page.last_number ?? after
      if (!page.has_more || last <= after) return
      after = last
    }
  }

  /** A new job that repeats a failed, cancelled or expired one. */
  async redrive(id: string): Promise<JobView> {
    return await orAsOperator(
      () => this.http.json(JobView, `${pathOf(id)}/redrive`, { method: 'POST' }),
      () => this.admin.redrive(id),
    )
  }

  /** A new job that runs a composed one again from its record alone. */
  async replay(id: string): Promise<JobView> {
    return await this.http.json(JobView, `${pathOf(id)}/replay`, { method: 'POST' })
  }

  /** The job that repeats an ended one already, if any. Other children were submitted while it ran. */
  async findRepeat(job: JobView): Promise<JobView | undefined> {
    const path = `/v1/jobs?limit=1&parent_id=${encodeURIComponent(job.id)}`
    const [child] = (await this.http.json(JobPage, path)).data
    const isRepeat = child?.endpoint === job.endpoint && (child?.created_at ?? 0) >= (endedAt(job) ?? 0)
    return isRepeat ? child : undefined
  }

  /** Jobs, newest first, at most `max`, page by page as they are taken. */
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

  /** The names of the models this key may use. */
  async models(): Promise<string[]> {
    const Models = z.looseObject({ data: z.array(z.looseObject({ id: z.string() })) })
    return (await this.http.json(Models, '/v1/models')).data.map(({ id }) => id)
  }
}

/**
 * What is refused because the job is not one of the key's own project, or the key is for no calls, is asked of the operator's
 * door. Where that does not open, the first refusal stands.
 */
async function orAsOperator<T>(own: () => Promise<T>, any: () => Promise<T>): Promise<T> {
  try {
    return await own()
  } catch (refused) {
    if (!(refused instanceof Refusal) || (refused.status !== 403 && refused.status !== 404)) throw refused
    return await any().catch((error: unknown) => {
      const isShut =
        error instanceof Refusal && (error.status === 403 || (error.status === 404 && refused.status === 404))
      throw isShut ? refused : error
    })
  }
}

/** The path of a job. */
export function pathOf(id: string): string {
  // A batch is a job under another name.
  return `/v1/jobs/${encodeURIComponent(id.replace(/^(msg)?batch_/, 'job_'))}`
}

function queryOf(
  { statuses, endpoint, group, metadata = {} }: JobFilter,
  limit: number,
  after: string | undefined,
): string {
  const query = new URLSearchParams({ limit: String(limit) })
  if (after) query.set('after', after)
  if (statuses) query.set('status', statuses.join(','))
  if (endpoint) query.set('endpoint', endpoint)
  if (group) query.set('group', group)
  for (const [name, value] of Object.entries(metadata)) query.set(`metadata[${name}]`, value)
  return query.toString()
}
