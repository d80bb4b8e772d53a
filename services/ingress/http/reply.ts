/*
 * The answer to one HTTP request, as a stream, as JSON, as text or as bytes.
 *
 * The problem: a status is sent before the output, so a later failure cannot change it. A silent connection is cut by
 * clients and proxies, and a slow client would fill the memory.
 *
 * 1. The head (status and headers) of a stream is delayed until the first output, by at most 5 s. A failure before the
 *    head is an HTTP error. A later failure is the last frame of the stream. If a JSON answer has sent only its head,
 *    then the error becomes the body.
 * 2. Before its first output, a stream receives comments with its queue position or the progress of its model. A silent
 *    stream receives a keep-alive every 15 s. A JSON answer gets its head after 240 s, then newlines.
 * 3. Memory is bounded, because output waits while the client reads slowly. If the client reads nothing for
 *    `slowReaderMs`, then the connection is cut.
 * 4. If the connection closes early or the key is revoked, then `disconnected` aborts, which cancels an attached job. The
 *    access-log line is written when the response closes.
 */

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Readable } from 'node:stream'
import { errorBody, formatOf, sendError, statusOf, type WireFormat } from '#services/ingress/body/body.ts'
import type { IngressContext, Outcome, Reply, ReplyForm } from '#services/ingress/calls/call.ts'
import { CallLog } from '#services/ingress/calls/call-log.ts'
import { jsonTextSoon } from '#shared/json/write.ts'
import type { ApiKey } from '#shared/keys/keys.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { messagesErrorText, openaiErrorBody } from '#shared/kinds/errors.ts'
import { isHighSurrogate } from '#shared/lib/buffers.ts'
import { ServiceError } from '#shared/lib/error.ts'

const LAST_CHUNK = '0\r\n\r\n'

/** Maximum delay of the status and headers of a stream, in ms (docs/internals/protocol.md, Failures after the head). */
const HEAD_WAIT_MS = 5_000
const KEEP_ALIVE_MS = 15_000
/** Interval in ms at which a stream without output checks whether the reason of its wait has changed. */
const WAIT_COMMENT_MS = 1_000
/**
 * Time in ms after which the head of a JSON answer is sent early. Clients disconnect after 300 s without a byte
 * (docs/internals/protocol.md, Long answers).
 */
const EARLY_HEAD_MS = 240_000
const SMALL_BODY = 16 * 1024
const SLOW_END_TIMEOUT_MS = 1_000
/** Time in ms in which a caller with a revoked key must receive the error before the connection is cut. */
const REVOKED_END_TIMEOUT_MS = 2_000
const RECONNECT_MS = 3_000

const JSON_TYPE = 'application/json'
const TEXT_TYPE = 'text/plain; charset=utf-8'
const STREAM_HEAD = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
}

/** Abort reason for a closed connection. The constant avoids the cost of a new AbortError, which captures a stack trace. */
const CLOSED = Symbol('closed')

export interface RoutedRequest extends IncomingMessage {
  readonly path: string
  readonly params: Readonly<Record<string, unknown>>
  readonly query: Readonly<Record<string, unknown>>
  readonly route?: { readonly path: string }
}

export class HttpReply implements Reply {
  readonly log: CallLog
  readonly format: WireFormat
  readonly #req: RoutedRequest
  readonly #res: ServerResponse
  readonly #context: IngressContext
  readonly #left = new AbortController()
  readonly disconnected = this.#left.signal
  refusal: ServiceError | undefined
  readonly #slowReaderMs: number
  #unwatch: (() => void) | undefined
  #form: ReplyForm | undefined
  #failed: ((error: ServiceError) => Frame) | undefined
  #held = ''
  #head: NodeJS.Timeout | undefined
  #pulse: NodeJS.Timeout | undefined
  #isWhole = false
  #waitsFor: (() => string | undefined) | undefined
  #waitTimer: NodeJS.Timeout | undefined
  #waitText = ''

  constructor(context: IngressContext, req: RoutedRequest, res: ServerResponse) {
    this.log = new CallLog(context)
    this.format = formatOf(req.path, req.headers)
    this.#context = context
    this.#slowReaderMs = context.config.slowReaderMs
    this.#req = req
    this.#res = res
    res.setHeader('x-request-id', this.log.requestId)
    res.setHeader('request-id', this.log.requestId)
    res.once('close', () => this.#onClose())
  }

  get disconnectedOrDraining(): AbortSignal {
    return AbortSignal.any([this.disconnected, this.#context.closing])
  }

  get isDisconnected(): boolean {
    return this.#res.destroyed
  }

  /**
   * Ends the call with an error when its key is revoked. If the connection is still open after {@link
   * REVOKED_END_TIMEOUT_MS}, then it is cut.
   */
  watch(key: ApiKey): void {
    this.#unwatch = this.#context.keys.watch(key, (error) => {
      this.refusal = error
      this.#left.abort(error)
      setTimeout(() => this.#res.destroy(), REVOKED_END_TIMEOUT_MS).unref()
    })
  }

  /** Called when the handler has finished. The key is watched until the rest of the answer has been sent. */
  release(): void {
    // A response without a socket was sent already, or waits behind an earlier response on its connection. In both
    // cases, no close event follows, so the watch of the key ends here.
    if (!this.#res.socket || this.#res.destroyed) this.#endWatch()
  }

  setHeader(name: string, value: string): void {
    if (!this.#res.headersSent) this.#res.setHeader(name, value)
  }

  accepted(jobId: string, cancel?: () => void): void {
    if (cancel) this.setHeader('x-job-id', jobId)
  }

  open(form: ReplyForm, failed?: (error: ServiceError) => Frame, waitsFor?: () => string | undefined): void {
    this.#form = form
    this.#failed = failed
    this.#waitsFor = waitsFor
    if (form === 'stream') this.#head = setTimeout(() => this.#sendHead(), HEAD_WAIT_MS)
    else if (form === 'json') this.#head = setTimeout(() => this.#openEarly(), EARLY_HEAD_MS)
    else if (form === 'events') this.#openHistory()
  }

  frames(frames: readonly Frame[], isOutput = true): Promise<void> | undefined {
    for (const frame of frames) this.#held += sseText(frame)
    if (!this.#res.headersSent && !isOutput) return undefined
    this.#openStream()
    if (isOutput && this.#waitTimer) clearInterval(this.#waitTimer)
    const held = this.#held
    this.#held = ''
    this.#pulse?.refresh()
    return writeFrames(this.#res, held, this.#slowReaderMs)
  }

  async whole(value: unknown, status = 200): Promise<void> {
    const isText = typeof value === 'string'
    const body = isText ? value : await jsonTextSoon(value)
    const res = this.#res
    this.#stopWaiting()
    if (res.destroyed || res.writableEnded) return
    const bytes = Buffer.byteLength(body)
    if (!res.headersSent) {
      this.#setProcessingTime()
      const type = String(res.getHeader('content-type') ?? (isText ? TEXT_TYPE : JSON_TYPE))
      res.writeHead(status, { 'content-type': type, 'content-length': bytes })
    }
    this.#isWhole = true
    // A small body is passed to end(), which sends it in one packet with the head.
    if (body.length <= SMALL_BODY) return this.#endWith(body, bytes === body.length ? 'latin1' : 'utf8')
    await writePieces(res, bytePieces(Buffer.from(body)), this.#slowReaderMs)
    this.#endWith('')
  }

  async bytes(source: Readable, { type, length }: { readonly type: string; readonly length?: number }): Promise<void> {
    const res = this.#res
    this.#setProcessingTime()
    if (!res.hasHeader('content-disposition')) res.setHeader('content-disposition', 'attachment')
    res.writeHead(200, { 'content-type': type, ...(length !== undefined && { 'content-length': length }) })
    this.#isWhole = true
    if (this.#req.method === 'HEAD') {
      source.destroy()
      return this.#endWith('')
    }
    for await (const piece of source) {
      await writePieces(res, bytePieces(piece), this.#slowReaderMs)
      if (res.destroyed) break
    }
    this.#endWith('')
  }

  end(outcome: Outcome): void {
    this.#stopWaiting()
    if (outcome.type === 'failed') return this.#fail(outcome)
    const res = this.#res
    if (res.destroyed || res.writableEnded) return
    if (this.#form === 'stream') {
      this.#openStream()
      clearInterval(this.#pulse)
      this.#endWith(this.#held + SSE_END[this.format])
    } else if (res.headersSent) this.#endWith('')
    else res.writeHead(204).end()
  }

  #fail({ thrown, keptAs }: Extract<Outcome, { type: 'failed' }>): void {
    const { format, log } = this
    const res = this.#res
    const error = log.classify(thrown)
    // A client that has already disconnected does not receive the failure, so the failure is not recorded.
    if (res.destroyed || res.writableEnded) return
    const sent = keptAs ?? format
    if (sent === 'anthropic') log.sentMessage = messagesErrorText(error)
    log.failed(error, statusOf(error, format), res.headersSent ? res.statusCode : undefined)
    if (!res.headersSent) return sendError(res, error, sent, log.requestId, keptAs !== undefined)
    const words = this.#endWithError(error)
    if (words === undefined) return void res.destroy()
    endWithin(res, error.code === 'slow_reader' ? SLOW_END_TIMEOUT_MS : this.#slowReaderMs, words)
  }

  /**
   * Returns the final bytes of a response that fails after its head was sent. Undefined if a cut connection is the only
   * way to report the failure.
   */
  #endWithError(error: ServiceError): string | undefined {
    const { requestId } = this.log
    if (this.#form === 'stream') {
      return this.#held + sseText(this.#failed?.(error) ?? failureFrame(error, this.format, requestId))
    }
    // The stream of the events of a durable job is cut without an error frame. The client then reconnects at its last position, and receives the
    // error as an HTTP status. A client with a revoked key cannot reconnect, so it receives an error frame.
    if (this.#form === 'events') return this.refusal && sseText(historyFailureFrame(error))
    return this.#isWhole ? undefined : JSON.stringify(errorBody(error, this.format, requestId))
  }

  #endWith(text: string, encoding?: BufferEncoding): void {
    const onSlow = (error: ServiceError) => this.log.failed(error, statusOf(error, this.format), this.#res.statusCode)
    endWithin(this.#res, this.#slowReaderMs, text, { onSlow, encoding })
  }

  #sendHead(): void {
    this.#openStream()
    const res = this.#res
    if (res.destroyed) return
    res.flushHeaders()
    if (!this.#waitsFor) return
    this.#writeWait()
    this.#waitTimer = setInterval(() => this.#writeWait(), WAIT_COMMENT_MS)
  }

  /** Writes the reason of the wait as a comment, unless the last comment has the same text. */
  #writeWait(): void {
    const res = this.#res
    const text = this.#waitsFor?.()?.replace(/[\r\n]+/g, ' ')
    if (text === undefined || text === this.#waitText || res.writableNeedDrain || res.writableEnded) return
    this.#waitText = text
    res.write(`: ${text}\n\n`)
  }

  /** Writes the head together with the first frame, which saves one system call per stream. */
  #openStream(): void {
    const res = this.#res
    if (res.headersSent || res.destroyed) return
    clearTimeout(this.#head)
    this.#setProcessingTime()
    res.writeHead(200, STREAM_HEAD)
    ownChunks(res)
    this.#keepAlive(SSE_KEEP_ALIVE[this.format])
  }

  #openHistory(): void {
    const res = this.#res
    res.writeHead(200, STREAM_HEAD)
    // Express also passes HEAD requests to the handler for GET. The response to HEAD has no body, so it ends here.
    if (this.#req.method === 'HEAD') return void res.end()
    res.write(`retry: ${RECONNECT_MS}\n\n`)
    this.#keepAlive(SSE_KEEP_ALIVE.openai)
  }

  /**
   * Sends the head of a JSON answer early. Afterwards, a failure can be reported only in the body
   * (docs/internals/protocol.md, Long answers).
   */
  #openEarly(): void {
    this.#res.writeHead(200, { 'content-type': JSON_TYPE })
    this.#res.write('\n')
    this.#keepAlive('\n')
  }

  #keepAlive(text: string): void {
    const res = this.#res
    this.#pulse = setInterval(() => {
      if (!res.writableNeedDrain && !res.writableEnded) res.write(text)
    }, KEEP_ALIVE_MS)
  }

  #stopWaiting(): void {
    clearTimeout(this.#head)
    clearInterval(this.#pulse)
    clearInterval(this.#waitTimer)
  }

  #setProcessingTime(): void {
    this.#res.setHeader('openai-processing-ms', Math.round(performance.now() - this.log.startedAt))
  }

  #endWatch(): void {
    this.#unwatch?.()
    this.#unwatch = undefined
  }

  #onClose(): void {
    const res = this.#res
    const req = this.#req
    this.#endWatch()
    if (!res.writableFinished) this.#left.abort(CLOSED)
    const retries = req.headers['x-stainless-retry-count']?.toString()
    const more = retries !== undefined && retries !== '0' ? { client_retry: retries.slice(0, 10) } : {}
    const status = res.writableFinished ? res.statusCode : 'aborted'
    this.log.ended({
      method: req.method ?? '',
      path: req.path,
      route: req.route?.path ?? 'none',
      status,
      headers: req.headers,
      more,
    })
  }
}

/**
 * Replaces Node's chunked encoding of a response (RFC 9112 §7.1). Each chunk is written as one string, because Node would write four pieces per
 * chunk.
 *
 * `writeHead` must have been called. Responses to HTTP/1.0 clients, which are not chunked, are left unchanged. After this call, only text may be
 * written.
 */
export function ownChunks(res: ServerResponse): void {
  if (!res.chunkedEncoding) return
  const write = res.write.bind(res)
  const end = res.end.bind(res)
  res.chunkedEncoding = false
  Object.assign(res, {
    write: (text: string) => {
      const bytes = Buffer.byteLength(text)
      return bytes === 0 || write(chunkOf(text, bytes), bytes === text.length ? 'latin1' : 'utf8')
    },
    end: (text = '') => end(text === '' ? LAST_CHUNK : chunkOf(text, Buffer.byteLength(text)) + LAST_CHUNK),
  })
}

function chunkOf(text: string, bytes: number): string {
  return `${bytes.toString(16)}\r\n${text}\r\n`
}

/** Maximum characters or bytes per write. The client must read each piece within `slowReaderMs`. */
const PIECE = 64 * 1024

/**
 * Writes pieces to a response whose client may read slowly. Each piece has its own time limit, so the client must read
 * at a minimum rate, whatever the size of the answer. Resolves when the response accepts more, or at once if the client
 * disconnected.
 *
 * @param pieces Iterated as the client reads
 * @throws ServiceError `slow_reader` if the client read less than a piece in `slowReaderMs`
 */
export async function writePieces(
  res: ServerResponse,
  pieces: Iterable<string | Uint8Array>,
  slowReaderMs: number,
): Promise<void> {
  let slow: unknown
  for (const piece of pieces) {
    if (res.destroyed) return
    const isTaken = res.write(piece)
    if (!isTaken && !slow) slow = await untilDrained(res, slowReaderMs).catch((error: unknown) => error)
    // A slow client receives the rest of the current frame before the loop stops, so that an error frame can follow.
    if (slow && (typeof piece !== 'string' || piece.endsWith(FRAME_END))) break
  }
  if (slow) throw slow
}

/**
 * Writes whole frames of a stream, which in nearly all cases fit into the send buffer.
 *
 * @returns Undefined if the client accepts more frames. Otherwise a promise that resolves when the client accepts more
 * frames, or rejects with `slow_reader`
 */
function writeFrames(res: ServerResponse, text: string, slowReaderMs: number): Promise<void> | undefined {
  if (text.length > PIECE) return writePieces(res, framePieces(text), slowReaderMs)
  if (text === '' || res.destroyed || res.write(text)) return undefined
  return untilDrained(res, slowReaderMs)
}

/**
 * Splits the text of a stream into pieces of whole frames, so that an error frame can follow each piece. Only a frame
 * that is longer than a piece, such as a plot of several megabytes, is itself split.
 */
export function* framePieces(text: string): Generator<string> {
  let start = 0
  while (text.length - start > PIECE) {
    const piece = text.slice(start, start + PIECE)
    const last = piece.lastIndexOf(FRAME_END)
    const end = last > 0 ? start + last + FRAME_END.length : characterEnd(text, start + PIECE)
    yield text.slice(start, end)
    start = end
  }
  if (start < text.length) yield text.slice(start)
}

const FRAME_END = '\n\n'

function characterEnd(text: string, end: number): number {
  return isHighSurrogate(text.charCodeAt(end - 1)) ? end - 1 : end
}

export function* bytePieces(bytes: Buffer): Generator<Uint8Array> {
  for (let start = 0; start < bytes.length; start += PIECE) yield bytes.subarray(start, start + PIECE)
}

/**
 * Ends a response. If the client does not read the rest in time, then the connection is cut.
 *
 * @param end.onSlow Called before the cut
 * @param end.encoding Encoding of the text. `latin1` is faster for plain ASCII. Default: utf8
 */
export function endWithin(
  res: ServerResponse,
  ms: number,
  text = '',
  end: { readonly onSlow?: (error: ServiceError) => void; readonly encoding?: BufferEncoding | undefined } = {},
): void {
  res.end(text, end.encoding ?? 'utf8')
  // In most cases the kernel has already accepted all bytes, so no time limit is needed.
  if (res.writableLength === 0 || res.destroyed) return
  const timer = setTimeout(() => {
    end.onSlow?.(tooSlow())
    res.destroy()
  }, ms)
  res.once('close', () => clearTimeout(timer))
}

function untilDrained(res: ServerResponse, slowReaderMs: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer)
      res.off('drain', onDrain).off('close', onDrain)
    }
    const onDrain = () => {
      stop()
      resolve()
    }
    const timer = setTimeout(() => {
      stop()
      reject(tooSlow())
    }, slowReaderMs)
    res.once('drain', onDrain).once('close', onDrain)
  })
}

function tooSlow(): ServiceError {
  return new ServiceError('slow_reader', 'The client read the response too slowly, so the connection is closed.')
}

/*
 * Server-sent events (WHATWG HTML, section 9.2). Events of OpenAI have no name, and a stream ends with `[DONE]`. Events
 * of Anthropic have names (docs/internals/protocol.md, Event streams).
 */

export function sseText({ id, event, data }: Frame): string {
  if (event === undefined) return `data: ${data}\n\n`
  const text = `event: ${event}\ndata: ${data}\n\n`
  return id === undefined ? text : `id: ${id}\n${text}`
}

export const SSE_END: Readonly<Record<WireFormat, string>> = { openai: 'data: [DONE]\n\n', anthropic: '' }

/** Keep-alive for streams without output, so that proxies do not close an idle connection. */
export const SSE_KEEP_ALIVE: Readonly<Record<WireFormat, string>> = {
  openai: ': keep-alive\n\n',
  anthropic: 'event: ping\ndata: {"type":"ping"}\n\n',
}

export function failureFrame(error: ServiceError, format: WireFormat, requestId: string): Frame {
  const data = JSON.stringify(errorBody(error, format, requestId))
  return format === 'anthropic' ? { event: 'error', data } : { data }
}

/**
 * Last frame of a stream of job events that fails. The frame is no event of the job, so it has no id. A client that reconnects receives the error as
 * an HTTP status.
 */
function historyFailureFrame(error: ServiceError): Frame {
  return { event: 'error', data: JSON.stringify({ type: 'error', ...openaiErrorBody(error) }) }
}
