import { setTimeout as delay } from 'node:timers/promises'
import { createParser } from 'eventsource-parser'
import { CommandError, EXIT } from '#services/cli/failure.ts'
import { plain } from '#services/cli/text/output.ts'
import { type Backoff, backoffMs } from '#shared/backoff.ts'
import { type Answer, type HttpClient, refusalOf } from './http.ts'
import { isLast, JobEventView } from './job.ts'
import { pathOf } from './jobs-api.ts'

/** Connections in a row that may bring nothing new before the tool gives up; about a minute with the delays between. */
const TRIES_MAX = 12
/** The same while nobody has answered yet: the address may be wrong, or the service is just starting; some seconds. */
const FIRST_TRIES_MAX = 6
const RECONNECT: Backoff = { baseMs: 250, maxMs: 10_000 }
/** Longest wait the service may ask for between two connections. */
const DELAY_MS_MAX = 30_000
/** An event may hold a whole job with its result. */
const EVENT_CHARACTERS_MAX = 64 * 1024 * 1024
/** Of something that is not understood. */
const SHOWN_MAX = 200

/** Where to begin, and what the caller wants to hear. */
export interface FollowOptions {
  /** Number of the last event the caller has; 0: all of them. */
  readonly after: number
  readonly signal: AbortSignal
  /** The connection was cut; it is tried again after `delayMs`. */
  readonly onCut?: (why: string, delayMs: number) => void
}

/**
 * Follows a job's events until its last one, over as many connections as that takes.
 *
 * Yields each event once, in order. A cut connection is resumed after the last event that came (`Last-Event-ID`); what
 * comes twice is dropped, and what comes too early counts as a cut. Ends without a last event where there is none left:
 * the caller asked for what comes after the end.
 *
 * @throws CommandError for a refusal, and when {@link TRIES_MAX} connections in a row brought nothing, or the first
 * {@link FIRST_TRIES_MAX} found nobody
 */
export async function* followEvents(http: HttpClient, jobId: string, options: FollowOptions) {
  const position: Position = { last: options.after, retryMs: 0, isReached: false }
  for (let tries = 1; ; tries++) {
    let cut: Cut
    try {
      for await (const event of readStream(http, jobId, position, options.signal)) {
        tries = 0
        yield event
        if (isLast(event)) return
      }
      return
    } catch (error) {
      options.signal.throwIfAborted()
      cut = cutOf(error)
    }
    // What says that nobody is there also says what to do.
    if (!position.isReached && tries >= FIRST_TRIES_MAX) throw cut.cause
    if (tries >= TRIES_MAX) throw givenUp(jobId, position.last, cut)
    const delayMs = cut.delayMs ?? delayOf(tries, position)
    options.onCut?.(cut.message, Math.min(delayMs, DELAY_MS_MAX))
    await delay(Math.min(delayMs, DELAY_MS_MAX), undefined, { signal: options.signal })
  }
}

/** How far a follower is. */
interface Position {
  last: number
  /** Least time between two connections, as the stream asks for. */
  retryMs: number
  /** The service answered before. */
  isReached: boolean
}

/** A connection that ended before the job: worth another one. */
class Cut extends Error {
  readonly delayMs: number | undefined

  constructor(message: string, delayMs?: number, cause?: Error) {
    super(message, { cause })
    this.delayMs = delayMs
  }
}

/** One connection: the events after the position, which moves along. @throws Cut unless it was the last one */
async function* readStream(http: HttpClient, jobId: string, position: Position, signal: AbortSignal) {
  const answer = await http
    .send(`${pathOf(jobId)}/events`, {
      headers: { accept: 'text/event-stream', ...(position.last > 0 && { 'last-event-id': String(position.last) }) },
      signal,
    })
    .catch((error: Error) => {
      throw new Cut(error.message, undefined, error)
    })
  position.isReached = true
  if (answer.statusCode === 204) return await answer.body.dump()
  if (answer.statusCode !== 200) throw await refusedStream(answer)
  let mayJump = false
  for await (const event of parse(answer, position)) {
    const { sequence_number: seq } = event
    if (seq !== null && seq !== undefined) {
      if (seq <= position.last) continue
      if (seq > position.last + 1 && !mayJump) throw new Cut(`event ${position.last + 1} is missing`)
      position.last = seq
    }
    // A snapshot stands for the events up to the next one, which are no longer kept.
    mayJump = event.type === 'job.snapshot'
    yield event
    if (isLast(event)) return
  }
  throw new Cut('the connection ended before the job did')
}

/** What is not for this tool alone to mend passes: 429 and 5xx are tried again, at the time the service names. */
async function refusedStream(answer: Answer): Promise<Error> {
  const refused = await refusalOf(answer)
  if (answer.statusCode < 500 && answer.statusCode !== 429) return refused
  const seconds = Number(answer.headers['retry-after'])
  return new Cut(refused.message, Number.isFinite(seconds) ? seconds * 1_000 : undefined)
}

async function* parse(answer: Answer, position: Position): AsyncGenerator<JobEventView> {
  const events: JobEventView[] = []
  const parser = createParser({
    maxBufferSize: EVENT_CHARACTERS_MAX,
    onEvent: ({ data }) => events.push(readEvent(data)),
    onRetry: (ms) => {
      position.retryMs = ms
    },
  })
  const decoder = new TextDecoder()
  for await (const chunk of answer.body) {
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
      `What came is no event of a job: ${plain(data.slice(0, SHOWN_MAX))}`,
      'Check --url or SLUICE_URL.',
      error,
    )
  }
}

/** @throws the error where another connection would not help */
function cutOf(error: unknown): Cut {
  if (error instanceof Cut) return error
  if (error instanceof CommandError) throw error
  return new Cut(error instanceof Error ? error.message : String(error))
}

/** A connection that had brought something is taken up again soon; the next ones wait as long as the stream asks for. */
function delayOf(tries: number, { retryMs }: Position): number {
  return tries === 0
    ? backoffMs(1, RECONNECT, Math.random())
    : Math.max(retryMs, backoffMs(tries, RECONNECT, Math.random()))
}

function givenUp(jobId: string, last: number, cut: Cut): CommandError {
  return new CommandError(
    EXIT.unreachable,
    `Gave up after ${TRIES_MAX} connections: ${cut.message}.`,
    `The job may go on. Follow it further with: sluice follow ${jobId}${last > 0 ? ` --after ${last}` : ''}`,
    cut,
  )
}
