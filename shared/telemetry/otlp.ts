/*
 * Exports spans over OTLP/HTTP in the Protobuf encoding (opentelemetry-proto, `ExportTraceServiceRequest`).
 *
 * 1. A span is encoded into the current batch when it ends. A waiting span is therefore a few hundred bytes, without references to its job.
 * 2. A batch is sent when it is full, or after the schedule delay. One request runs at a time.
 * 3. If the collector is unreachable or overloaded, then the batch is retried with growing delays. Meanwhile further spans wait.
 * 4. If too many spans wait, or if the last try fails, then spans are dropped and counted. Calls never wait for traces.
 *
 * The length of a nested message is written as a varint of a fixed size of three bytes, which every Protobuf parser accepts. The length is filled in
 * after the content, so no second buffer is needed.
 */

import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import type { TracesConfig } from '#shared/config/traces.ts'
import { backoffMs } from '#shared/lib/backoff.ts'
import type { Log } from '#shared/log/log.ts'
import { type Attributes, type EndedSpan, SPAN_KINDS, type SpanSink, Tracer, tracing } from './tracing.ts'

const TRIES_MAX = 5
const BACKOFF = { baseMs: 500, maxMs: 8_000 }
const RETRIED_STATUSES = new Set([429, 502, 503, 504])
const CLOSE_MS = 2_000
const WARN_INTERVAL_MS = 60_000
/**
 * Maximum characters of a text attribute, and maximum number of texts in a list. These limits keep a span below 2 MiB, so that three bytes are
 * sufficient for its length.
 */
const VALUE_CHARS_MAX = 32 * 1024
const VALUES_MAX = 16
/** Size in bytes at which a batch is full and is sent. */
const BATCH_BYTES_MAX = 1024 * 1024
const BATCH_BYTES_START = 64 * 1024
const QUEUE_BYTES_MAX = 64 * 1024 * 1024

export interface OtlpOptions extends TracesConfig {
  readonly version: string
  readonly log: Log
}

export class OtlpExporter implements SpanSink {
  readonly #options: OtlpOptions
  readonly #resource: Buffer
  readonly #scope: Buffer
  readonly #full: Batch[] = []
  #current = new Batch()
  /** Number of spans that wait or are being sent. */
  #held = 0
  #timer: NodeJS.Timeout | undefined
  #sending: Promise<void> | undefined
  #warnedAt = Number.NEGATIVE_INFINITY
  readonly #closing = new AbortController()
  #dropped = 0
  readonly tracer: Tracer

  constructor(options: OtlpOptions) {
    this.#options = options
    this.tracer = new Tracer(this, options.sampling, options.hasContent)
    const resource = new Writer(BATCH_BYTES_START)
    const start = resource.begin(TAG.resourceSpans.resource)
    resource.attributes(TAG.resource.attributes, options.resource)
    resource.end(start)
    this.#resource = resource.written
    const scope = new Writer(BATCH_BYTES_START)
    const begin = scope.begin(TAG.scopeSpans.scope)
    scope.text(TAG.scope.name, 'sluice')
    scope.text(TAG.scope.version, options.version)
    scope.end(begin)
    this.#scope = scope.written
  }

  /** Number of spans that were lost, because the queue was full or the collector did not accept them. */
  get dropped(): number {
    return this.#dropped
  }

  add(span: EndedSpan): void {
    const { queueSpansMax, batchSpansMax, scheduleDelayMs } = this.#options
    if (this.#held >= queueSpansMax || this.#full.length * BATCH_BYTES_MAX >= QUEUE_BYTES_MAX)
      return this.#drop(1, 'queue full')
    this.#held++
    this.#current.add(span)
    if (this.#current.spans >= batchSpansMax || this.#current.at >= BATCH_BYTES_MAX) {
      this.#full.push(this.#current)
      this.#current = new Batch()
      this.#sending ??= this.#send()
    } else this.#timer ??= setTimeout(() => this.#flush(), scheduleDelayMs).unref()
  }

  /** Sends the waiting spans, for at most two seconds. If a span ends after this call, then it is dropped. */
  async close(): Promise<void> {
    this.#flush()
    const deadline = setTimeout(() => this.#closing.abort(), CLOSE_MS)
    await this.#sending
    clearTimeout(deadline)
    clearTimeout(this.#timer)
    if (tracing.tracer === this.tracer) tracing.tracer = undefined
  }

  #flush(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#current.spans > 0) {
      this.#full.push(this.#current)
      this.#current = new Batch()
    }
    if (this.#full.length > 0) this.#sending ??= this.#send()
  }

  /** Sends all full batches. Never rejects. */
  async #send(): Promise<void> {
    for (let batch = this.#full.shift(); batch; batch = this.#full.shift()) {
      const failure = await this.#sendOne(batch)
      this.#held -= batch.spans
      if (failure !== undefined) this.#drop(batch.spans, failure)
    }
    this.#sending = undefined
  }

  /**
   * Sends one batch.
   *
   * @returns The reason why the batch was not accepted. Undefined if it was accepted
   */
  async #sendOne(batch: Batch): Promise<string | undefined> {
    const { url, headers, isCompressed, timeoutMs } = this.#options
    const body = this.#requestOf(batch.written)
    const sent = isCompressed ? await promisify(gzip)(body) : body
    const all = {
      ...{ 'content-type': 'application/x-protobuf', ...(isCompressed && { 'content-encoding': 'gzip' }) },
      ...headers,
    }
    for (let tries = 1; ; tries++) {
      const signal = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(timeoutMs)])
      const answer = await fetch(url, { method: 'POST', headers: all, body: sent, signal, redirect: 'error' }).catch(
        (error: unknown) => error as Error & { cause?: { code?: string } },
      )
      if (answer instanceof Response) await answer.body?.cancel().catch(() => undefined)
      if (answer instanceof Response && answer.ok) return undefined
      const failure = answer instanceof Response ? `status ${answer.status}` : (answer.cause?.code ?? answer.name)
      const mayRetry = !(answer instanceof Response) || RETRIED_STATUSES.has(answer.status)
      if (!mayRetry || tries >= TRIES_MAX || this.#closing.signal.aborted) return failure
      const retryAfterMs = answer instanceof Response ? Number(answer.headers.get('retry-after') ?? 0) * 1_000 : 0
      const waitMs = Math.max(backoffMs(tries, BACKOFF, Math.random()), Math.min(retryAfterMs || 0, BACKOFF.maxMs))
      await delay(waitMs, undefined, { signal: this.#closing.signal, ref: false }).catch(() => {
        // The delay is interrupted only when the exporter closes. The last try of the batch then follows at once.
      })
    }
  }

  #requestOf(spans: Buffer): Buffer {
    const scopeSpans = lengthOf(TAG.resourceSpans.scopeSpans, this.#scope.length + spans.length)
    const length = this.#resource.length + scopeSpans.length + this.#scope.length + spans.length
    const resourceSpans = lengthOf(TAG.request.resourceSpans, length)
    return Buffer.concat([resourceSpans, this.#resource, scopeSpans, this.#scope, spans])
  }

  #drop(spans: number, reason: string): void {
    this.#dropped += spans
    if (performance.now() - this.#warnedAt < WARN_INTERVAL_MS) return
    this.#warnedAt = performance.now()
    this.#options.log.warn(
      { url: shownUrl(this.#options.url), reason, dropped_spans: this.#dropped },
      'traces could not be exported; spans are dropped and calls continue',
    )
  }
}

/** Protobuf tags of the fields in opentelemetry-proto: the field number times eight, plus the wire type. */
const TAG = {
  request: { resourceSpans: 0x0a },
  resourceSpans: { resource: 0x0a, scopeSpans: 0x12 },
  resource: { attributes: 0x0a },
  scopeSpans: { scope: 0x0a, spans: 0x12 },
  scope: { name: 0x0a, version: 0x12 },
  span: { traceId: 0x0a, id: 0x12, parentId: 0x22, name: 0x2a, kind: 0x30, start: 0x39, end: 0x41, attributes: 0x4a },
  spanMore: { links: 0x6a, status: 0x7a },
  link: { traceId: 0x0a, id: 0x12 },
  status: { message: 0x12, code: 0x18 },
  keyValue: { key: 0x0a, value: 0x12 },
  anyValue: { string: 0x0a, bool: 0x10, int: 0x18, double: 0x21, array: 0x2a },
  arrayValue: { values: 0x0a },
} as const
const STATUS_ERROR = 2
const LENGTH_BYTES = 3
/** Maximum bytes of a span without its names and attributes, and maximum bytes of a number with its Protobuf tags. */
const SPAN_BYTES = 128
const NUMBER_BYTES = 32
const UTF8_BYTES_MAX = 3
/** An ASCII text of this many characters or more has a length that takes more than one byte in Protobuf. */
const SHORT_CHARS_MAX = 128

/** Writes Protobuf fields into a growing buffer. */
class Writer {
  at = 0
  bytes: Buffer

  constructor(size: number) {
    this.bytes = Buffer.allocUnsafe(size)
  }

  get written(): Buffer {
    return this.bytes.subarray(0, this.at)
  }

  reserve(count: number): void {
    if (this.at + count <= this.bytes.length) return
    const larger = Buffer.allocUnsafe(Math.max(this.bytes.length * 2, this.at + count))
    this.bytes.copy(larger, 0, 0, this.at)
    this.bytes = larger
  }

  /**
   * Begins a nested message, whose length is not known yet.
   *
   * @returns The position at which {@link end} must write the length
   */
  begin(tag: number): number {
    this.reserve(1 + LENGTH_BYTES)
    this.bytes[this.at] = tag
    this.at += 1 + LENGTH_BYTES
    return this.at
  }

  end(start: number): void {
    const length = this.at - start
    this.bytes[start - 3] = (length & 0x7f) | 0x80
    this.bytes[start - 2] = ((length >> 7) & 0x7f) | 0x80
    this.bytes[start - 1] = length >> 14
  }

  text(tag: number, text: string): void {
    const { length } = text
    this.reserve(1 + LENGTH_BYTES + length * UTF8_BYTES_MAX)
    // Nearly all texts are short and ASCII. For such a text, a loop is several times faster than `Buffer.write`.
    if (length < SHORT_CHARS_MAX && this.#ascii(text)) {
      this.bytes[this.at] = tag
      this.bytes[this.at + 1] = length
      this.at += 2 + length
      return
    }
    const start = this.begin(tag)
    this.at += this.bytes.write(text, start)
    this.end(start)
  }

  /**
   * Writes a short ASCII text after two free bytes, which the caller fills with tag and length.
   *
   * @returns False if the text has other characters
   */
  #ascii(text: string): boolean {
    const { bytes } = this
    for (let from = 0, to = this.at + 2; from < text.length; from++, to++) {
      const code = text.charCodeAt(from)
      if (code > 0x7f) return false
      bytes[to] = code
    }
    return true
  }

  hex(tag: number, hex: string): void {
    const { bytes } = this
    bytes[this.at++] = tag
    bytes[this.at++] = hex.length / 2
    for (let from = 0; from < hex.length; from += 2)
      bytes[this.at++] = (nibbleOf(hex.charCodeAt(from)) << 4) | nibbleOf(hex.charCodeAt(from + 1))
  }

  varint(tag: number, value: number): void {
    this.bytes[this.at++] = tag
    let rest = value
    for (; rest > 0x7f; rest = Math.floor(rest / 128)) this.bytes[this.at++] = (rest % 128) | 0x80
    this.bytes[this.at++] = rest
  }

  double(tag: number, value: number): void {
    this.bytes[this.at] = tag
    this.at = this.bytes.writeDoubleLE(value, this.at + 1)
  }

  /**
   * Writes a time in Unix ms as nanoseconds (fixed64). Nanoseconds exceed 2^53, so the upper and the lower half are
   * computed separately.
   */
  time(tag: number, ms: number): void {
    const seconds = Math.floor(ms / 1_000)
    const high = Math.floor(seconds / 65_536) * 1e9
    const low = (high % 65_536) * 65_536 + (seconds % 65_536) * 1e9 + Math.round((ms - seconds * 1_000) * 1e3) * 1e3
    this.bytes[this.at] = tag
    this.bytes.writeUInt32LE(low % 2 ** 32, this.at + 1)
    this.at = this.bytes.writeUInt32LE(Math.floor(high / 65_536) + Math.floor(low / 2 ** 32), this.at + 5)
  }

  attributes(tag: number, all: Attributes): void {
    for (const key in all) {
      const value = all[key]
      if (value === undefined) continue
      const start = this.begin(tag)
      this.text(TAG.keyValue.key, key)
      this.#value(TAG.keyValue.value, value)
      this.end(start)
    }
  }

  #value(tag: number, value: NonNullable<Attributes[string]>): void {
    const start = this.begin(tag)
    this.reserve(NUMBER_BYTES)
    if (typeof value === 'string') this.text(TAG.anyValue.string, value.slice(0, VALUE_CHARS_MAX))
    else if (typeof value === 'boolean') this.varint(TAG.anyValue.bool, value ? 1 : 0)
    else if (typeof value !== 'number') {
      const array = this.begin(TAG.anyValue.array)
      for (const one of value.slice(0, VALUES_MAX)) this.#value(TAG.arrayValue.values, one)
      this.end(array)
    } else if (Number.isSafeInteger(value) && value >= 0) this.varint(TAG.anyValue.int, value)
    else this.double(TAG.anyValue.double, value)
    this.end(start)
  }
}

/** Returns the value of a lower-case hexadecimal digit, given by its character code. */
function nibbleOf(code: number): number {
  return code < 0x3a ? code - 0x30 : code - 0x57
}

class Batch extends Writer {
  spans = 0

  constructor() {
    super(BATCH_BYTES_START)
  }

  add({ traceId, id, parentId, name, kind, startMs, endMs, attributes, links, isError }: EndedSpan): void {
    this.spans++
    const span = this.begin(TAG.scopeSpans.spans)
    this.reserve(SPAN_BYTES)
    this.hex(TAG.span.traceId, traceId)
    this.hex(TAG.span.id, id)
    if (parentId !== undefined) this.hex(TAG.span.parentId, parentId)
    this.varint(TAG.span.kind, SPAN_KINDS[kind])
    this.time(TAG.span.start, startMs)
    this.time(TAG.span.end, endMs)
    this.text(TAG.span.name, name)
    for (const some of attributes) if (some) this.attributes(TAG.span.attributes, some)
    for (const link of links) {
      const start = this.begin(TAG.spanMore.links)
      this.reserve(SPAN_BYTES)
      this.hex(TAG.link.traceId, link.traceId)
      this.hex(TAG.link.id, link.id)
      this.end(start)
    }
    if (isError) {
      const status = this.begin(TAG.spanMore.status)
      this.reserve(NUMBER_BYTES)
      this.varint(TAG.status.code, STATUS_ERROR)
      for (const some of attributes) {
        const code = some?.['error.type']
        if (typeof code === 'string') this.text(TAG.status.message, code)
      }
      this.end(status)
    }
    this.end(span)
  }
}

function lengthOf(tag: number, length: number): Buffer {
  const writer = new Writer(NUMBER_BYTES)
  writer.varint(tag, length)
  return writer.written
}

/**
 * Starts to record traces of this process.
 *
 * @returns The exporter, which must be closed
 */
export function openTracing(options: OtlpOptions): OtlpExporter {
  const exporter = new OtlpExporter(options)
  tracing.tracer = exporter.tracer
  options.log.info({ url: shownUrl(options.url), sampling: options.sampling }, 'exporting traces')
  return exporter
}

/** Returns a URL for logs, without login and query, which may contain secrets. */
function shownUrl(url: string): string {
  const { origin, pathname } = new URL(url)
  return origin + pathname
}
