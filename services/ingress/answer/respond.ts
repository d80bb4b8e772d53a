import type { Call } from '#services/ingress/call.ts'
import { failureFrame, SSE_END, SSE_KEEP_ALIVE, sseText } from '#services/ingress/reply/sse.ts'
import { ServiceError } from '#shared/error.ts'
import type { AttachedJob } from '#shared/jobs/attached/attached-job.ts'
import type { AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { jsonTextOf } from '#shared/protocols/json-text.ts'
import { errorBody } from './errors-http.ts'
import { bytePieces, endWithin, framePieces, writePieces } from './slow-reader.ts'

/** How long a stream's head waits for the first output (docs/protocol.md, Failures after the head). */
const HEAD_WAIT_MS = 5_000
/** Silence after which a stream says that it lives (docs/protocol.md, Event streams). */
const KEEP_ALIVE_MS = 15_000
/** When a whole answer's head is sent early and kept alive with newlines (docs/protocol.md, Long answers). */
const EARLY_HEAD_MS = 240_000
/** Characters of a whole answer that are written at once. */
const SMALL_BODY = 16 * 1024
/** How long the last words to a slow reader may take before its socket is cut. */
const LAST_WORDS_MS = 1_000

const JSON_TYPE = 'application/json'
const TEXT_TYPE = 'text/plain; charset=utf-8'

/** Writes the head of an event stream (docs/protocol.md, Event streams). */
function writeStreamHead(call: Call): void {
  const { res } = call
  res.setHeader('openai-processing-ms', Math.round(performance.now() - call.startedAt))
  res.writeHead(200, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-cache, no-transform',
    'x-accel-buffering': 'no',
  })
  res.flushHeaders()
}

/** Where the output of a job comes from: {@link AttachedJob}, or what a durable one recorded. */
interface Output {
  /** Set once there was output that a caller would notice. */
  readonly firstOutputAtMs: number | undefined
  /** Deltas, at least one; undefined after the last. @throws ServiceError When the job failed */
  next(): Promise<unknown[] | undefined>
}

/**
 * Streams a job's deltas to the caller as they come, until its end.
 *
 * Errors before the first output are thrown, so that they become HTTP errors; later ones become the protocol's error
 * frame. Memory stays bounded: while the caller reads slowly nothing is taken from the job, whose buffer then pauses the
 * worker; after `slowReaderMs` without progress the connection is closed.
 */
export async function respondStream(
  call: Call,
  job: Output,
  answer: AnswerStream,
  onDelta: (delta: unknown) => void,
  slowReaderMs: number,
): Promise<void> {
  const stream = new EventStream(call, slowReaderMs)
  try {
    for (;;) {
      const deltas = await job.next()
      if (call.res.destroyed) return
      if (!deltas) break
      let text = ''
      for (const delta of deltas) {
        onDelta(delta)
        text += textOf(answer.push(delta))
      }
      // What comes before output (the start of a message) waits for it: the attempt may still fail cleanly.
      await stream.write(text, job.firstOutputAtMs !== undefined)
    }
    await stream.write(textOf(answer.end()) + SSE_END[call.format], true)
    endWithin(call.res, slowReaderMs, '', call.noteFailure)
  } catch (error) {
    if (!call.res.headersSent) throw error
    stream.fail(ServiceError.from(error))
  } finally {
    stream.close()
  }
}

function textOf(frames: readonly Frame[]): string {
  let text = ''
  for (const frame of frames) text += sseText(frame)
  return text
}

/** The response of one stream: head held back, keep-alives, and waiting for a slow reader. */
class EventStream {
  readonly #call: Call
  readonly #slowReaderMs: number
  readonly #headTimer: NodeJS.Timeout
  #keepAlive: NodeJS.Timeout | undefined
  #held = ''

  constructor(call: Call, slowReaderMs: number) {
    this.#call = call
    this.#slowReaderMs = slowReaderMs
    this.#headTimer = setTimeout(() => this.#open(), HEAD_WAIT_MS)
  }

  async write(text: string, isOutput: boolean): Promise<void> {
    const { res } = this.#call
    this.#held += text
    if (!res.headersSent && !isOutput) return
    this.#open()
    const held = this.#held
    this.#held = ''
    this.#keepAlive?.refresh()
    await writePieces(res, framePieces(held), this.#slowReaderMs)
  }

  fail(error: ServiceError): void {
    const patienceMs = error.code === 'slow_reader' ? LAST_WORDS_MS : this.#slowReaderMs
    const { res, format, requestId, noteFailure } = this.#call
    noteFailure(error)
    endWithin(res, patienceMs, this.#held + sseText(failureFrame(error, format, requestId)))
  }

  close(): void {
    clearTimeout(this.#headTimer)
    clearInterval(this.#keepAlive)
  }

  #open(): void {
    const { res, format } = this.#call
    if (res.headersSent || res.destroyed) return
    clearTimeout(this.#headTimer)
    writeStreamHead(this.#call)
    this.#keepAlive = setInterval(() => {
      if (!res.writableNeedDrain && !res.writableEnded) res.write(SSE_KEEP_ALIVE[format])
    }, KEEP_ALIVE_MS)
  }
}

/** Answers with the whole result of a job. */
export async function respondWhole(
  call: Call,
  job: AttachedJob,
  encode: (deltas: unknown[]) => unknown,
  slowReaderMs: number,
  isJson: boolean,
): Promise<void> {
  const collect = async () => {
    const all: unknown[] = []
    // To the very end: a failure that follows output is told after it.
    for (let deltas = await job.next(); deltas; deltas = await job.next()) all.push(...deltas)
    return encode(all)
  }
  await respondBody(call, collect, slowReaderMs, isJson)
}

/**
 * Answers with JSON once it is there; a string is text (transcripts as text, srt and vtt).
 *
 * JSON that takes longer than four minutes gets its head early and newlines, which it allows before the value; a failure
 * after that can only be told inside the body (docs/protocol.md, Long answers).
 */
export async function respondBody(
  call: Call,
  get: () => Promise<unknown>,
  slowReaderMs: number,
  isJson = true,
): Promise<void> {
  const { res } = call
  const early = isJson ? keepWaiting(call) : undefined
  let body: string
  let type = JSON_TYPE
  try {
    const value = await get()
    if (res.destroyed) return
    if (typeof value === 'string') type = TEXT_TYPE
    body = typeof value === 'string' ? value : jsonTextOf(value)
  } catch (error) {
    if (!res.headersSent) throw error
    const failure = ServiceError.from(error)
    call.noteFailure(failure)
    body = JSON.stringify(errorBody(failure, call.format, call.requestId))
  } finally {
    early?.stop()
  }
  if (!res.headersSent) {
    res.setHeader('openai-processing-ms', Math.round(performance.now() - call.startedAt))
    res.writeHead(200, { 'content-type': type, 'content-length': Buffer.byteLength(body) })
  }
  await sendBody(call, body, slowReaderMs)
}

async function sendBody({ res, noteFailure }: Call, body: string, slowReaderMs: number): Promise<void> {
  // A text that is ended with leaves in one packet together with its head.
  if (body.length <= SMALL_BODY) return endWithin(res, slowReaderMs, body, noteFailure)
  try {
    await writePieces(res, bytePieces(Buffer.from(body)), slowReaderMs)
    endWithin(res, slowReaderMs, '', noteFailure)
  } catch (error) {
    // Too slow; in the middle of a JSON value nothing can be said.
    noteFailure(ServiceError.from(error))
    res.destroy()
  }
}

function keepWaiting(call: Call): { stop(): void } {
  const { res } = call
  let newline: NodeJS.Timeout | undefined
  const head = setTimeout(() => {
    res.writeHead(200, { 'content-type': JSON_TYPE })
    res.write('\n')
    newline = setInterval(() => res.write('\n'), KEEP_ALIVE_MS)
  }, EARLY_HEAD_MS)
  return {
    stop() {
      clearTimeout(head)
      clearInterval(newline)
    },
  }
}
