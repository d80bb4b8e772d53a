/** Runs researches in worker processes over a real broker and a real database, for tests that kill these processes. */
import { createHash } from 'node:crypto'
import { openPostgresDatabase, type TestDatabase } from '../jobs/stores.ts'
import { type Fleet, openFleet, type RoleProcess } from '../processes/fleet.ts'
import { freePort } from '../processes/free-ports.ts'
import { ECHO_MODEL, TEST_KEY, until } from '../stack.ts'
import { type Outside, questionOf, startOutside } from './outside.ts'

export const PATH = '/v1/deep-research'
/** Ids of two research models. PLAIN writes reports that consist of quotes. WRITTEN lets the chat model of {@link Outside} write the report. */
export const PLAIN = 'deep-research'
export const WRITTEN = 'deep-research-written'
/** Timeout of a job in ms. The value is high, because the machine may be busy. */
export const SETTLES_MS = 180_000
/** Slots per worker. The number is low, so that jobs that wait for their children must release their slot. */
const SLOTS = 1
const ENDED = new Set(['completed', 'failed', 'cancelled', 'expired'])

/** A research job in the form of the API; only the fields that tests read. */
export interface ResearchJob {
  readonly id: string
  readonly status: string
  readonly attempt: number
  readonly error: unknown
  /** Steps of the job; absent if there are none. */
  readonly steps?: readonly { readonly kind: string }[]
  readonly children?: readonly { readonly id: string; readonly status: string }[]
  readonly result: {
    readonly choices: readonly {
      readonly finish_reason: string
      readonly message: { readonly content: string; readonly annotations: readonly unknown[] }
    }[]
  } | null
}

/** A process of a research worker. `boot` is its boot id, with which the store marks the jobs that it runs. */
export interface Researcher extends RoleProcess {
  readonly boot: string
  readonly metricsUrl: string
}

/** A fleet with one ingress and several research workers. */
export class ResearchFleet implements AsyncDisposable {
  readonly outside: Outside
  readonly database: TestDatabase
  readonly researchers: Researcher[] = []
  readonly #stack: AsyncDisposableStack
  readonly #fleet: Fleet
  readonly #settings: Record<string, string>
  #ingress: RoleProcess | undefined
  #lastStart: Promise<unknown> = Promise.resolve()

  private constructor(
    stack: AsyncDisposableStack,
    fleet: Fleet,
    outside: Outside,
    database: TestDatabase & { url: string },
  ) {
    this.#stack = stack
    this.#fleet = fleet
    this.outside = outside
    this.database = database
    this.#settings = {
      DATABASE_URL: database.url,
      DATABASE_CONNECTIONS: '3',
      JOB_LEASE_MS: '3000',
      DRAIN_MS: '2000',
      RESEARCH_SLOTS: String(SLOTS),
      RESEARCH_ALLOW_PRIVATE: 'true',
      SEARXNG_URL: outside.url,
    }
  }

  static async open(kafka: string, postgres: string, workers: number): Promise<ResearchFleet> {
    await using stack = new AsyncDisposableStack()
    const outside = stack.use(await startOutside())
    const database = stack.use(await openPostgresDatabase(postgres))
    const research = (id: string, engine: object) => ({ id, pool: 'research', engine: { type: 'research', ...engine } })
    const writer = { ...ECHO_MODEL, id: 'writer-1', engine: { type: 'openai', base_url: `${outside.url}/v1` } }
    const fleet = stack.use(
      await openFleet(kafka, [ECHO_MODEL, writer, research(PLAIN, {}), research(WRITTEN, { writer: writer.id })]),
    )
    const opened = new ResearchFleet(stack.move(), fleet, outside, database)
    try {
      await opened.#start(workers)
      return opened
    } catch (error) {
      await opened[Symbol.asyncDispose]()
      throw error
    }
  }

  async #start(workers: number): Promise<void> {
    const [ingress] = await Promise.all([
      this.#fleet.start('ingress', this.#settings),
      this.#fleet.start('inference', this.#settings),
      this.#fleet.start('scheduler', this.#settings),
    ])
    this.#ingress = ingress
    for (let at = 0; at < workers; at++) await this.startResearcher()
  }

  /** Starts one more worker. Starts are sequential, so that the only new boot id in the store is that of the new worker. */
  async startResearcher(): Promise<void> {
    const started = this.#lastStart.then(async () => {
      const before = await this.#boots()
      const port = await freePort()
      const worker = await this.#fleet.start('research', { ...this.#settings, METRICS_PORT: String(port) })
      const boot = await until(async () => (await this.#boots()).find((each) => !before.includes(each)), {
        withinMs: SETTLES_MS,
      })
      this.researchers.push({ ...worker, boot, metricsUrl: `http://127.0.0.1:${port}/metrics` })
    })
    this.#lastStart = started
    await started
  }

  async #boots(): Promise<string[]> {
    const rows = await this.database.query(`SELECT boot FROM processes WHERE role = 'research'`)
    return rows.map(({ boot }) => String(boot))
  }

  /** Returns the worker that runs a job; undefined if none does. */
  async ownerOf(id: string): Promise<Researcher | undefined> {
    const [row] = await this.database.query(`SELECT owner FROM jobs WHERE id = '${id}' AND state = 'in_progress'`)
    return this.researchers.find(({ boot }) => boot === row?.owner)
  }

  /** Kills a worker with SIGKILL and starts a replacement. */
  async kill(worker: Researcher): Promise<void> {
    worker.kill('SIGKILL')
    this.researchers.splice(this.researchers.indexOf(worker), 1)
    await this.startResearcher()
  }

  /**
   * Stops a worker with SIGTERM and starts a replacement.
   *
   * @returns Exit code or signal
   */
  async stop(worker: Researcher): Promise<number | string> {
    this.researchers.splice(this.researchers.indexOf(worker), 1)
    await this.startResearcher()
    worker.kill('SIGTERM')
    return await worker.exited
  }

  /** Submits a background research and returns its job id. */
  async submit(tag: string, more: object = {}): Promise<string> {
    const messages = [{ role: 'user', content: questionOf(tag) }]
    const response = await this.post(PATH, { model: WRITTEN, messages, background: true, ...more })
    const { id } = (await response.json()) as ResearchJob
    return id
  }

  async post(path: string, body: unknown): Promise<Response> {
    if (!this.#ingress) throw new Error('no ingress')
    return await this.#fleet.post(this.#ingress, path, body)
  }

  async job(id: string, query = ''): Promise<ResearchJob> {
    const headers = { authorization: `Bearer ${TEST_KEY}` }
    return (await (await fetch(`${this.#ingress?.url}/v1/jobs/${id}${query}`, { headers })).json()) as ResearchJob
  }

  async ended(id: string): Promise<ResearchJob> {
    const look = async () => {
      const job = await this.job(id, '?wait=10')
      return ENDED.has(job.status) ? job : undefined
    }
    return await until(look, { withinMs: SETTLES_MS })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#lastStart.catch(() => {})
    await this.#stack.disposeAsync()
  }
}

/** Returns a hash of a report's text and citations, to compare reports. */
export function reportHash({ result }: ResearchJob): string {
  const message = result?.choices[0]?.message
  return createHash('sha256')
    .update(JSON.stringify([message?.content, message?.annotations]))
    .digest('hex')
}
