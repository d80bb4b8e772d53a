/** Bytes of a response head. */
const HEAD_BYTES_MAX = 64 * 1024

/** Where one response goes. */
export interface ResponseSink {
  onBody(bytes: Buffer): void
  onEnd(status: number): void
}

/**
 * Reads HTTP/1.1 responses from a connection, one after the other, as far as a driver needs it: status, and bodies by
 * `content-length` or in chunks (RFC 9112 §6, §7.1). A client library would cost more than some of what is measured.
 */
export class ResponseReader {
  readonly #sink: ResponseSink
  #state: 'head' | 'body' | 'size' | 'line' | 'trailer' = 'head'
  #rest: Buffer = Buffer.alloc(0)
  #status = 0
  #isChunked = false
  /** Bytes of the body, or of the chunk, still to come. */
  #left = 0

  constructor(sink: ResponseSink) {
    this.#sink = sink
  }

  /** @throws Error when the bytes are no such response */
  feed(bytes: Buffer): void {
    const all = this.#rest.length > 0 ? Buffer.concat([this.#rest, bytes]) : bytes
    let at = 0
    for (let next = this.#step(all, at); next > at; next = this.#step(all, at)) at = next
    this.#rest = all.subarray(at)
    if (this.#rest.length > HEAD_BYTES_MAX) throw new Error('the response is not HTTP/1.1')
  }

  /** Reads one piece. @returns Where the next one begins; `at` when more bytes are needed. */
  #step(all: Buffer, at: number): number {
    if (at === all.length) return at
    if (this.#state === 'body') return this.#body(all, at)
    const end = this.#state === 'head' ? '\r\n\r\n' : '\r\n'
    const found = all.indexOf(end, at)
    if (found < 0) return at
    const text = all.toString('latin1', at, found)
    if (this.#state === 'head') this.#head(text.toLowerCase())
    else if (this.#state === 'size') this.#size(text)
    else if (this.#state === 'line') this.#state = 'size'
    else this.#end()
    return found + end.length
  }

  #head(head: string): void {
    this.#status = Number(head.slice('http/1.1 '.length, 'http/1.1 200'.length))
    this.#isChunked = head.includes('\r\ntransfer-encoding: chunked')
    this.#left = Number(/\r\ncontent-length: *(\d+)/.exec(head)?.[1] ?? 0)
    if (this.#isChunked) this.#state = 'size'
    else if (this.#left > 0) this.#state = 'body'
    else this.#end()
  }

  #size(text: string): void {
    this.#left = Number.parseInt(text, 16)
    if (Number.isNaN(this.#left)) throw new Error('the response has a chunk without a size')
    this.#state = this.#left === 0 ? 'trailer' : 'body'
  }

  #body(all: Buffer, at: number): number {
    const next = Math.min(all.length, at + this.#left)
    this.#left -= next - at
    this.#sink.onBody(all.subarray(at, next))
    if (this.#left === 0 && this.#isChunked) this.#state = 'line'
    else if (this.#left === 0) this.#end()
    return next
  }

  #end(): void {
    this.#state = 'head'
    this.#sink.onEnd(this.#status)
  }
}
