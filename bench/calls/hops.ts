/**
 * The least that a queue in Kafka can do: the bare proxy cut in two, a server that takes calls and a worker that makes them, with
 * the broker that Sluice uses between the two. A call is a record of a queue, what comes of it records of a channel. No formats,
 * no turns, no retries, no limits, no log.
 *
 * Arguments: `server` or `worker`, the brokers, a prefix for the topics; then the API key, or the upstream's URL. The server
 * prints its address on standard output.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type Dispatcher, Pool } from 'undici'
import type { Broker, Topic } from '#shared/broker/broker.ts'
import { openKafkaBroker } from '#shared/broker/kafka/kafka.ts'
import { newId } from '#shared/id.ts'
import { checked, refuse } from './checks.ts'

const HOUR_MS = 3_600_000
const CONNECTIONS_MAX = 512
const ID_LENGTH = 16
const CALLS = 'calls'
const ANSWERS = 'answers'
const TOPICS: readonly Topic[] = [
  { name: CALLS, partitions: 1, retentionMs: HOUR_MS, kind: 'queue' },
  { name: ANSWERS, partitions: 1, retentionMs: HOUR_MS, kind: 'channel' },
]
/** What a record of an answer is, by its first byte. */
const KIND = { head: 0, data: 1, end: 2, error: 3 } as const

const [part = '', brokers = '', prefix = '', own = ''] = process.argv.slice(2)

async function serve(broker: Broker, key: string): Promise<void> {
  const calls = new Map<string, ServerResponse>()
  await broker.receive(ANSWERS, [0], (record) => {
    const res = calls.get(record.key)
    if (!res) return
    const value = record.value.subarray(1)
    const kind = record.value[0]
    if (kind === KIND.head) return void res.writeHead(200, { 'content-type': value.toString() })
    if (kind === KIND.data) return void res.write(value)
    calls.delete(record.key)
    if (kind === KIND.end) res.end()
    else refuse(res, 502, value.toString())
  })
  const take = checked(key, (body, _, res) => {
    const id = newId('', ID_LENGTH)
    calls.set(id, res)
    broker.submit(CALLS, Buffer.concat([Buffer.from(id), body])).catch((error: Error) => {
      calls.delete(id)
      refuse(res, 503, error.message)
    })
  })
  const server = createServer({ noDelay: true, keepAliveTimeout: 75_000 }, take)
  server.listen(0, '127.0.0.1', () => {
    process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
  })
}

async function work(broker: Broker, upstream: string): Promise<void> {
  const pool = new Pool(upstream, { connections: CONNECTIONS_MAX, pipelining: 1 })
  const queue = await broker.openQueue(CALLS)
  const headers = { 'content-type': 'application/json', accept: '*/*' }
  for (const { signal } = new AbortController(); ; ) {
    for (const { value, acknowledge } of await queue.take(CONNECTIONS_MAX, signal)) {
      acknowledge()
      const relay = new Relay(broker, value.toString('latin1', 0, ID_LENGTH))
      pool.dispatch({ method: 'POST', path: '/v1/chat/completions', headers, body: value.subarray(ID_LENGTH) }, relay)
    }
  }
}

/** Sends an answer from undici on as it comes. */
class Relay implements Dispatcher.DispatchHandler {
  readonly #broker: Broker
  readonly #id: string

  constructor(broker: Broker, id: string) {
    this.#broker = broker
    this.#id = id
  }

  // Undici knows handlers of this kind by it.
  onRequestStart(): void {}

  onResponseStart(_: Dispatcher.DispatchController, __: number, headers: IncomingMessage['headers']): void {
    this.#send(KIND.head, Buffer.from(headers['content-type'] ?? ''))
  }

  onResponseData(_: Dispatcher.DispatchController, chunk: Buffer): void {
    this.#send(KIND.data, chunk)
  }

  onResponseEnd(): void {
    this.#send(KIND.end)
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    this.#send(KIND.error, Buffer.from(error.message))
  }

  #send(kind: number, value?: Buffer): void {
    // What is not sent ends the run: a call is without an answer.
    void this.#broker.send(ANSWERS, 0, this.#id, Buffer.concat([Buffer.of(kind), ...(value ? [value] : [])]))
  }
}

const broker = await openKafkaBroker({
  brokers: brokers.split(','),
  client: 'share',
  prefix,
  topics: TOPICS,
  clientId: `bench-hops-${part}`,
  onProblem: (message) => void process.stderr.write(`${message}\n`),
})
await (part === 'server' ? serve(broker, own) : work(broker, own))
// A profile is written at a process's own end (`--cpu-prof`).
process.once('SIGTERM', () => process.exit())
