/** Helper for tests of durable jobs over HTTP: starts a service with one or more ingresses, and sends the requests of a client. */
import { createHash } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect } from 'vitest'
import { stringify } from 'yaml'
import { startInference } from '#services/inference/inference.ts'
import { startIngress } from '#services/ingress/ingress.ts'
import { startScheduler } from '#services/scheduler/scheduler.ts'
import { parseConfig } from '#shared/config/config.ts'
import { ownerOf } from '#shared/jobs/owner.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import { openLog } from '#shared/log/log.ts'
import { openPorts, portsService } from '#shared/ports.ts'
import { stopAll } from '#shared/process/lifecycle.ts'
import type { Store } from '#shared/store/store.ts'
import { ECHO_MODEL, TEST_KEY, until } from '../stack.ts'
import { openPostgresDatabase } from './stores.ts'

export const CHAT = '/v1/chat/completions'
export const MESSAGES = '/v1/messages'
export const COUNT = '/v1/messages/count_tokens'

/**
 * API keys in addition to the test key: one of another tenant, and one that may only call chat endpoints. Only services of {@link startService}
 * accept them.
 */
export const OTHER_KEY = 'sk-test-other-0123456789'
export const CHAT_KEY = 'sk-test-chat-0123456789'

/** A job in the form of the API; only the fields that tests read. */
export interface WireJob {
  readonly id: string
  readonly status: string
  readonly attempt: number
  readonly result: Record<string, unknown> | null
  readonly error: Record<string, unknown> | null
  readonly last_sequence_number: number
  readonly [field: string]: unknown
}

/** An event in the form of the API; only the fields that tests read. */
export interface WireEvent {
  readonly type: string
  readonly sequence_number: number
  readonly job_id: string
  readonly chunk?: { choices?: { delta: { content?: string } }[] }
  readonly job?: WireJob
  readonly [field: string]: unknown
}

export interface ServiceOptions {
  readonly kafka?: string | undefined
  readonly models?: readonly object[]
  readonly settings?: Readonly<Record<string, string>>
  /** Number of ingresses over the same broker and store; default: one. */
  readonly replicas?: number
  /** Data directory that the caller creates and deletes. Default: a new directory, which is deleted at the end. */
  readonly dataDir?: string
  /**
   * False: the ingress and the workers run as separate roles. Then the service has a store only if DATABASE_URL is set. Default: one process with
   * all roles and an embedded store.
   */
  readonly isWhole?: boolean
  /** Replaces the store of the service by a wrapper, for example one that simulates an outage. */
  readonly wrapStore?: (store: Store) => Store
}

export type CallInit = RequestInit & { readonly replica?: number; readonly key?: string }

/** A running service. Dispose it. */
export interface Service extends AsyncDisposable {
  /** Base URLs of its ingresses. */
  readonly urls: readonly string[]
  call(method: string, path: string, body?: unknown, init?: CallInit): Promise<Response>
  post(path: string, body: unknown, init?: CallInit): Promise<Response>
  get(path: string, init?: CallInit): Promise<Response>
  /** Submits a job with `POST /v1/jobs`, which must be accepted. */
  submit(body: object, more?: object, init?: CallInit): Promise<WireJob>
  job(id: string): Promise<WireJob>
  /** Waits until a job has ended. */
  ended(id: string): Promise<WireJob>
  /** Stops all roles. Returns true if every role ended before its timeout. */
  stop(): Promise<boolean>
}

/** Starts every role in this process, with the given number of ingresses. */
export async function startService(options: ServiceOptions = {}): Promise<Service> {
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), 'sluice-jobs-')))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models: options.models ?? [ECHO_MODEL] }))
  await writeFile(join(dataDir, 'keys.json'), JSON.stringify({ keys: KEYS }))
  const config = parseConfig({
    PORT: '0',
    DATA_DIR: dataDir,
    MODELS_FILE: modelsFile,
    SLUICE_API_KEY: TEST_KEY,
    LOG_LEVEL: process.env.TEST_LOG ?? 'silent',
    KAFKA_BROKERS: options.kafka,
    KAFKA_PREFIX: options.kafka && `${newId('t', 8)}.`,
    ...options.settings,
  })
  const log = openLog(config.logLevel, 'test')
  const opened = await openPorts(config, log, 'test', options.isWhole ?? true, (error) => {
    throw error
  })
  const store = opened.store && (options.wrapStore ?? ((same) => same))(ownerOf(opened.store))
  const ports = { ...opened, store }
  const services = [portsService(opened), await startInference(ports)]
  if (store) services.push(await startScheduler(ports))
  const urls: string[] = []
  for (let i = 0; i < (options.replicas ?? 1); i++) {
    const ingress = await startIngress(ports)
    services.push(ingress)
    urls.push(`http://127.0.0.1:${ingress.port}`)
  }
  let stopped: Promise<boolean> | undefined
  const stop = () => {
    stopped ??= stopAll(services, 1_000, log)
    return stopped
  }
  return {
    urls,
    ...clientOf(urls),
    stop,
    async [Symbol.asyncDispose]() {
      await stop()
      if (options.dataDir === undefined) await rm(dataDir, { recursive: true, force: true })
    },
  }
}

const keyOf = (id: string, secret: string, more: object = {}) => ({
  id,
  hash: createHash('sha256').update(secret).digest('hex'),
  hint: 'sk-...6789',
  created_at: 1,
  ...more,
})
const KEYS = [keyOf('key_other', OTHER_KEY), keyOf('key_chat', CHAT_KEY, { endpoints: [CHAT] })]

function clientOf(urls: readonly string[]) {
  const call = (method: string, path: string, body?: unknown, init: CallInit = {}) => {
    const { replica = 0, key = TEST_KEY, ...rest } = init
    const headers = new Headers(rest.headers)
    headers.set('authorization', `Bearer ${key}`)
    if (body !== undefined) headers.set('content-type', 'application/json')
    const sent = { ...rest, method, headers, ...(body !== undefined && { body: JSON.stringify(body) }) }
    return fetch(`${urls[replica]}${path}`, sent)
  }
  const job = async (id: string) => jobOf(await call('GET', `/v1/jobs/${id}`))
  return {
    call,
    job,
    post: (path: string, body: unknown, init?: CallInit) => call('POST', path, body, init),
    get: (path: string, init?: CallInit) => call('GET', path, undefined, init),
    async submit(body: object, more: object = {}, init?: CallInit) {
      const response = await call('POST', '/v1/jobs', { endpoint: CHAT, body, ...more }, init)
      expect(response.status).toBe(202)
      return jobOf(response)
    },
    async ended(id: string) {
      return await until(
        async () => {
          const found = await jobOf(await call('GET', `/v1/jobs/${id}?wait=20`))
          return ['queued', 'in_progress', 'cancelling'].includes(found.status) ? undefined : found
        },
        { withinMs: 25_000 },
      )
    },
  }
}

/** Runs the tests twice: with the embedded broker and store and, if available, with a real Kafka and Postgres. */
export function describeJobs(
  title: string,
  found: { kafka: string | null; postgres: string | null },
  tests: (service: Service, start: (options: ServiceOptions) => Promise<Service>) => void,
): void {
  describe(`${title}, embedded`, () => run(startService))
  describe.skipIf(!found.kafka || !found.postgres)(`${title}, Kafka and Postgres`, () => {
    run(async (options) => {
      const database = await openPostgresDatabase(found.postgres ?? '')
      const settings = { DATABASE_URL: database.url, ...options.settings }
      const service = await startService({ kafka: found.kafka ?? undefined, ...options, settings })
      return {
        ...service,
        async [Symbol.asyncDispose]() {
          await service[Symbol.asyncDispose]()
          await database[Symbol.asyncDispose]()
        },
      }
    })
  })

  /** Starts one service that most tests share. Each test must end its jobs, and must ignore the jobs of other tests. */
  function run(start: (options: ServiceOptions) => Promise<Service>): void {
    const shared = {} as Service
    beforeAll(async () => {
      Object.assign(shared, await start({}))
    })
    afterAll(() => shared[Symbol.asyncDispose]())
    tests(shared, start)
  }
}

/** Returns a switch that simulates an outage of the store. While `isDown` is true, each call of the wrapped store is refused and counted. */
export function switchedStore() {
  const outage = {
    isDown: false,
    refused: 0,
    wrap: (store: Store): Store =>
      new Proxy(store, {
        get(target, name) {
          if (name === 'isReachable') return !outage.isDown
          const value = Reflect.get(target, name) as unknown
          if (typeof value !== 'function' || name === 'close') return value
          return (...given: unknown[]) => {
            if (!outage.isDown) return value.apply(target, given)
            outage.refused++
            return Promise.reject(new ServiceError('overloaded', 'The store cannot be reached.'))
          }
        },
      }),
  }
  return outage
}

/** A chat request whose prompt is `content`. */
export function say(content: string, more: object = {}) {
  return { model: 'echo-1', messages: [{ role: 'user', content }], ...more }
}

export async function jobOf(response: Response): Promise<WireJob> {
  return (await response.json()) as WireJob
}

/** The inner object of an error in the OpenAI format. */
export async function errorOf(response: Response): Promise<Record<string, unknown>> {
  return ((await response.json()) as { error: Record<string, unknown> }).error
}

/** Reads an event stream until its end, or until `enough` returns true and the client disconnects. */
export async function readEvents(
  response: Response,
  enough: (events: readonly WireEvent[]) => boolean = () => false,
): Promise<WireEvent[]> {
  const events: WireEvent[] = []
  if (!response.body) return events
  let rest = ''
  const decoder = new TextDecoder()
  for await (const bytes of response.body as AsyncIterable<Uint8Array>) {
    const frames = (rest + decoder.decode(bytes, { stream: true })).split('\n\n')
    rest = frames.pop() ?? ''
    for (const frame of frames) {
      const event = eventOf(frame)
      if (event) events.push(event)
      if (event && enough(events)) return events
    }
  }
  return events
}

/** Parses an event. The `id` and `event` of the frame must equal the number and type in the data. Undefined for a frame without data. */
function eventOf(frame: string): WireEvent | undefined {
  const lines = new Map(frame.split('\n').map((line) => line.split(/: (.*)/) as [string, string]))
  const data = lines.get('data')
  if (data === undefined) return undefined
  const event = JSON.parse(data) as WireEvent
  expect(lines.get('event')).toBe(event.type)
  expect(lines.get('id')).toBe(String(event.sequence_number))
  return event
}

/** Events without the queue position, which is computed when an event is sent (docs/internals/protocol.md, The job object). */
export function withoutPosition<Event extends { readonly type: string; readonly [field: string]: unknown }>(
  events: readonly Event[],
) {
  return events.map((event) => {
    if (event.type !== 'job.queued') return event
    const { position, ...queue } = event.queue as { position: unknown; pool: unknown }
    expect(position === null || Number.isInteger(position)).toBe(true)
    return { ...event, queue }
  })
}

/** The concatenated text of the chat chunks in events. */
export function textOf(events: readonly Pick<WireEvent, 'chunk'>[]): string {
  return events.map(({ chunk }) => chunk?.choices?.[0]?.delta.content ?? '').join('')
}

/** Contents of the `data:` lines of a stream in the OpenAI format, without the end mark. */
export function chunksOf(sse: string): Record<string, unknown>[] {
  const lines = sse.split('\n').filter((line) => line.startsWith('data: {'))
  return lines.map((line) => JSON.parse(line.slice('data: '.length)) as Record<string, unknown>)
}

/** A body without the values that differ between two calls. */
export function withoutIds(body: unknown): unknown {
  const text = JSON.stringify(body, (key, value) => (['id', 'created', 'request_id'].includes(key) ? undefined : value))
  return JSON.parse(text) as unknown
}
