import { setTimeout as sleep } from 'node:timers/promises'
import { type Address, Connection, encodeRequest } from './connection.ts'
import { LOCKSTEP, nowMicros, TokenReader } from './tokens.ts'

export const STREAM_MS = 1_310
/** Minimum time without bytes inside a stream that counts as a stall, in microseconds. */
const STALL_MICROS = 100_000

/**
 * Load on a chat endpoint. `whole`: answers without streaming. `streams`: 50 tokens per second each, with starts spread over time.
 * `lockstep`: streams that start together and receive each token at the same moment, as from one model server.
 */
export interface Load {
  readonly shape: 'whole' | 'streams' | 'lockstep'
  readonly callers: number
  /** Length in KiB of a document in each prompt. If undefined, the prompt is only a question. */
  readonly promptKib?: number
  readonly headers?: Readonly<Record<string, string>>
}

export interface Results {
  /** Seconds from the first request to the last answer. */
  seconds: number
  answers: number
  failures: number
  failure: string | undefined
  readonly latencies: number[]
  /** Times from the request to the first token, one per stream, in microseconds. */
  readonly firstTokens: number[]
  /** Times from the moment when the upstream sends a token to its arrival at the caller, one per token, in microseconds. */
  readonly lags: number[]
  /** Number of stalls: pauses of more than 100 ms inside a stream, without the pauses that the upstream itself caused. */
  stalls: number
}

/** Callers in a closed loop. Each caller has one connection and sends its next request after its last answer has arrived. */
export class Callers implements Disposable {
  readonly #url: URL
  readonly #requests: readonly Buffer[]
  readonly #connections: Connection[]
  readonly #results: Results = {
    ...{ seconds: 0, answers: 0, failures: 0, failure: undefined, stalls: 0 },
    ...{ latencies: [], firstTokens: [], lags: [] },
  }
  #next = 0

  private constructor(url: URL, requests: readonly Buffer[], connections: Connection[]) {
    this.#url = url
    this.#requests = requests
    this.#connections = connections
  }

  /** Opens one connection per caller. @param requests Requests that the callers send in rotation */
  static async open(url: URL, requests: readonly Buffer[], count: number): Promise<Callers> {
    const connections = await Promise.all(Array.from({ length: count }, () => Connection.open(url)))
    return new Callers(url, requests, connections)
  }

  /**
   * Sends requests for `seconds`, then waits for the last answers. @param spreadMs Time over which the starts of the
   * callers are distributed
   */
  async run(seconds: number, spreadMs = 0): Promise<Results> {
    const startedAt = nowMicros()
    const until = startedAt + seconds * 1_000_000
    const count = this.#connections.length
    await Promise.all(this.#connections.map((_, index) => this.#loop(index, until, (index * spreadMs) / count)))
    this.#results.seconds = (nowMicros() - startedAt) / 1_000_000
    return this.#results
  }

  [Symbol.dispose](): void {
    for (const connection of this.#connections) connection.close()
  }

  async #loop(index: number, until: number, delayMs: number): Promise<void> {
    if (delayMs > 0) await sleep(delayMs)
    do {
      try {
        const status = await this.#call(this.#connections[index] as Connection)
        if (status === 200) this.#results.answers++
        else this.#fail(`status ${status}`)
      } catch (error) {
        this.#fail(String(error))
        this.#connections[index] = await Connection.open(this.#url)
      }
    } while (nowMicros() < until)
  }

  async #call(connection: Connection): Promise<number> {
    const { latencies, firstTokens, lags } = this.#results
    const tokens = new TokenReader()
    const request = this.#requests[this.#next++ % this.#requests.length] as Buffer
    const sentAt = nowMicros()
    let last: { sentAt: number; arrivedAt: number } | undefined
    const status = await connection.send(request, (bytes) => {
      const arrivedAt = nowMicros()
      for (const tokenSentAt of tokens.read(bytes)) {
        if (!last) firstTokens.push((arrivedAt - sentAt) / 1_000)
        else if (arrivedAt - last.arrivedAt > STALL_MICROS && tokenSentAt - last.sentAt <= STALL_MICROS)
          this.#results.stalls++
        lags.push((arrivedAt - tokenSentAt) / 1_000)
        last = { sentAt: tokenSentAt, arrivedAt }
      }
    })
    if (status === 200) latencies.push((nowMicros() - sentAt) / 1_000)
    return status
  }

  #fail(problem: string): void {
    this.#results.failures++
    this.#results.failure ??= problem
  }
}

export async function runLoad(address: Address, load: Load, seconds: number, model = 'bench'): Promise<Results> {
  using callers = await openChat(address, load, model)
  return await callers.run(seconds, load.shape === 'streams' ? STREAM_MS : 0)
}

export async function openChat(address: Address, load: Load, model = 'bench'): Promise<Callers> {
  return await Callers.open(address.url, [chatRequest(address, load, model)], load.callers)
}

const DOCUMENT = 'In 1889 a tower of iron was built for a fair, 330 metres high, and "never taken down".\n'
const QUESTION = 'What is the capital of France, and what is it known for? Name three things.'

function chatRequest(address: Address, { shape, promptKib = 0, headers = {} }: Load, model: string): Buffer {
  const body = {
    model,
    messages: [
      { role: 'system', content: 'You are a helpful assistant. Answer in full sentences, and keep it short.' },
      ...(promptKib > 0
        ? [{ role: 'user', content: DOCUMENT.repeat(promptKib * 16).slice(0, promptKib * 1_024) }]
        : []),
      { role: 'user', content: shape === 'lockstep' ? `${LOCKSTEP} ${QUESTION}` : QUESTION },
    ],
    temperature: 0.7,
    max_tokens: 128,
    stream: shape !== 'whole',
  }
  return encodeRequest(address, '/v1/chat/completions', body, { headers })
}
