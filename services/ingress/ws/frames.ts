import type { WebSocket } from 'ws'
import { ClientFrame, type ServerFrame } from '#schemas/ws.ts'
import { CLIENT_RETRY_AFTER_MS_MAX } from '#services/ingress/body/body.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import { HELD_PER_BYTE, HELD_PER_VALUE, type HeldBytes } from '#shared/capacity/byte-budgets.ts'
import { readJson, refuseShape } from '#shared/json/read.ts'
import { findJsonProblem } from '#shared/json/syntax-error.ts'
import { errorHeaders, openaiErrorBody } from '#shared/kinds/errors.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * Result of reading a frame of the client: the frame, or an error. If the invalid frame would have started a request,
 * then the error has the id of that request.
 */
export type ReadFrame =
  | { readonly frame: ClientFrame }
  | { readonly error: ServiceError; readonly id: string | undefined }

/**
 * Types of frames that start a request or a subscription under a new id. An error in such a frame is reported for that
 * id.
 */
const BEGINNINGS: ReadonlySet<unknown> = new Set(['request.create', 'job.subscribe'])
const ID_CHARS_MAX = 64

/**
 * Reads a frame. Errors are returned instead of thrown. A large frame must be read with `runYielding`.
 *
 * @param held Memory reservation of the frame, to which the size of the parsed values is added
 */
export function* readFrame(data: Buffer, isBinary: boolean, held: HeldBytes): Generator<undefined, ReadFrame> {
  let value: unknown
  try {
    if (isBinary) throw new ServiceError('invalid_request', 'A frame must be a text message with one JSON object.')
    const values = yield* refuseShape(data)
    value = yield* parse(data)
    held.hold(data.length * HELD_PER_BYTE + values * HELD_PER_VALUE)
    return { frame: parseBody(ClientFrame, value, 'openai') }
  } catch (error) {
    return { error: ServiceError.from(error), id: beginningOf(value) }
  }
}

function* parse(data: Buffer): Generator<undefined, object> {
  let value: unknown
  try {
    value = yield* readJson(data)
  } catch (cause) {
    const { problem, fix } = (yield* findJsonProblem(data)) ?? { problem: '', fix: '' }
    throw new ServiceError('invalid_request', `The frame is not JSON. ${problem} ${fix}`.trim(), { cause })
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value
  throw new ServiceError('invalid_request', 'The frame is not a JSON object.')
}

function beginningOf(value: unknown): string | undefined {
  const { type, id } = (value ?? {}) as { type?: unknown; id?: unknown }
  const isId = typeof id === 'string' && id.length > 0 && id.length <= ID_CHARS_MAX
  return isId && BEGINNINGS.has(type) ? id.toWellFormed() : undefined
}

export function frameText(frame: ServerFrame): string {
  return JSON.stringify(frame)
}

/**
 * Returns a `request.event` frame. Called once per token, so the event is inserted as JSON text instead of being parsed
 * and serialized again.
 */
export function requestEventText(id: string, sequence: number, event: string): string {
  return `{"type":"request.event","id":${JSON.stringify(id)},"sequence_number":${sequence},"event":${event}}`
}

export function jobEventText(id: string, event: string): string {
  return `{"type":"job.event","id":${JSON.stringify(id)},"event":${event}}`
}

export function completedText(id: string, status: number, body: string): string {
  return `{"type":"request.completed","id":${JSON.stringify(id)},"status":${status},"body":${body}}`
}

/**
 * Returns a `request.failed` frame, with an error in the OpenAI format on every endpoint (docs/guides/websocket.md,
 * Frames).
 */
export function failedFrame(id: string, error: ServiceError): ServerFrame {
  const retryAfter = errorHeaders(error, false, CLIENT_RETRY_AFTER_MS_MAX)['retry-after']
  const more = retryAfter === undefined ? {} : { retry_after: Number(retryAfter) }
  return { type: 'request.failed', id, status: error.status, error: openaiErrorBody(error).error, ...more }
}

export function errorFrame(error: ServiceError): ServerFrame {
  return { type: 'error', error: openaiErrorBody(error).error }
}

export interface SocketBounds {
  readonly connectionsMax: number
  readonly connectionsMaxPerKey: number
  /** Maximum requests and subscriptions that are open at the same time on one connection. */
  readonly inFlightMax: number
  /**
   * Maximum unsent bytes per connection. Beyond this maximum, the ingress reads no further output from the jobs of the
   * connection, which pauses their workers.
   */
  readonly bufferedBytesMax: number
  /** Maximum unsent replies per connection. Beyond this maximum, no frames are read from the client. */
  readonly repliesMax: number
  /**
   * Maximum time in ms for which the client may read nothing while more than {@link bufferedBytesMax} are unsent.
   * Afterwards, the client is disconnected.
   */
  readonly drainMs: number
  readonly heartbeatMs: number
  /** Time in ms without received bytes after which the connection is closed. The check runs with each ping. */
  readonly idleMs: number
  readonly malformedMax: number
  readonly lingerMs: number
}

export const SOCKET_BOUNDS: SocketBounds = {
  connectionsMax: 5_000,
  connectionsMaxPerKey: 200,
  inFlightMax: 32,
  bufferedBytesMax: 1024 * 1024,
  repliesMax: 1_000,
  drainMs: 60_000,
  heartbeatMs: 20_000,
  idleMs: 60_000,
  malformedMax: 3,
  lingerMs: 2_000,
}

/**
 * Send queue of one connection, with backpressure.
 *
 * Output is read from the jobs only while the buffer has space, so a slow client pauses the workers.
 *
 * Replies to frames of the client cannot wait, so they have a limit of their own. At this limit, no more frames are
 * read from the client.
 */
export class Outbox {
  readonly #ws: WebSocket
  readonly #bounds: SocketBounds
  readonly #pause: ReadPause
  readonly #onStalled: () => void
  readonly #waiting = new Set<() => void>()
  #replies = 0
  #stall: NodeJS.Timeout | undefined

  constructor(ws: WebSocket, bounds: SocketBounds, pause: ReadPause, onStalled: () => void) {
    this.#ws = ws
    this.#bounds = bounds
    this.#pause = pause
    this.#onStalled = onStalled
  }

  get isFull(): boolean {
    return this.#ws.bufferedAmount > this.#bounds.bufferedBytesMax
  }

  /**
   * Sends output of a request. The caller must first wait for {@link waitForSpace}. If the connection is closing, then the output is
   * dropped.
   */
  send(text: string): void {
    this.#send(text, () => this.#onFlushed())
  }

  reply(text: string): void {
    if (!this.#isOpen) return
    if (++this.#replies > this.#bounds.repliesMax) this.#pause.begin('replies')
    this.#send(text, () => {
      // Reading resumes only at half of the limit. Otherwise reading would pause and resume with every frame.
      if (--this.#replies <= this.#bounds.repliesMax / 2) this.#pause.end('replies')
      this.#onFlushed()
    })
  }

  /** Resolves when output can be sent, when `signal` aborts, or when the connection closes. */
  async waitForSpace(signal: AbortSignal): Promise<void> {
    while (this.isFull && this.#isOpen && !signal.aborted) {
      const { promise, resolve } = Promise.withResolvers<void>()
      const wake = () => resolve()
      this.#waiting.add(wake)
      signal.addEventListener('abort', wake)
      await promise
      signal.removeEventListener('abort', wake)
      this.#waiting.delete(wake)
    }
  }

  close(): void {
    clearTimeout(this.#stall)
    this.#wake()
  }

  get #isOpen(): boolean {
    return this.#ws.readyState === this.#ws.OPEN
  }

  #send(text: string, onFlushed: () => void): void {
    if (!this.#isOpen) return
    this.#ws.send(text, onFlushed)
    if (this.isFull) this.#stall ??= setTimeout(this.#onStalled, this.#bounds.drainMs)
  }

  /** Called when a frame was flushed. A flushed frame shows that the client reads, so the stall timer restarts. */
  #onFlushed(): void {
    if (this.isFull) return void this.#stall?.refresh()
    clearTimeout(this.#stall)
    this.#stall = undefined
    this.#wake()
  }

  #wake(): void {
    for (const wake of this.#waiting) wake()
  }
}

type PauseReason = 'replies' | 'reading'

/** Pauses reading from a connection while at least one reason applies. Each reason begins and ends separately. */
export class ReadPause {
  readonly #ws: WebSocket
  readonly #reasons = new Set<PauseReason>()
  #isOver = false

  constructor(ws: WebSocket) {
    this.#ws = ws
  }

  begin(reason: PauseReason): void {
    if (this.#isOver) return
    this.#reasons.add(reason)
    this.#ws.pause()
  }

  end(reason: PauseReason): void {
    if (this.#reasons.delete(reason) && this.#reasons.size === 0) this.#ws.resume()
  }

  /**
   * Resumes reading permanently, because the connection is closing. If reading stayed paused, then the close frame of
   * the client would never arrive.
   */
  stop(): void {
    this.#isOver = true
    this.#reasons.clear()
    this.#ws.resume()
  }
}
