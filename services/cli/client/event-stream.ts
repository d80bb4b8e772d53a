import { setTimeout as delay } from 'node:timers/promises'
import { createParser } from 'eventsource-parser'
import { CommandError, EXIT, plain } from '#services/cli/text/output.ts'
import { type Backoff, backoffMs } from '#shared/lib/backoff.ts'
import { type HttpClient, type HttpResponse, readApiError } from './http.ts'
import { isFinalEvent, JobEventView } from './job.ts'
import { jobPath } from './jobs-api.ts'

/** Maximum consecutive connections without a new event. With the delays between them, the client gives up after about a minute. */
const TRIES_MAX = 12
/**
 * Maximum connection attempts before the first response, about 8 s in total. Several attempts give the service time to start. With more
 * attempts, the user would wait longer for the report of a wrong URL.
 */
const FIRST_TRIES_MAX = 6
const RECONNECT: Backoff = { baseMs: 250, maxMs: 10_000 }
const DELAY_MS_MAX = 30_000
/** Maximum size of one event, which may contain a whole job with its result. */
const EVENT_CHARACTERS_MAX = 64 * 1024 * 1024
const EXCERPT_CHARS_MAX = 200

export interface FollowOptions {
  /** Sequence number of the last event that the caller has received. With 0, all events are yielded. */
  readonly after: number
  readonly signal: AbortSignal
  /** Called when the connection is lost, before the delay of the next attempt. */
  readonly onReconnect?: (reason: string, delayMs: number) => void
}

/**
 * Follows the event stream of a job to its final event and reconnects as needed.
 *
 * Each event is yielded exactly once, in order. A lost connection resumes after the last received event (`Last-Event-ID`). Duplicates are dropped,
 * and a gap in the sequence numbers counts as a lost connection. If `after` is the final event, then the generator returns without an event.
 *
 * @throws CommandError for an error response that a retry cannot fix, after {@link TRIES_MAX} connections without a new event, or after
 * {@link FIRST_TRIES_MAX} attempts without any response
 */
export async function* followEvents(http: HttpClient, jobId: string, options: FollowOptions) {
  const position: Position = { last: options.after, retryMs: 0, isReached: false }
  for (let tries = 1; ; tries++) {
    let lost: ConnectionLost
    try {
      for await (const event of readStream(http, jobId, position, options.signal)) {
        tries = 0
        yield event
        if (isFinalEvent(event)) return
      }
      return
    } catch (error) {
      options.signal.throwIfAborted()
      lost = connectionLostFrom(error)
    }
    // `lost` wraps the original error. The original error is thrown, because only its message ("cannot reach …")
    // contains the remedy.
    if (!position.isReached && tries >= FIRST_TRIES_MAX) throw lost.cause
    if (tries >= TRIES_MAX) throw gaveUp(jobId, position.last, lost)
    const delayMs = lost.delayMs ?? delayOf(tries, position)
    options.onReconnect?.(lost.message, Math.min(delayMs, DELAY_MS_MAX))
    await delay(Math.min(delayMs, DELAY_MS_MAX), undefined, { signal: options.signal })
  }
}

interface Position {
  last: number
  /** Minimum reconnect delay in ms, from the `retry` field of the stream. */
  retryMs: number
  isReached: boolean
}

class ConnectionLost extends Error {
  readonly delayMs: number | undefined

  constructor(message: string, delayMs?: number, cause?: Error) {
    super(message, { cause })
    this.delayMs = delayMs
  }
}

async function* readStream(http: HttpClient, jobId: string, position: Position, signal: AbortSignal) {
  const response = await http
    .send(`${jobPath(jobId)}/events`, {
      headers: { accept: 'text/event-stream', ...(position.last > 0 && { 'last-event-id': String(position.last) }) },
      signal,
    })
    .catch((error: Error) => {
      throw new ConnectionLost(error.message, undefined, error)
    })
  position.isReached = true
  if (response.statusCode === 204) return await response.body.dump()
  if (response.statusCode !== 200) throw await streamError(response)
  let isGapExpected = false
  for await (const event of parse(response, position)) {
    const { sequence_number: seq } = event
    if (seq !== null && seq !== undefined) {
      if (seq <= position.last) continue
      if (seq > position.last + 1 && !isGapExpected) throw new ConnectionLost(`event ${position.last + 1} is missing`)
      position.last = seq
    }
    // A snapshot replaces expired events, so the sequence number of the next event may skip some numbers.
    isGapExpected = event.type === 'job.snapshot'
    yield event
    if (isFinalEvent(event)) return
  }
  throw new ConnectionLost('the connection ended before the job did')
}

/**
 * Returns the error for a response that is not a stream. For 429 and 5xx, this is a `ConnectionLost` with the delay in Retry-After, so that
 * the request is retried. For any other status, the error is final.
 */
async function streamError(response: HttpResponse): Promise<Error> {
  const error = await readApiError(response)
  if (response.statusCode < 500 && response.statusCode !== 429) return error
  const seconds = Number(response.headers['retry-after'])
  return new ConnectionLost(error.message, Number.isFinite(seconds) ? seconds * 1_000 : undefined)
}

async function* parse(response: HttpResponse, position: Position): AsyncGenerator<JobEventView> {
  const events: JobEventView[] = []
  const parser = createParser({
    maxBufferSize: EVENT_CHARACTERS_MAX,
    onEvent: ({ data }) => events.push(readEvent(data)),
    onRetry: (ms) => {
      position.retryMs = ms
    },
  })
  const decoder = new TextDecoder()
  for await (const chunk of response.body) {
    parser.feed(decoder.decode(chunk, { stream: true }))
    yield* events.splice(0)
  }
}

function readEvent(data: string): JobEventView {
  try {
    return JobEventView.parse(JSON.parse(data))
  } catch (error) {
    throw new CommandError(
      EXIT.unreachable,
      `Invalid event in the job's stream: ${plain(data.slice(0, EXCERPT_CHARS_MAX))}`,
      'Check --url or SLUICE_URL; another server or a proxy may have responded.',
      error,
    )
  }
}

/** Wraps a retryable error in a ConnectionLost. Rethrows a CommandError unchanged, because a retry does not help. */
function connectionLostFrom(error: unknown): ConnectionLost {
  if (error instanceof ConnectionLost) return error
  if (error instanceof CommandError) throw error
  return new ConnectionLost(error instanceof Error ? error.message : String(error))
}

/**
 * Returns the delay before the next attempt. After a connection that delivered an event (`tries` is 0), the delay is short. Later delays grow and
 * respect the stream's `retry` field.
 */
function delayOf(tries: number, { retryMs }: Position): number {
  return tries === 0
    ? backoffMs(1, RECONNECT, Math.random())
    : Math.max(retryMs, backoffMs(tries, RECONNECT, Math.random()))
}

function gaveUp(jobId: string, last: number, lost: ConnectionLost): CommandError {
  return new CommandError(
    EXIT.unreachable,
    `Gave up after ${TRIES_MAX} connections without a new event: ${lost.message}`,
    `The job may still be running. To resume: sluice follow ${jobId}${last > 0 ? ` --after ${last}` : ''}`,
    lost,
  )
}

/**
 * Yields the data and the comments of a stream of server-sent events.
 *
 * @throws CommandError for an event over 64 Mi characters
 */
export async function* readMessages({ body }: HttpResponse): AsyncGenerator<{ data?: string; comment?: string }> {
  const messages: { data?: string; comment?: string }[] = []
  let characters = 0
  const parser = createParser({
    onEvent: ({ data }) => messages.push({ data }),
    onComment: (comment) => messages.push({ comment }),
  })
  const decoder = new TextDecoder()
  for await (const chunk of body) {
    const text = decoder.decode(chunk as Uint8Array, { stream: true })
    characters += text.length
    if (characters > EVENT_CHARACTERS_MAX)
      throw new CommandError(
        EXIT.unreachable,
        `The service sent an event of more than ${EVENT_CHARACTERS_MAX} characters.`,
      )
    parser.feed(text)
    if (messages.length > 0) characters = 0
    yield* messages.splice(0)
  }
}
