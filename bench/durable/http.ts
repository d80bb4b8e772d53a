import { setTimeout as sleep } from 'node:timers/promises'
import { Connection } from '../calls/connection.ts'
import { type JobSystem, PAYLOAD } from './system.ts'

/** How often the service is asked whether anything is left to do: seldom, for it costs it a scan of its jobs. */
const CHECK_MS = 100

/** Longest until every process has heard that work is paused. */
const HEARD_MS = 250

/**
 * Sluice through its API: `Prefer: respond-async`, then `GET /v1/jobs/{id}?wait=`. Its workers are processes of their own, as many
 * jobs at once as they have slots; who operates it pauses them.
 */
export async function openHttp(url: URL, key: string, operatorKey: string): Promise<JobSystem> {
  const client = new JobsClient(url, key)
  const operator = new JobsClient(url, operatorKey)
  const order = async (what: 'pause' | 'resume') => {
    await operator.call('POST', `/v1/admin/pools/inference/${what}`, {}, 200)
    if (what === 'pause') await sleep(HEARD_MS)
  }
  await untilKnown(operator)
  await order('pause')
  return {
    submit: async () => {
      const job = await client.call('POST', '/v1/chat/completions', PAYLOAD, 202)
      return String(job.id)
    },
    completed: async (id) => {
      const { status } = await client.call('GET', `/v1/jobs/${id}?wait=20`, undefined, 200)
      if (status !== 'completed') throw new Error(`a job is ${status}`)
    },
    startWork: () => order('resume'),
    drained: async () => {
      const path = '/v1/jobs?status=queued,in_progress&limit=1'
      for (;;) {
        const { data } = await client.call('GET', path, undefined, 200)
        if (Array.isArray(data) && data.length === 0) return
        await sleep(CHECK_MS)
      }
    },
    stopWork: () => order('pause'),
    close: async () => {
      client.close()
      operator.close()
    },
  }
}

/** A service that runs notices a new key within about a second. @throws Error when it does not within ten */
async function untilKnown(operator: JobsClient): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      await operator.call('GET', '/v1/admin/pauses', undefined, 200)
      return
    } catch (error) {
      if (tries === 100) throw error
      await sleep(CHECK_MS)
    }
  }
}

/** Calls on connections that are kept, one call at a time on each. */
class JobsClient {
  readonly #url: URL
  readonly #key: string
  readonly #free: Connection[] = []

  constructor(url: URL, key: string) {
    this.#url = url
    this.#key = key
  }

  #kept(): Connection | undefined {
    for (let one = this.#free.pop(); one; one = this.#free.pop()) if (one.isOpen) return one
    return undefined
  }

  /** @returns The body of the answer. @throws Error when its status is not that */
  async call(method: string, path: string, body: unknown, expected: number): Promise<Record<string, unknown>> {
    const connection = this.#kept() ?? (await Connection.open(this.#url))
    const parts: Buffer[] = []
    const status = await connection.send(this.#requestOf(method, path, body), (bytes) => parts.push(Buffer.from(bytes)))
    this.#free.push(connection)
    const text = Buffer.concat(parts).toString()
    if (status !== expected) throw new Error(`${method} ${path} gave ${status}: ${text.slice(0, 200)}`)
    return JSON.parse(text)
  }

  close(): void {
    for (const connection of this.#free.splice(0)) connection.close()
  }

  #requestOf(method: string, path: string, body: unknown): Buffer {
    const text = body === undefined ? '' : JSON.stringify(body)
    const head = [`${method} ${path} HTTP/1.1`, `host: ${this.#url.host}`, `authorization: Bearer ${this.#key}`]
    if (body !== undefined) {
      head.push('prefer: respond-async', 'content-type: application/json', `content-length: ${Buffer.byteLength(text)}`)
    }
    return Buffer.from(`${head.join('\r\n')}\r\n\r\n${text}`)
  }
}
