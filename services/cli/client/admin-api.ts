import { z } from 'zod'
import type { HttpClient } from './http.ts'
import { JobPage, JobView } from './job.ts'

const PAGE_MAX = 100
const ADMIN = '/v1/admin'

/** Which jobs of all projects. */
export interface AdminFilter {
  readonly project?: string | undefined
  readonly pool?: string | undefined
  readonly model?: string | undefined
  readonly statuses?: readonly string[] | undefined
  /** Older ones are left out; unix seconds. */
  readonly since?: number | undefined
}

const Entry = z.looseObject({
  id: z.string(),
  project: z.string().nullish(),
  model: z.string().nullish(),
  status: z.string(),
  new_id: z.string().nullish(),
  error: z.looseObject({ message: z.string() }).nullish(),
})
const Moved = z.looseObject({ data: z.array(Entry), has_more: z.boolean() })
/** What became of one of many jobs. */
export type MovedJob = z.infer<typeof Entry>

/** A process as the service hears it. */
export const WorkerView = z.looseObject({
  id: z.string(),
  role: z.string(),
  version: z.string(),
  slots: z.number(),
  capacity: z.number().nullish().describe('Absent in answers of older services'),
  running: z.number(),
  draining: z.boolean(),
  silent: z.boolean().nullish(),
  aside: z.number().nullish(),
  host: z.string().nullish(),
  pid: z.number().nullish(),
  last_seen_at: z.number().nullish(),
  models: z.array(z.string()).nullish(),
  bounds: z.array(z.looseObject({ model: z.string(), capacity: z.number() })).nullish(),
})
export type WorkerView = z.infer<typeof WorkerView>

const FindingPage = z.looseObject({
  data: z.array(
    z.looseObject({
      check: z.string(),
      status: z.enum(['ok', 'skip', 'warn', 'fail']),
      message: z.string(),
      fix: z.string().nullable(),
      details: z.array(z.string()),
    }),
  ),
})

/** A pool, and what waits in it. */
export const PoolView = z.looseObject({
  id: z.string(),
  workers: z.number(),
  draining: z.number(),
  slots: z.number(),
  free: z.number(),
  running: z.number(),
  attached: z.looseObject({ queued: z.number(), running: z.number() }),
  durable: z
    .looseObject({ queued: z.looseObject({ normal: z.number(), low: z.number() }), scheduled: z.number() })
    .nullish(),
  paused: z.array(z.looseObject({ what: z.string(), id: z.string() })),
  oldest_queued_at: z.number().nullish(),
})
export type PoolView = z.infer<typeof PoolView>

/** A webhook message. */
export const DeliveryView = z.looseObject({
  id: z.string(),
  project: z.string(),
  job_id: z.string(),
  type: z.string(),
  host: z.string().nullish(),
  status: z.string(),
  attempts: z.number(),
  response_status: z.number().nullish(),
  error: z.string().nullish(),
  next_at: z.number().nullish(),
})
export type DeliveryView = z.infer<typeof DeliveryView>

/** A record that no worker could run. */
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
const PauseView = z.looseObject({ what: z.string(), id: z.string(), paused: z.boolean(), kept: z.boolean().nullish() })

/** The operator's door (docs/protocol.md, Operators), as the commands need it. @throws CommandError for every refusal */
export class AdminApi {
  readonly http: HttpClient

  constructor(http: HttpClient) {
    this.http = http
  }

  async get(id: string): Promise<JobView> {
    return await this.http.json(JobView, `${ADMIN}/jobs/${encodeURIComponent(id)}`)
  }

  async cancel(id: string): Promise<JobView> {
    return await this.#post(JobView, `jobs/${encodeURIComponent(id)}/cancel`)
  }

  async redrive(id: string): Promise<JobView> {
    return await this.#post(JobView, `jobs/${encodeURIComponent(id)}/redrive`)
  }

  /** Jobs of all projects, newest first, at most `max`, page by page as they are taken. */
  async *list({ statuses, since, ...rest }: AdminFilter, max: number): AsyncGenerator<JobView> {
    yield* this.#pages(JobPage, 'jobs', { ...rest, status: statuses?.join(','), since }, max)
  }

  /** Cancels or runs again many jobs at once, newest first. @param isDry Only says which these would be */
  async many(what: 'cancel' | 'redrive', { statuses, ...filter }: AdminFilter, max: number, isDry: boolean) {
    const body = { ...filter, status: statuses?.join(','), max, dry_run: isDry }
    return await this.#post(Moved, `jobs/${what}`, body)
  }

  async workers(): Promise<WorkerView[]> {
    return await this.#all(WorkerView, 'workers')
  }

  async pools(): Promise<PoolView[]> {
    return await this.#all(PoolView, 'pools')
  }

  /** Tells a worker to take nothing more, or to take jobs again. Gives it as it is then. */
  async drain(boot: string, isUndone: boolean): Promise<WorkerView> {
    return await this.#post(WorkerView, `workers/${encodeURIComponent(boot)}/${isUndone ? 'undrain' : 'drain'}`)
  }

  async pause(what: 'model' | 'pool', id: string, isPaused: boolean): Promise<z.infer<typeof PauseView>> {
    return await this.#post(PauseView, `${what}s/${encodeURIComponent(id)}/${isPaused ? 'pause' : 'resume'}`)
  }

  /** Webhook messages that nobody received, newest first, at most `max`. */
  deliveries(filter: { project?: string | undefined; status?: string | undefined }, max: number) {
    return this.#pages(DeliveryPage, 'deliveries', filter, max)
  }

  /** Records that no worker could run, newest first, at most `max`. */
  deadLetters(filter: { pool?: string | undefined }, max: number) {
    return this.#pages(DeadLetterPage, 'dead-letters', filter, max)
  }

  /** Puts such records back into their queues. @param isDry Only says which these would be */
  async redriveDead(asked: { pool?: string | undefined; after?: number | undefined }, max: number, isDry: boolean) {
    return await this.#post(DeadLetterPage, 'dead-letters/redrive', { ...asked, max, dry_run: isDry })
  }

  /** Has such a record shown no more. */
  async discardDead(id: string) {
    const path = `${ADMIN}/dead-letters/${encodeURIComponent(id)}`
    return await this.http.json(DiscardedView, path, { method: 'DELETE' })
  }

  /** What is wrong with the fleet now, or one finding that nothing is. */
  async fleetFindings() {
    const { data } = await this.http.json(FindingPage, `${ADMIN}/findings?of=fleet`)
    return data.map(({ fix, details, ...finding }) => ({
      ...finding,
      ...(fix !== null && { fix }),
      ...(details.length > 0 && { details }),
    }))
  }

  async retryDelivery(id: string): Promise<DeliveryView> {
    return await this.#post(DeliveryView, `deliveries/${encodeURIComponent(id)}/retry`)
  }

  /** What a list has, at most `max`, page by page as they are taken. */
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

type Query = Readonly<Record<string, string | number | undefined>>

interface Page<Item> {
  readonly data: Item[]
  readonly has_more: boolean
  readonly last_id?: string | null | undefined
}

function queryOf(given: Query): string {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(given)) if (value !== undefined) query.set(name, String(value))
  return query.toString()
}
