import { z } from 'zod'
import { BatchPage, type BatchView, type HttpClient } from './http.ts'
import { JobPage, JobView } from './job.ts'

const PAGE_MAX = 100
const ADMIN = '/v1/admin'

export interface AdminFilter {
  readonly project?: string | undefined
  readonly pool?: string | undefined
  readonly model?: string | undefined
  readonly statuses?: readonly string[] | undefined
  /** Only jobs created at or after this time, in Unix seconds. */
  readonly since?: number | undefined
  /** Whether a list includes child jobs. All other calls ignore this field. */
  readonly includeChildren?: boolean | undefined
}

const Entry = z.looseObject({
  id: z.string(),
  project: z.string().nullish(),
  model: z.string().nullish(),
  status: z.string(),
  new_id: z.string().nullish(),
  error: z.looseObject({ message: z.string() }).nullish(),
})
const BulkPage = z.looseObject({ data: z.array(Entry), has_more: z.boolean() })
export type BulkResult = z.infer<typeof Entry>

export const WorkerView = z.looseObject({
  id: z.string(),
  role: z.string(),
  version: z.string(),
  slots: z.number(),
  capacity: z.number().nullish().describe('Absent in responses of older services'),
  running: z.number(),
  draining: z.boolean(),
  suspected: z.boolean().nullish(),
  parked_calls: z.number().nullish(),
  host: z.string().nullish(),
  pid: z.number().nullish(),
  last_seen_at: z.number().nullish(),
  models: z.array(z.string()).nullish(),
  concurrency_limits: z.array(z.looseObject({ model: z.string(), capacity: z.number() })).nullish(),
})
export type WorkerView = z.infer<typeof WorkerView>

const FindingPage = z.looseObject({
  data: z.array(
    z.looseObject({
      check: z.string(),
      status: z.enum(['ok', 'skip', 'warn', 'fail']),
      message: z.string(),
      remediation: z.string().nullable(),
      details: z.array(z.string()),
      model: z.string().nullish(),
    }),
  ),
})

export const PoolView = z.looseObject({
  id: z.string(),
  workers: z.number(),
  draining: z.number(),
  slots: z.number(),
  free: z.number(),
  running: z.number(),
  models: z
    .array(z.looseObject({ id: z.string(), limit: z.number(), running: z.number(), queued: z.number() }))
    .nullish()
    .describe('Absent in responses of older services'),
  calls: z.looseObject({ queued: z.number(), running: z.number() }),
  jobs: z
    .looseObject({ queued: z.looseObject({ normal: z.number(), low: z.number() }), scheduled: z.number() })
    .nullish(),
  paused: z.array(z.looseObject({ target: z.string(), id: z.string() })),
  oldest_queued_at: z.number().nullish(),
})
export type PoolView = z.infer<typeof PoolView>

export const DeliveryView = z.looseObject({
  id: z.string(),
  project: z.string(),
  job_id: z.string().nullable(),
  type: z.string(),
  host: z.string().nullish(),
  status: z.string(),
  attempts: z.number(),
  response_status: z.number().nullish(),
  error: z.string().nullish(),
  next_at: z.number().nullish(),
})
export type DeliveryView = z.infer<typeof DeliveryView>

export const DeadLetterView = z.looseObject({
  id: z.string(),
  pool: z.string().nullish(),
  position: z.string().nullish(),
  bytes: z.number(),
  reason: z.string(),
  message: z.string(),
  job_id: z.string().nullish(),
  project: z.string().nullish(),
  redrivable: z.boolean(),
  created_at: z.number(),
})
export type DeadLetterView = z.infer<typeof DeadLetterView>

const DiscardedView = z.looseObject({ id: z.string(), deleted: z.boolean() })
const DeadLetterPage = z.looseObject({
  data: z.array(DeadLetterView),
  has_more: z.boolean(),
  last_id: z.string().nullish(),
})
const DeliveryPage = z.looseObject({
  data: z.array(DeliveryView),
  has_more: z.boolean(),
  last_id: z.string().nullish(),
})
const PauseView = z.looseObject({
  target: z.string(),
  id: z.string(),
  paused: z.boolean(),
  persistent: z.boolean().nullish(),
})

/**
 * Client of the admin API (docs/internals/protocol.md, Operators).
 *
 * @throws CommandError for every error response
 */
export class AdminApi {
  readonly http: HttpClient

  constructor(http: HttpClient) {
    this.http = http
  }

  async get(id: string): Promise<JobView> {
    return await this.http.json(JobView, `${ADMIN}/${jobPath(id)}`)
  }

  async cancel(id: string): Promise<JobView> {
    return await this.#post(JobView, `${jobPath(id)}/cancel`)
  }

  async redrive(id: string): Promise<JobView> {
    return await this.#post(JobView, `${jobPath(id)}/redrive`)
  }

  /** Lists at most `max` jobs of all projects, newest first. Pages are fetched on demand. */
  async *list({ statuses, includeChildren, ...rest }: AdminFilter, max: number): AsyncGenerator<JobView> {
    const include_children = includeChildren ? 'true' : undefined
    yield* this.#pages(JobPage, 'jobs', { ...rest, status: statuses?.join(','), include_children }, max)
  }

  /** Lists at most `max` batches of all projects, or of one project, newest first. */
  batches(filter: { project?: string | undefined }, max: number): AsyncGenerator<BatchView> {
    return this.#pages(BatchPage, 'batches', filter, max)
  }

  /** Cancels or redrives up to `max` jobs, newest first. A dry run only returns the selected jobs. */
  async bulk(action: 'cancel' | 'redrive', { statuses, ...filter }: AdminFilter, max: number, isDryRun: boolean) {
    const body = { ...filter, status: statuses?.join(','), max, dry_run: isDryRun }
    return await this.#post(BulkPage, `jobs/${action}`, body)
  }

  async workers(): Promise<WorkerView[]> {
    return await this.#all(WorkerView, 'workers')
  }

  async pools(): Promise<PoolView[]> {
    return await this.#all(PoolView, 'pools')
  }

  async drain(id: string, isUndo: boolean): Promise<WorkerView> {
    return await this.#post(WorkerView, `workers/${encodeURIComponent(id)}/${isUndo ? 'undrain' : 'drain'}`)
  }

  async pause(target: 'model' | 'pool', id: string, isPaused: boolean): Promise<z.infer<typeof PauseView>> {
    return await this.#post(PauseView, `${target}s/${encodeURIComponent(id)}/${isPaused ? 'pause' : 'resume'}`)
  }

  /** Lists at most `max` webhook deliveries, newest first. Default for `status`: pending and failed. */
  deliveries(filter: { project?: string | undefined; status?: string | undefined }, max: number) {
    return this.#pages(DeliveryPage, 'deliveries', filter, max)
  }

  deadLetters(filter: { pool?: string | undefined }, max: number) {
    return this.#pages(DeadLetterPage, 'dead-letters', filter, max)
  }

  /** Requeues up to `max` dead letters. A dry run only returns the selected dead letters. */
  async redriveDeadLetters(
    filter: { pool?: string | undefined; after?: number | undefined },
    max: number,
    isDryRun: boolean,
  ) {
    return await this.#post(DeadLetterPage, 'dead-letters/redrive', { ...filter, max, dry_run: isDryRun })
  }

  async discardDeadLetter(id: string) {
    const path = `${ADMIN}/dead-letters/${encodeURIComponent(id)}`
    return await this.http.json(DiscardedView, path, { method: 'DELETE' })
  }

  /**
   * Returns the current problems. If there are none, the only finding has the status `ok`.
   *
   * @param of `fleet`: all processes. `machine`: the ingress that answers. `project`: the project of the key, for keys without the scope
   * `admin`
   */
  async findings(of: 'fleet' | 'machine' | 'project') {
    const { data } = await this.http.json(FindingPage, `${ADMIN}/findings${of === 'project' ? '' : `?of=${of}`}`)
    return data.map(({ remediation, details, model: _, ...finding }) => ({
      ...finding,
      ...(remediation !== null && { remediation }),
      ...(details.length > 0 && { details }),
    }))
  }

  async retryDelivery(id: string): Promise<DeliveryView> {
    return await this.#post(DeliveryView, `deliveries/${encodeURIComponent(id)}/retry`)
  }

  async *#pages<Item>(schema: z.ZodType<Page<Item>>, path: string, filter: Query, max: number): AsyncGenerator<Item> {
    let after: string | undefined
    for (let left = max; left > 0; ) {
      const query = queryOf({ ...filter, after, limit: Math.min(left, PAGE_MAX) })
      const page = await this.http.json(schema, `${ADMIN}/${path}?${query}`)
      yield* page.data
      left -= page.data.length
      if (!page.has_more || !page.last_id) return
      after = page.last_id
    }
  }

  async #post<T>(schema: z.ZodType<T>, path: string, body?: object): Promise<T> {
    return await this.http.json(schema, `${ADMIN}/${path}`, { method: 'POST', ...(body && { body }) })
  }

  async #all<T>(schema: z.ZodType<T>, path: string): Promise<T[]> {
    const page = await this.http.json(z.looseObject({ data: z.array(schema) }), `${ADMIN}/${path}`)
    return page.data as T[]
  }
}

/** Path of a job. The id of a batch differs from that of its job only in the prefix. */
export function jobPath(id: string): string {
  return `jobs/${encodeURIComponent(id.replace(/^(msg)?batch_/, 'job_'))}`
}

type Query = Readonly<Record<string, string | number | undefined>>

interface Page<Item> {
  readonly data: Item[]
  readonly has_more: boolean
  readonly last_id?: string | null | undefined
}

function queryOf(parameters: Query): string {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined) query.set(name, String(value))
  return query.toString()
}
