import { createParser, type EventSourceMessage } from 'eventsource-parser'
import { Agent, request } from 'undici'
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'
import { TEST_KEY } from '../../support/stack.ts'
import { type Clients, endOf, ingressOf, sleep, type WireJob } from './client.ts'

/** If a follower receives no data for this time, then it closes the connection. The service sends at least a comment every 15 s. */
const SILENCE_MS = 20_000
const HEAD_MS = 8_000
/** Delay before the next connection. The delay is short after a connection with status 200, and grows with each consecutive failure. */
const RECONNECT_BACKOFF: Backoff = { baseMs: 200, maxMs: 3_000 }

const agent = new Agent({ connections: null, keepAliveTimeout: 5_000 })

/**
 * Outcome of one connection of a follower. `terminal`: the job has ended. `past`: no event follows (204). `missing`: no such job (404).
 * `cut`: the connection broke, so the follower connects again.
 */
type Ending = 'terminal' | 'past' | 'missing' | 'cut'

/**
 * Receives the events of a job up to the last one. Whenever the connection is cut, the follower connects to the other ingress and continues with
 * `Last-Event-ID`.
 *
 * @param hangUps Entry n is the number of frames after which the follower closes its connection n, to test that the next connection
 * continues the stream.
 */
export async function follow(
  clients: Clients,
  jobId: string,
  first: number,
  hangUps: readonly number[],
): Promise<void> {
  const follower = new Follower(clients, jobId)
  for (let turn = 0; !clients.signal.aborted; turn++) {
    const ending = await follower.connect(first + turn, hangUps[turn])
    if (ending !== 'cut') return
    await sleep(backoffMs(follower.failures, RECONNECT_BACKOFF, Math.random()), clients.signal)
  }
}

class Follower {
  readonly #clients: Clients
  readonly #jobId: string
  #last = 0
  #hasEnded = false
  /** Consecutive connections that failed. */
  failures = 0

  constructor(clients: Clients, jobId: string) {
    this.#clients = clients
    this.#jobId = jobId
  }

  /** Opens one connection, and reads the events after the last received one. */
  async connect(turn: number, hangUpAfter = Number.POSITIVE_INFINITY): Promise<Ending> {
    const ingress = ingressOf(this.#clients, turn)
    this.failures += 1
    this.#say(ingress, 'open')
    try {
      const ending = await this.#read(ingress, hangUpAfter)
      this.#say(ingress, ending === 'missing' ? 'missing' : ending === 'cut' ? 'cut' : 'end')
      return ending
    } catch (error) {
      this.#say(ingress, 'cut', error instanceof Error ? error.message : String(error))
      return 'cut'
    }
  }

  async #read(ingress: string, hangUpAfter: number): Promise<Ending> {
    const { statusCode, body } = await request(`${ingress}/v1/jobs/${this.#jobId}/events`, {
      dispatcher: agent,
      headers: {
        authorization: `Bearer ${TEST_KEY}`,
        accept: 'text/event-stream',
        ...(this.#last > 0 && { 'last-event-id': String(this.#last) }),
      },
      headersTimeout: HEAD_MS,
      bodyTimeout: SILENCE_MS,
      signal: this.#clients.signal,
    })
    if (statusCode === 200) {
      this.#say(ingress, 'connected')
      this.failures = 0
      return await this.#readFrames(ingress, body, hangUpAfter)
    }
    const text = await body.text()
    if (statusCode === 204) return 'past'
    if (statusCode === 404) return 'missing'
    throw new Error(`${statusCode}: ${text.slice(0, 200)}`)
  }

  async #readFrames(ingress: string, body: AsyncIterable<Buffer>, hangUpAfter: number): Promise<Ending> {
    let frames = 0
    const parser = createParser({
      onEvent: (message) => {
        frames += 1
        this.#onFrame(ingress, message)
      },
    })
    const decoder = new TextDecoder()
    for await (const chunk of body) {
      parser.feed(decoder.decode(chunk, { stream: true }))
      if (frames >= hangUpAfter && !this.#hasEnded) return 'cut'
    }
    return this.#hasEnded ? 'terminal' : 'cut'
  }

  #onFrame(ingress: string, message: EventSourceMessage): void {
    const data = JSON.parse(message.data) as Frame
    const seq = Number(message.id)
    this.#last = seq
    this.#hasEnded ||= data.job !== undefined && data.type !== 'job.snapshot'
    this.#clients.history.add('followers', {
      type: 'frame',
      job_id: this.#jobId,
      follower: `follower-${this.#jobId}`,
      ingress,
      seq,
      event: data.type,
      ...(data.chunk !== undefined && { text: textOfChunk(data.chunk) }),
      ...(data.output_reset === true && { reset: true }),
      ...(data.job && { end: endOf(data.job) }),
    })
  }

  #say(ingress: string, phase: 'open' | 'connected' | 'cut' | 'missing' | 'end', problem?: string): void {
    this.#clients.history.add('followers', {
      type: 'follow',
      phase,
      job_id: this.#jobId,
      follower: `follower-${this.#jobId}`,
      ingress,
      after: this.#last,
      ...(problem !== undefined && { problem }),
    })
  }
}

interface Frame {
  readonly type: string
  readonly chunk?: unknown
  readonly output_reset?: boolean
  readonly job?: WireJob
}

export function textOfChunk(chunk: unknown): string {
  const { choices } = chunk as { choices?: { delta?: { content?: string } }[] }
  return choices?.map((choice) => choice.delta?.content ?? '').join('') ?? ''
}
