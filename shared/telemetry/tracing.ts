/*
 * Spans of calls and jobs (docs/operate/traces.md).
 *
 * `tracing.tracer` is undefined unless an OTLP endpoint is configured. Without tracing, a line that records a span therefore costs one property read:
 *
 *     const span = tracing.tracer?.start({ name: 'attempt', kind: 'consumer', parent: job.traceparent })
 *     ...
 *     span?.end({ 'sluice.outcome': 'completed' })
 *
 * A context is a text (`context.ts`): a `traceparent` header, with `tracestate` and `baggage`. Jobs and calls carry this text in the field
 * `traceparent`, so no other code depends on the implementation of traces. A process without tracing passes contexts on unchanged.
 *
 * Spans may be recorded afterwards with explicit times, such as the queue time of a call. Code that runs for each call then only stores times. Two
 * processes can derive the same id for a span independently (`spanIdOf`). If a worker is killed, then the owner of its job records the span of the
 * attempt under this id. Child spans of the attempt therefore keep their parent.
 *
 * Rejected alternative: the SDK of OpenTelemetry for JavaScript. With five spans per call it takes 51 to 67 µs of CPU, and 14 MB in ten packages.
 * With four spans per call, this module takes 29 to 35 µs, because `otlp.ts` encodes a span once, when the span ends.
 */

import { randomFillSync } from 'node:crypto'
import { contextOf, entriesOf, type SpanContext } from './context.ts'

type AttributeValue = string | number | boolean | readonly string[]
/** Attributes of a span, by the names of the semantic conventions. Undefined values are omitted. */
export type Attributes = Readonly<Record<string, AttributeValue | undefined>>

/** Values of the enumeration `SpanKind` in OTLP. */
export const SPAN_KINDS = { internal: 1, server: 2, client: 3, producer: 4, consumer: 5 } as const

export interface SpanOptions {
  readonly name: string
  readonly kind: keyof typeof SPAN_KINDS
  /** Context of the parent span. If undefined or invalid, then the span starts a new trace. */
  readonly parent?: string | undefined
  /** Start of the span in Unix ms. Default: now. */
  readonly startMs?: number
  /** Id of the span, 16 hexadecimal digits. Default: a random id. */
  readonly id?: string
  readonly attributes?: Attributes
  /** Contexts of related spans, such as the calls that one batch serves. */
  readonly links?: readonly (string | undefined)[]
}

export interface EndedSpan {
  readonly traceId: string
  readonly id: string
  readonly parentId: string | undefined
  readonly name: string
  readonly kind: keyof typeof SPAN_KINDS
  readonly startMs: number
  readonly endMs: number
  readonly attributes: readonly (Attributes | undefined)[]
  readonly links: readonly SpanContext[]
  readonly isError: boolean
}

/** Receives each span when it has ended, for export. Must not throw. */
export interface SpanSink {
  add(span: EndedSpan): void
}

/**
 * Decides which traces are recorded. The decision depends only on the trace id, so all processes make the same decision.
 *
 * If `followsParent` is true, then the `sampled` flag of the parent decides, such as the flag in the `traceparent` header of a caller.
 */
export interface Sampling {
  readonly ratio: number
  readonly followsParent: boolean
}

export class Tracer {
  /** Whether spans may contain prompts and answers. */
  readonly hasContent: boolean
  readonly #sink: SpanSink
  readonly #sampling: Sampling

  constructor(sink: SpanSink, sampling: Sampling, hasContent = false) {
    this.#sink = sink
    this.#sampling = sampling
    this.hasContent = hasContent
  }

  /**
   * Starts a span. If the trace is not recorded, then the result is undefined for a child span. A root span is returned in any case, because its
   * context carries the decision not to record the trace. Such a root span is not exported.
   */
  start(options: SpanOptions): Span | undefined {
    const parent = contextOf(options.parent)
    const traceId = parent?.traceId ?? randomHex(16)
    const isSampled =
      parent && this.#sampling.followsParent ? parent.isSampled : isWithin(traceId, this.#sampling.ratio)
    if (isSampled) return new Span(options, traceId, parent?.id, this.#sink)
    return parent ? undefined : new Span(options, traceId, undefined, undefined)
  }
}

/** The tracer of the process. An object contains it, so that tests and start-up code can replace it. */
export const tracing: { tracer: Tracer | undefined } = { tracer: undefined }

export class Span {
  /** Context for children of this span. */
  readonly traceparent: string
  readonly #options: SpanOptions
  readonly #traceId: string
  readonly #id: string
  readonly #parentId: string | undefined
  readonly #startMs: number
  readonly #startedAt = performance.now()
  #sink: SpanSink | undefined

  constructor(options: SpanOptions, traceId: string, parentId: string | undefined, sink: SpanSink | undefined) {
    this.#options = options
    this.#traceId = traceId
    this.#id = options.id ?? randomHex(8)
    this.#parentId = parentId
    this.#startMs = options.startMs ?? Date.now()
    this.#sink = sink
    this.traceparent = `00-${traceId}-${this.#id}-${sink ? '01' : '00'}${entriesOf(options.parent)}`
  }

  /**
   * Ends the span. A second call has no effect.
   *
   * @param attributes Attributes in addition to those of the start
   * @param error Error code. If set, then the status of the span is an error
   * @param endMs Unix ms. Default: now
   */
  end(attributes?: Attributes, error?: string | null, endMs?: number): void {
    const sink = this.#sink
    if (!sink) return
    this.#sink = undefined
    const { name, kind, startMs, attributes: first, links } = this.#options
    const end = endMs ?? (startMs === undefined ? this.#startMs + performance.now() - this.#startedAt : Date.now())
    sink.add({
      ...{ traceId: this.#traceId, id: this.#id, parentId: this.#parentId, name, kind },
      startMs: this.#startMs,
      endMs: Math.max(end, this.#startMs),
      attributes: error ? [first, attributes, { 'error.type': error }] : [first, attributes],
      links: links ? links.map(contextOf).filter((context) => context !== undefined) : NO_LINKS,
      isError: Boolean(error),
    })
  }
}

/** Data of a call that its trace needs. Engines send the context to the server, then report the server and the model that answered. */
export interface CallTrace {
  /** Context of the call's span (`context.ts`), which the engine sends to the server. */
  readonly traceparent?: string | undefined
  /**
   * Called before the request is sent.
   *
   * @param server Index of the server in `base_urls` of the model
   */
  readonly onServer?: ((model: string, server: number, host: string) => void) | undefined
  /** Called once with the name of the model in the answer, which may differ from the requested name. */
  readonly onModel?: ((name: string) => void) | undefined
}

/** Facts of a model call that its span records. */
export interface ModelCall {
  /** Value of `gen_ai.operation.name`, such as chat, embeddings or transcription. */
  readonly operation: string
  readonly model: {
    readonly id: string
    readonly engine: { readonly type: string; readonly model?: string | undefined }
  }
  readonly parent: string | undefined
  readonly links?: readonly (string | undefined)[]
  readonly onServer?: CallTrace['onServer']
  /** Returns the prompt. Called only if the settings permit prompts in traces. */
  readonly input?: (() => unknown) | undefined
}

/**
 * Span of one call of a model, by the semantic conventions for generative AI of OpenTelemetry.
 *
 * The span is also the {@link CallTrace} of the call. Engines send the context of the span to the server, and report to the span which
 * server answers.
 */
export class ModelSpan {
  readonly traceparent: string
  readonly #span: Span
  readonly #startedAt = performance.now()
  readonly #hasContent: boolean
  #servers: string[] | undefined
  #firstSeconds: number | undefined
  #model: string | undefined
  readonly #finishes: string[] = []
  #usage: ModelUsage | undefined
  #text = ''

  readonly #report: ModelCall['onServer']

  private constructor(span: Span, hasContent: boolean, report: ModelCall['onServer']) {
    this.#span = span
    this.#report = report
    this.#hasContent = hasContent
    this.traceparent = span.traceparent
  }

  /** Starts the span of a model call. Undefined if the call is not traced. */
  static start({ operation, model: { id, engine }, parent, links, input, onServer }: ModelCall): ModelSpan | undefined {
    const { tracer } = tracing
    const attributes = {
      'gen_ai.operation.name': operation,
      'gen_ai.provider.name': engine.type,
      'gen_ai.request.model': engine.model ?? id,
      'sluice.model': id,
      'gen_ai.input.messages': tracer?.hasContent && input ? messagesJson(input()) : undefined,
    }
    const name = `${operation} ${engine.model ?? id}`
    const span = tracer?.start({ name, kind: 'client', parent, attributes, ...(links && { links }) })
    return span && new ModelSpan(span, tracer?.hasContent ?? false, onServer)
  }

  readonly onServer = (model: string, server: number, host: string): void => {
    this.#report?.(model, server, host)
    if (this.#servers) this.#servers.push(host)
    else this.#servers = [host]
  }

  readonly onModel = (name: string): void => {
    this.#model = name
  }

  /** Records data of an event of the engine in the span, such as the finish reason or the usage. */
  see(event: unknown): void {
    const { type, text, model, reason, usage } = event as ModelEvent
    if (type === 'start') this.#model ??= model
    else this.#firstSeconds ??= (performance.now() - this.#startedAt) / 1_000
    if (type === 'finish' && reason !== undefined) this.#finishes.push(reason)
    if (usage) this.#usage = usage
    if (this.#hasContent && type === 'text' && text !== undefined && this.#text.length < CONTENT_CHARS_MAX)
      this.#text += text
  }

  end(error?: string): void {
    const { input_tokens, output_tokens, input_token_details: details } = this.#usage ?? {}
    const [address, port] = this.#servers?.at(-1)?.split(/:(?=\d+$)/) ?? []
    const parts = [{ type: 'text', content: this.#text }]
    const output = [{ role: 'assistant', parts, finish_reason: this.#finishes[0] ?? 'error' }]
    this.#span.end(
      {
        'server.address': address,
        'server.port': port === undefined ? undefined : Number(port),
        'sluice.upstream.servers': this.#servers && this.#servers.length > 1 ? this.#servers : undefined,
        'gen_ai.response.model': this.#model,
        'gen_ai.response.finish_reasons': this.#finishes.length > 0 ? this.#finishes : undefined,
        'gen_ai.response.time_to_first_chunk': this.#firstSeconds,
        'gen_ai.usage.input_tokens': input_tokens,
        'gen_ai.usage.output_tokens': output_tokens,
        'gen_ai.usage.cache_read.input_tokens': details?.cached_tokens,
        'gen_ai.output.messages': this.#text === '' ? undefined : messagesJson(output),
      },
      error,
    )
  }
}

/** Fields of events that a span records. The events of all kinds are read through this type. */
interface ModelEvent {
  readonly type?: string
  readonly text?: string
  readonly model?: string
  readonly reason?: string
  readonly usage?: ModelUsage
}

interface ModelUsage {
  readonly input_tokens?: number
  readonly output_tokens?: number
  readonly input_token_details?: { readonly cached_tokens?: number }
}

/**
 * Maximum characters of the prompt and of the answer in a span. Must not exceed the limit of `otlp.ts`, which cuts longer values in the middle of
 * the JSON.
 */
const CONTENT_CHARS_MAX = 32 * 1024
const PARTS_MAX = 64
const TEXT_CHARS_MIN = 16

/**
 * Returns messages as JSON of at most {@link CONTENT_CHARS_MAX} characters, which is always complete JSON. Long texts are cut and end with `…`. If
 * the JSON is still too long, then only the newest messages remain.
 */
export function messagesJson(messages: unknown): string {
  const all = Array.isArray(messages) ? messages : [messages]
  const kept: string[] = []
  let left = CONTENT_CHARS_MAX - '[]'.length
  for (let at = all.length - 1; at >= 0; at--) {
    const text = boundedJson(all[at] ?? null, left - ','.length)
    if (text === undefined) break
    kept.push(text)
    left -= text.length + ','.length
  }
  return `[${kept.toReversed().join(',')}]`
}

function boundedJson(value: unknown, charsMax: number): string | undefined {
  for (let textMax = charsMax; textMax >= TEXT_CHARS_MIN; textMax = Math.floor(textMax / 2)) {
    const json = JSON.stringify(value, (_name, part: unknown) => {
      if (Array.isArray(part)) return part.slice(0, PARTS_MAX)
      return typeof part === 'string' && part.length > textMax ? `${part.slice(0, textMax)}…` : part
    })
    if (json.length <= charsMax) return json
  }
  return undefined
}

const NO_LINKS: readonly SpanContext[] = []

/** Returns the id of the span of an attempt. The id is derived from job and attempt, so the worker and the owner of the job compute the same id. */
export function spanIdOf(jobId: string, attempt: number): string {
  // The id combines two hashes of 32 bits: FNV-1a, and a multiplicative hash. Job ids are random, so the result is unique within a trace.
  const text = `${jobId}:${attempt}`
  let [a, b] = [0x811c9dc5, 0x9e3779b9]
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    a = Math.imul(a ^ code, 0x01000193)
    b = Math.imul(b ^ code, 0x85ebca6b) + (b >>> 13)
  }
  return (a >>> 0 || 1).toString(16).padStart(8, '0') + (b >>> 0).toString(16).padStart(8, '0')
}

/** Fields of a job that are recorded in the spans of its attempts. */
export interface TracedJob {
  readonly id: string
  readonly attempt: number
  readonly pool: string
  readonly kind: string
  readonly tenant: string
  readonly model: string
  readonly traceparent?: string | null | undefined
}

/**
 * Starts the span of an attempt. Undefined if the job is not traced.
 *
 * @param startMs Unix ms. Default: now
 */
export function startAttempt(job: TracedJob, attributes: Attributes, startMs?: number): Span | undefined {
  const { id, attempt, pool, kind, tenant, model, traceparent } = job
  return tracing.tracer?.start({
    ...{ name: `attempt ${kind}`, kind: 'consumer', parent: traceparent ?? undefined, id: spanIdOf(id, attempt) },
    attributes: {
      ...{ 'sluice.job.id': id, 'sluice.attempt': attempt, 'sluice.pool': pool, 'sluice.project': tenant },
      ...{ 'sluice.kind': kind, 'sluice.model': model },
      ...attributes,
    },
    ...(startMs !== undefined && { startMs }),
  })
}

/** Returns the context of the span of an attempt, in the trace of its job. Undefined if the job has no valid context. */
export function attemptContext(traceparent: string | null | undefined, jobId: string, attempt: number) {
  const context = contextOf(traceparent)
  const flags = context?.isSampled ? '01' : '00'
  return context && `00-${context.traceId}-${spanIdOf(jobId, attempt)}-${flags}${entriesOf(traceparent)}`
}

/**
 * Whether a trace is recorded. The last 56 bits of a trace id are random (W3C Trace Context, level 2). Read as a fraction of 1, they must be below
 * the ratio.
 */
function isWithin(traceId: string, ratio: number): boolean {
  return ratio >= 1 || Number.parseInt(traceId.slice(-14), 16) / 2 ** 56 < ratio
}

const POOL_BYTES = 8 * 1024
const pool = Buffer.alloc(POOL_BYTES)
let used = POOL_BYTES

/** Random bytes are generated for many ids in one call, because each call of the generator costs a microsecond. */
function randomHex(bytes: number): string {
  if (used + bytes > POOL_BYTES) {
    randomFillSync(pool)
    used = 0
  }
  used += bytes
  return pool.toString('hex', used - bytes, used)
}
