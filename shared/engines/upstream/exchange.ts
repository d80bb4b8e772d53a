import type { IncomingHttpHeaders } from 'node:http'
import type { Dispatcher } from 'undici'
import type { Timeouts } from '#schemas/models.ts'
import { ServiceError } from '#shared/error.ts'
import { connectionError, type Speaker } from './error.ts'

/** Bytes of an answer that may wait for their reader before the socket is paused. */
const UNREAD_MAX = 256 * 1024

/** How long a finished stream's socket may take to end, so that it can be used again. */
const LINGER_MS = 1_000

/**
 * One request and its answer: undici's handler on one side, a pull reader on the other.
 *
 * Owns the call's clocks and its socket. It ends once: by the answer's own end, or by a failure, after which the
 * socket is destroyed, also when the request was still waiting for its connection.
 *
 * - first byte: a streamed answer must begin within `first_token_ms`.
 * - between bytes: silence inside a stream, as long as the reader keeps up. Comments and pings break the silence.
 * - total: the whole call. It is the only clock of a whole answer, whose first byte comes with its last.
 */
export class Exchange implements Dispatcher.DispatchHandler {
  /** Whose answer it is. */
  readonly speaker: Speaker
  readonly #timeouts: Timeouts
  readonly #signal: AbortSignal
  readonly #onEnd: () => void
  readonly #onAbort = () => this.fail(this.#signal.reason)
  readonly #total: NodeJS.Timeout
  #idle: NodeJS.Timeout | undefined
  #controller: Dispatcher.DispatchController | undefined
  #status = 0
  #headers: IncomingHttpHeaders = {}
  #chunks: Buffer[] = []
  #unread = 0
  #state: 'open' | 'ended' | 'failed' = 'open'
  #failure: unknown
  #isFirst = true
  #isReleased = false
  #wake: (() => void) | undefined

  /** @param onEnd Called once, when the socket is free or destroyed. */
  constructor(options: {
    speaker: Speaker
    timeouts: Timeouts
    signal: AbortSignal
    isStream: boolean
    onEnd: () => void
  }) {
    this.speaker = options.speaker
    this.#timeouts = options.timeouts
    this.#signal = options.signal
    this.#onEnd = options.onEnd
    const { total_ms, first_token_ms } = options.timeouts
    this.#total = setTimeout(() => this.#timeOut(`was not done within ${total_ms} ms`), total_ms)
    if (options.isStream) {
      this.#idle = setTimeout(() => this.#timeOut(`gave no first byte within ${first_token_ms} ms`), first_token_ms)
    }
    options.signal.addEventListener('abort', this.#onAbort, { once: true })
  }

  /** HTTP status; 0 until the head has come. */
  get status(): number {
    return this.#status
  }

  get headers(): IncomingHttpHeaders {
    return this.#headers
  }

  /** Media type without parameters, in lower case; empty when the upstream names none. */
  get mediaType(): string {
    return (this.#headers['content-type'] ?? '').split(';', 1)[0]?.trim().toLowerCase() ?? ''
  }

  /**
   * Waits until bytes can be taken or the answer has ended; one reader at a time.
   *
   * @throws ServiceError, or the signal's reason
   */
  waitForBytes(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#wake = () => (this.#state === 'failed' && this.#chunks.length === 0 ? reject(this.#failure) : resolve())
      if (this.#state !== 'open' || this.#chunks.length > 0) this.#wakeReader()
    })
  }

  /** All bytes that have come since the last call. None, after {@link waitForBytes}: the answer has ended well. */
  take(): Buffer[] {
    const chunks = this.#chunks
    this.#chunks = []
    this.#unread = 0
    if (this.#controller?.paused) {
      this.#idle?.refresh()
      this.#controller.resume()
    }
    return chunks
  }

  /** The rest of the answer as text; what lies beyond `bytesMax` is cut off, and the socket with it. */
  async text(bytesMax: number): Promise<string> {
    const parts: Buffer[] = []
    let bytes = 0
    while (bytes <= bytesMax) {
      await this.waitForBytes()
      const chunks = this.take()
      if (chunks.length === 0) break
      for (const chunk of chunks) bytes += chunk.length
      parts.push(...chunks)
    }
    this.release(false)
    return Buffer.concat(parts).subarray(0, bytesMax).toString('utf8')
  }

  /** The reader needs no more. What is left of a complete answer is dropped; an incomplete one loses its socket. */
  release(isComplete: boolean): void {
    if (this.#state !== 'open') return
    if (!isComplete) return this.fail(new Error('the reader left'))
    this.#isReleased = true
    this.#chunks = []
    this.#controller?.resume()
    clearTimeout(this.#idle)
    this.#idle = setTimeout(() => this.fail(new Error('the answer lingered')), LINGER_MS)
  }

  /** Ends the call now. The reader gets `reason` and no more bytes; the socket is destroyed. */
  fail(reason: unknown): void {
    if (this.#state !== 'open') return
    this.#chunks = []
    this.#close(reason)
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    // The call was over before its connection stood.
    if (this.#state === 'failed') controller.abort(new Error('aborted'))
  }

  onResponseStart(_controller: Dispatcher.DispatchController, status: number, headers: IncomingHttpHeaders): void {
    if (status < 200) return
    this.#status = status
    this.#headers = headers
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#isReleased || this.#state !== 'open') return
    if (this.#isFirst) this.#startSilence()
    this.#idle?.refresh()
    this.#chunks.push(chunk)
    this.#unread += chunk.length
    if (this.#unread > UNREAD_MAX) controller.pause()
    this.#wakeReader()
  }

  onResponseEnd(): void {
    if (this.#state !== 'open') return
    this.#end('ended')
    this.#onEnd()
  }

  /** What came before the connection broke is still read: it may be all there was to say. */
  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    if (this.#state === 'open') this.#close(connectionError(this.speaker.model, error))
  }

  #close(reason: unknown): void {
    this.#failure = reason
    this.#end('failed')
    this.#controller?.abort(reason instanceof Error ? reason : new Error('aborted', { cause: reason }))
    this.#onEnd()
  }

  #startSilence(): void {
    this.#isFirst = false
    if (!this.#idle) return
    clearTimeout(this.#idle)
    const { between_tokens_ms } = this.#timeouts
    this.#idle = setTimeout(() => this.#onSilence(), between_tokens_ms)
  }

  /** Silence while bytes lie unread is the reader's, not the upstream's. */
  #onSilence(): void {
    if (this.#chunks.length > 0) this.#idle?.refresh()
    else this.#timeOut(`was silent for ${this.#timeouts.between_tokens_ms} ms inside its answer`)
  }

  #timeOut(what: string): void {
    this.fail(new ServiceError('upstream_timeout', `The upstream of model '${this.speaker.model}' ${what}.`))
  }

  #end(state: 'ended' | 'failed'): void {
    this.#state = state
    clearTimeout(this.#total)
    clearTimeout(this.#idle)
    this.#signal.removeEventListener('abort', this.#onAbort)
    this.#wakeReader()
  }

  #wakeReader(): void {
    const wake = this.#wake
    this.#wake = undefined
    wake?.()
  }
}
