import { setTimeout as sleep } from 'node:timers/promises'
import { type Address, Connection, encodeRequest } from '../load/connection.ts'
import { untilAnswered } from '../machine/sluice.ts'
import { type JobSystem, PAYLOAD } from './system.ts'

/**
 * Interval of polls for the end of all jobs, in milliseconds. Each poll makes the service scan its jobs, so a shorter interval would affect the
 * result.
 */
const POLL_INTERVAL_MS = 100
const PAUSE_MS = 250

/** Sluice through its API, with workers in other processes. The functions `startWork` and `stopWork` resume and pause the pool of these workers. */
export async function openHttp(address: Address, operatorKey: string): Promise<JobSystem> {
  const client = new JobsClient(address)
  const operator = new JobsClient({ ...address, key: operatorKey })
  const setPaused = async (action: 'pause' | 'resume') => {
    await operator.call('POST', `/v1/admin/pools/inference/${action}`, {}, 200)
    if (action === 'pause') await sleep(PAUSE_MS)
  }
  // A new key is accepted only after about a second, so the first calls may fail. The call is therefore retried.
  await untilAnswered(() => operator.call('GET', '/v1/admin/pauses', undefined, 200).then(() => undefined, String))
  await setPaused('pause')
  return {
    async submit() {
      const job = await client.call('POST', '/v1/chat/completions', PAYLOAD, 202)
      return String(job.id)
    },
    async completed(id) {
      const { status } = await client.call('GET', `/v1/jobs/${id}?wait=20`, undefined, 200)
      if (status !== 'completed') throw new Error(`a job is ${status}`)
    },
    startWork: () => setPaused('resume'),
    async drained() {
      const path = '/v1/jobs?status=queued,in_progress&limit=1'
      for (;;) {
        const { data } = await client.call('GET', path, undefined, 200)
        if (Array.isArray(data) && data.length === 0) return
        await sleep(POLL_INTERVAL_MS)
      }
    },
    stopWork: () => setPaused('pause'),
    async close() {
      client.close()
      operator.close()
    },
  }
}

class JobsClient {
  readonly #address: Address
  readonly #idle: Connection[] = []

  constructor(address: Address) {
    this.#address = address
  }

  /** @throws Error if the status of the response is not `expected` */
  async call(method: string, path: string, body: unknown, expected: number): Promise<Record<string, unknown>> {
    const connection = this.#takeIdle() ?? (await Connection.open(this.#address.url))
    const headers = { prefer: 'respond-async' }
    const request = encodeRequest(this.#address, path, body, { method, ...(body !== undefined && { headers }) })
    const parts: Buffer[] = []
    const status = await connection.send(request, (bytes) => parts.push(Buffer.from(bytes)))
    this.#idle.push(connection)
    const text = Buffer.concat(parts).toString()
    if (status !== expected) throw new Error(`${method} ${path} returned ${status}: ${text.slice(0, 200)}`)
    return JSON.parse(text)
  }

  close(): void {
    for (const connection of this.#idle.splice(0)) connection.close()
  }

  #takeIdle(): Connection | undefined {
    for (let one = this.#idle.pop(); one; one = this.#idle.pop()) if (one.isOpen) return one
    return undefined
  }
}
