import { setTimeout as sleep } from 'node:timers/promises'
import { Connection } from './connection.ts'
import { IN_STEP, nowMicros, TokenReader } from './tokens.ts'

/** How long a stream of the mock upstream lasts; new streams are spread over it, so that they do not tick in step. */
const STREAM_MS = 1_310
/** Silence inside a stream that a reader sees as a stall. */
const STALL_MICROS = 100_000

/** What a caller of {@link Shape} `sparse` waits after each answer. */
const SPARSE_MS = 20

/**
 * What callers ask for: whole answers at once or 20 ms apart, or streams of 50 tokens a second, spread over time or in step:
 * begun at once, and every token of all of them in the same moment, as one model server sends them.
 */
export type Shape = 'whole' | 'sparse' | 'streams' | 'lockstep'

/** Whether callers of a shape read streams. */
export function isStreamed(shape: Shape): boolean {
  return shape === 'streams' || shape === 'lockstep'
}

/** Where the load goes. */
export interface Address {
  readonly url: URL
  readonly key: string
  /** Default: bench. */
  readonly model?: string
  /** What a call carries beside what every call does. */
  readonly headers?: Readonly<Record<string, string>>
}

/** What the callers saw. Times are in milliseconds, unsorted. */
export interface Seen {
  /** From the first request to the last answer. */
  seconds: number
  answers: number
  failures: number
  /** One example of what went wrong. */
  failure: string | undefined
  /** From the request to the whole answer. */
  readonly latencies: number[]
  /** From the request to the first token. */
  readonly firstTokens: number[]
  /** From the sending of each token by the upstream to its arrival. */
  readonly lags: number[]
  /** Silences of more than 100 ms inside a stream that the upstream did not make. */
  stalls: number
}

/** Callers in a closed loop: each sends its next request when it has its answer, on a connection it keeps. */
export class Callers {
  readonly #address: Address
  readonly #shape: Shape
  readonly #request: Buffer
  readonly #connections: Connection[]
  readonly #seen: Seen = {
    seconds: 0,
    answers: 0,
    failures: 0,
    failure: undefined,
    latencies: [],
    firstTokens: [],
    lags: [],
    stalls: 0,
  }

  private constructor(address: Address, shape: Shape, promptKib: number, connections: Connection[]) {
    this.#address = address
    this.#shape = shape
    this.#request = requestOf(address, shape, promptKib)
    this.#connections = connections
  }

  /** Opens the connections of so many callers. The caller of this closes them. @param promptKib Of each call; 0: a short one */
  static async open(address: Address, shape: Shape, count: number, promptKib = 0): Promise<Callers> {
    const connections = await Promise.all(Array.from({ length: count }, () => Connection.open(address.url)))
    return new Callers(address, shape, promptKib, connections)
  }

  /** Calls for so long, then waits for the answers that are under way. @param callsMax Calls of each caller */
  async run(seconds: number, callsMax = Number.POSITIVE_INFINITY): Promise<Seen> {
    const startedAt = nowMicros()
    const until = startedAt + seconds * 1_000_000
    await Promise.all(this.#connections.map((_, index) => this.#loop(index, until, callsMax)))
    this.#seen.seconds = (nowMicros() - startedAt) / 1_000_000
    return this.#seen
  }

  close(): void {
    for (const connection of this.#connections) connection.close()
  }

  async #loop(index: number, until: number, callsMax: number): Promise<void> {
    const isWhole = !isStreamed(this.#shape)
    if (this.#shape === 'streams') await sleep((index * STREAM_MS) / this.#connections.length)
    let calls = 0
    do {
      const connection = this.#connections[index]
      if (!connection) return
      try {
        const status = await (isWhole ? this.#whole(connection) : this.#stream(connection))
        if (status === 200) this.#seen.answers++
        else this.#fail(`status ${status}`)
      } catch (error) {
        this.#fail(String(error))
        this.#connections[index] = await Connection.open(this.#address.url)
      }
      if (this.#shape === 'sparse') await sleep(SPARSE_MS)
    } while (nowMicros() < until && ++calls < callsMax)
  }

  async #whole(connection: Connection): Promise<number> {
    const sentAt = nowMicros()
    const status = await connection.send(this.#request)
    if (status === 200) this.#seen.latencies.push((nowMicros() - sentAt) / 1_000)
    return status
  }

  async #stream(connection: Connection): Promise<number> {
    const tokens = new TokenReader()
    const sentAt = nowMicros()
    let last: { sentAt: number; seenAt: number } | undefined
    return await connection.send(this.#request, (bytes) => {
      const seenAt = nowMicros()
      for (const tokenSentAt of tokens.read(bytes)) {
        if (!last) this.#seen.firstTokens.push((seenAt - sentAt) / 1_000)
        else if (seenAt - last.seenAt > STALL_MICROS && tokenSentAt - last.sentAt <= STALL_MICROS) this.#seen.stalls++
        this.#seen.lags.push((seenAt - tokenSentAt) / 1_000)
        last = { sentAt: tokenSentAt, seenAt }
      }
    })
  }

  #fail(what: string): void {
    this.#seen.failures++
    this.#seen.failure ??= what
  }
}

const QUESTION = 'What is the capital of France, and what is it known for? Name three things.'

/** The bytes of the one request that is sent all the time: a short conversation, or one about a text of so many KiB. */
function requestOf({ url, key, model = 'bench', headers = {} }: Address, shape: Shape, promptKib: number): Buffer {
  const body = JSON.stringify({
    model,
    messages: [
      { role: 'system', content: 'You are a helpful assistant. Answer in full sentences, and keep it short.' },
      ...(promptKib > 0 ? [{ role: 'user', content: textOf(promptKib * 1_024) }] : []),
      { role: 'user', content: shape === 'lockstep' ? `${IN_STEP} ${QUESTION}` : QUESTION },
    ],
    temperature: 0.7,
    max_tokens: 128,
    stream: isStreamed(shape),
  })
  const head = [
    'POST /v1/chat/completions HTTP/1.1',
    `host: ${url.host}`,
    `authorization: Bearer ${key}`,
    'content-type: application/json',
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
    `content-length: ${Buffer.byteLength(body)}`,
  ]
  return Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`)
}

const SENTENCES = [
  'The city lies on both banks of the river, and its bridges are older than its walls.',
  'Whoever came by road paid a toll; those who came by boat paid "whatever the harbour asked".',
  'In 1889 a tower of iron was built for a fair, 330 metres high, and it was never taken down.',
  'Its museums hold some 380,000 works, of which a tenth can be seen on any one day.',
  'Bread, cheese and wine are sold at eleven markets, each on its own day of the week.',
]

/** Plain English of so many bytes in paragraphs, as a document that is asked about. */
function textOf(bytes: number): string {
  let text = ''
  for (let count = 0; text.length < bytes; count++) {
    text += `${SENTENCES[(count * 7 + Math.trunc(count / 5)) % SENTENCES.length]}${count % 6 === 5 ? '\n\n' : ' '}`
  }
  return text.slice(0, bytes)
}
