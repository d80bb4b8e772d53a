import type { IncomingHttpHeaders } from 'node:http'
import type { Transform } from 'node:stream'
import * as zlib from 'node:zlib'
import type { Dispatcher } from 'undici'
import type { Usage } from '#schemas/kinds/generate.ts'
import type { Timeouts } from '#schemas/models.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { answerError, connectionError, type ErrorContext } from './error.ts'

/** Maximum unread bytes of an answer. Beyond this maximum, the socket is paused. */
const UNREAD_BYTES_MAX = 256 * 1024

const NO_BYTES = Buffer.alloc(0)

/**
 * After a complete answer, the usage, the filter results and the end of the stream must arrive within this time, in
 * milliseconds.
 */
const COMPLETION_TIMEOUT_MS = 3_000

/** The socket of a finished stream can be reused only if the stream ends within this time, in milliseconds. */
const REUSE_TIMEOUT_MS = 1_000

/**
 * One HTTP request and its answer. undici pushes the bytes, and a reader pulls them.
 *
 * The exchange owns the timers and the socket of the call. Each exchange ends once: by the end of the answer, or by an error. An error destroys the
 * socket, even if the request is still waiting for its connection.
 *
 * 1. First byte: a streamed answer must begin within `first_token_ms`.
 * 2. Between bytes: maximum silence inside a stream, except while the reader is slow. Comments and pings count as bytes.
 * 3. End: after the reader has the complete answer, the connection must end within {@link COMPLETION_TIMEOUT_MS}. Further bytes do not extend this
 *    time.
 * 4. Total: maximum time of the whole call. An answer that is not streamed has only this timer, because its first byte arrives with its last.
 */
export class Exchange implements Dispatcher.DispatchHandler {
  readonly errorContext: ErrorContext
  readonly onUsage: ((usage: Usage) => void) | undefined
  readonly onModel: ((name: string) => void) | undefined
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
  #isComplete = false
  #undecided: Buffer | undefined = NO_BYTES
  #inflater: Inflater | undefined
  #coding: string | undefined
  /** Whether all bytes have arrived, although some may still be inside the decompressor. */
  #isReceived = false
  /** Error of a connection that broke while the decompressor still contained bytes. */
  #broken: ServiceError | undefined
  #wake: (() => void) | undefined

  constructor(options: {
    errorContext: ErrorContext
    timeouts: Timeouts
    signal: AbortSignal
    isStream: boolean
    onEnd: () => void
    onUsage?: ((usage: Usage) => void) | undefined
    onModel?: ((name: string) => void) | undefined
  }) {
    this.onUsage = options.onUsage
    this.onModel = options.onModel
    this.errorContext = options.errorContext
    this.#timeouts = options.timeouts
    this.#signal = options.signal
    this.#onEnd = options.onEnd
    const { total_ms, first_token_ms } = options.timeouts
    this.#total = setTimeout(() => this.#timeOut(`did not finish within ${total_ms} ms`), total_ms)
    if (options.isStream) {
      this.#idle = setTimeout(() => this.#timeOut(`sent no first byte within ${first_token_ms} ms`), first_token_ms)
    }
    options.signal.addEventListener('abort', this.#onAbort, { once: true })
  }

  get status(): number {
    return this.#status
  }

  /** Headers without `content-encoding`, because readers receive decoded bytes. */
  get headers(): IncomingHttpHeaders {
    return this.#headers
  }

  get mediaType(): string {
    return (this.#headers['content-type'] ?? '').split(';', 1)[0]?.trim().toLowerCase() ?? ''
  }

  /**
   * Waits for bytes or for the end of the answer. Only one reader may wait at a time.
   *
   * @throws ServiceError, or the signal's reason
   */
  async waitForBytes(): Promise<void> {
    const failure = await this.waitForChange()
    if (failure !== undefined) throw failure
  }

  waitForChange(): Promise<unknown> {
    return new Promise((resolve) => {
      this.#wake = () => resolve(this.#chunks.length === 0 ? this.#failure : undefined)
      if (this.#state !== 'open' || this.#chunks.length > 0) this.#wakeReader()
    })
  }

  /** Returns all bytes that arrived since the last call. If the result is empty after {@link waitForBytes}, then the answer has ended normally. */
  take(): Buffer[] {
    const chunks = this.#chunks
    this.#chunks = []
    this.#unread = 0
    if (this.#inflater) this.#inflater.resume()
    else this.#resume()
    return chunks
  }

  /** Returns the rest of the answer as text. A rest of more than `bytesMax` bytes is truncated, and the socket is destroyed. */
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

  /** Called when the reader has the complete answer. The connection must then end within {@link COMPLETION_TIMEOUT_MS}. */
  expectEnd(): void {
    if (this.#state !== 'open' || this.#isReleased || this.#isComplete) return
    this.#isComplete = true
    clearTimeout(this.#idle)
    this.#idle = setTimeout(() => this.#onSilence('after its answer', COMPLETION_TIMEOUT_MS), COMPLETION_TIMEOUT_MS)
  }

  /** Ends reading. After a complete answer, the remaining bytes are dropped and the connection is reused. Otherwise the socket is destroyed. */
  release(isComplete: boolean): void {
    if (this.#state !== 'open') return
    if (!isComplete) return this.fail(new Error('the engine stopped reading before the end of the response'))
    if (this.#isReceived) return this.#over(undefined)
    this.#isReleased = true
    this.#chunks = []
    this.#inflater?.close()
    this.#controller?.resume()
    clearTimeout(this.#idle)
    this.#idle = setTimeout(() => this.fail(new Error('the answer did not end in time')), REUSE_TIMEOUT_MS)
  }

  /** Ends the call with an error. The reader receives `reason` and no more bytes, and the socket is destroyed. */
  fail(reason: unknown): void {
    if (this.#state !== 'open') return
    this.#chunks = []
    this.#close(reason)
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    if (this.#state === 'failed') controller.abort(new Error('aborted'))
  }

  onResponseStart(_controller: Dispatcher.DispatchController, status: number, headers: IncomingHttpHeaders): void {
    if (status < 200) return
    this.#status = status
    const { 'content-encoding': coding, ...others } = headers
    this.#headers = others
    this.#coding = coding
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#isReleased || this.#state !== 'open') return
    if (this.#isFirst) this.#startSilence()
    if (!this.#isComplete) this.#idle?.refresh()
    const bytes = this.#decide(chunk, false)
    if (bytes.length === 0) return
    const isEnough = this.#inflater ? !this.#inflater.write(bytes) : !this.#push(bytes)
    if (isEnough) controller.pause()
  }

  onResponseEnd(): void {
    if (this.#state !== 'open') return
    this.#finish(undefined)
  }

  /** Ends the answer with an error. Bytes that arrived before the error stay readable, because they may be a complete answer. */
  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    if (this.#state === 'open') this.#finish(connectionError(this.errorContext.model, error))
  }

  #decide(chunk: Buffer, isAll: boolean): Buffer {
    if (!this.#undecided) return chunk
    const bytes = this.#undecided.length === 0 ? chunk : Buffer.concat([this.#undecided, chunk])
    const coding = findCoding(this.#coding, bytes, isAll)
    this.#undecided = coding === 'unknown' ? bytes : undefined
    if (coding === 'unknown') return NO_BYTES
    if (coding) this.#inflater = this.#inflate(coding)
    return bytes
  }

  #inflate(coding: NonNullable<Coding>): Inflater {
    return new Inflater(coding, {
      data: (bytes) => this.#push(bytes),
      drain: () => this.#resume(),
      end: (error) => {
        if (this.#state !== 'open' || this.#isReleased) return
        const { model } = this.errorContext
        const failure =
          this.#broken ?? (error && answerError(model, 'sent compressed data that cannot be decompressed', error))
        this.#over(failure)
      },
    })
  }

  #push(bytes: Buffer): boolean {
    if (this.#isReleased || this.#state !== 'open') return true
    this.#chunks.push(bytes)
    this.#unread += bytes.length
    this.#wakeReader()
    return this.#unread <= UNREAD_BYTES_MAX
  }

  #resume(): void {
    if (!this.#controller?.paused) return
    if (!this.#isComplete) this.#idle?.refresh()
    this.#controller.resume()
  }

  #finish(broken: ServiceError | undefined): void {
    this.#broken = broken
    this.#isReceived = true
    const rest = this.#decide(NO_BYTES, true)
    if (!this.#inflater || this.#isReleased) {
      if (rest.length > 0) this.#push(rest)
      return this.#over(broken)
    }
    if (rest.length > 0) this.#inflater.write(rest)
    this.#inflater.end()
  }

  #over(failure: ServiceError | undefined): void {
    if (failure) return this.#close(failure)
    this.#end('ended')
    this.#onEnd()
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
    this.#idle = setTimeout(() => this.#onSilence('inside its answer', between_tokens_ms), between_tokens_ms)
  }

  /** Called after a silence. If received bytes are still unread, then the reader is slow, and no error is raised. */
  #onSilence(where: string, ms: number): void {
    if (this.#chunks.length > 0) this.#idle?.refresh()
    else this.#timeOut(`sent no data for ${ms} ms ${where}`)
  }

  #timeOut(what: string): void {
    this.fail(new ServiceError('upstream_timeout', `The upstream of model '${this.errorContext.model}' ${what}.`))
  }

  #end(state: 'ended' | 'failed'): void {
    this.#state = state
    clearTimeout(this.#total)
    clearTimeout(this.#idle)
    this.#signal.removeEventListener('abort', this.#onAbort)
    this.#inflater?.close()
    this.#wakeReader()
  }

  #wakeReader(): void {
    const wake = this.#wake
    this.#wake = undefined
    wake?.()
  }
}

/**
 * Detects the content coding of answers. Calls request `identity`, but some proxies compress, name a coding that they did not apply, or apply one
 * without naming it.
 *
 * The first bytes therefore decide. The header decides only for codings without a signature (br, raw deflate).
 */

const SAMPLE_BYTES = 16
/** Maximum decompressed bytes of one answer, which ends a stream of endless comments. Readers accept far less. */
const INFLATED_BYTES_MAX = 256 * 1024 * 1024
const PIECE_BYTES = 64 * 1024
/**
 * Base-2 logarithm of the maximum window size, which is 8 MiB for the zstd content coding (RFC 9659). By default, the library allocates up to 128
 * MiB.
 */
const ZSTD_WINDOW_LOG_MAX = 23

/** Undefined in Node.js before 22.15, which has no zstd. */
const { createZstdDecompress } = zlib as Partial<typeof zlib>

const GZIP = Buffer.of(0x1f, 0x8b)
const ZSTD = Buffer.of(0x28, 0xb5, 0x2f, 0xfd)
/** Matches the start of an uncompressed answer. Sixteen compressed bytes are practically never all printable. */
const TEXT = /^(?:\xef\xbb\xbf)?[\t\n\r\x20-\x7e]+$/

type Coding = (() => Transform) | undefined

/**
 * Detects the content coding of an answer.
 *
 * @param named Value of `content-encoding`.
 * @param first The first bytes of the answer.
 * @param isAll Whether the answer has no more bytes.
 * @returns `'unknown'` if more bytes are needed.
 */
function findCoding(named: string | undefined, first: Buffer, isAll: boolean): Coding | 'unknown' {
  if (startsWith(first, GZIP)) return () => zlib.createGunzip({ chunkSize: PIECE_BYTES })
  if (createZstdDecompress && startsWith(first, ZSTD)) return () => openZstd(createZstdDecompress)
  const last = (named ?? '').split(',').at(-1)?.trim().toLowerCase()
  const isBare = last === '' || last === 'identity'
  if (isBare && first.length > 0 && first[0] !== GZIP[0] && first[0] !== ZSTD[0]) return undefined
  if (first.length < (isBare ? ZSTD.length : SAMPLE_BYTES) && !isAll) return 'unknown'
  if (isBare || TEXT.test(first.toString('latin1', 0, SAMPLE_BYTES))) return undefined
  if (last === 'br') return () => zlib.createBrotliDecompress({ chunkSize: PIECE_BYTES })
  if (last !== 'deflate') return undefined
  return () =>
    isZlib(first) ? zlib.createInflate({ chunkSize: PIECE_BYTES }) : zlib.createInflateRaw({ chunkSize: PIECE_BYTES })
}

function startsWith(bytes: Buffer, mark: Buffer): boolean {
  return bytes.subarray(0, mark.length).equals(mark)
}

/** Whether the bytes begin with a zlib header (RFC 1950). Some servers send `deflate` without this header. */
function isZlib(bytes: Buffer): boolean {
  const [first = 0, second = 0] = bytes
  return (first & 0x0f) === 8 && (first * 256 + second) % 31 === 0
}

function openZstd(create: typeof zlib.createZstdDecompress): Transform {
  return create({ chunkSize: PIECE_BYTES, params: { [zlib.constants.ZSTD_d_windowLogMax]: ZSTD_WINDOW_LOG_MAX } })
}

class Inflater {
  readonly #stream: Transform

  /**
   * @param on.data Receives decompressed bytes. Returns false to pause the output until {@link resume}.
   * @param on.end Called once, after all data. The argument is an error if the bytes are truncated or corrupt.
   */
  constructor(open: () => Transform, on: { data(bytes: Buffer): boolean; drain(): void; end(error?: Error): void }) {
    const stream = open()
    let total = 0
    stream.on('data', (bytes: Buffer) => {
      total += bytes.length
      if (total > INFLATED_BYTES_MAX) stream.destroy(new Error('too many bytes'))
      else if (!on.data(bytes)) stream.pause()
    })
    stream.on('drain', () => on.drain())
    stream.on('error', (error: Error) => on.end(error))
    stream.on('end', () => on.end())
    this.#stream = stream
  }

  write(bytes: Buffer): boolean {
    return this.#stream.write(bytes)
  }

  end(): void {
    this.#stream.end()
  }

  resume(): void {
    this.#stream.resume()
  }

  close(): void {
    this.#stream.destroy()
  }
}
