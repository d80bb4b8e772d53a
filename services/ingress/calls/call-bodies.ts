import type { EncodeContext } from '#schemas/job.ts'
import { writeJson } from '#shared/json/write.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import { answerText, promptText } from '#shared/kinds/body-text.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { EventBuffer } from '#shared/lib/buffers.ts'
import { boundedText } from '#shared/usage/request-log.ts'
import type { Call, IngressContext } from './call.ts'

/** Header with which a caller excludes the bodies of one call from the request log. */
const OPT_OUT = 'x-log-bodies'
const MARK = '… [truncated]'
/** Maximum bytes of the bodies that all running calls of this process hold. Beyond this maximum, answers are not recorded. */
const HELD_BYTES_MAX = 64 * 1024 * 1024
let heldBytes = 0

interface RecordedBodies {
  readonly body: unknown
  /** False if the answer is sent as bytes, such as speech, which is not recorded. */
  readonly hasAnswer: boolean
}

/**
 * Records the bodies of one call for the request log, as JSON texts of bounded length. The events of a stream are joined into
 * a whole answer. No answer is recorded if the call failed or if the answer is sent as bytes. Events
 * that exceed the memory bound of one call or of all calls are not recorded either.
 */
export class CallBodies {
  readonly #context: IngressContext
  readonly #call: Call
  readonly #bytesMax: number
  /**
   * Retention of the recorded bodies in ms, from the limits of the key or its project. Null if they have none, so that REQUEST_BODIES_MS applies.
   */
  readonly #retentionMs: number | null
  readonly #request: string
  readonly #promptPreview: string | null
  readonly #events: EventBuffer
  #isComplete: boolean
  #held = 0

  private constructor(
    context: IngressContext,
    call: Call,
    kind: Kind,
    { body, hasAnswer }: RecordedBodies,
    retentionMs: number | null,
  ) {
    this.#context = context
    this.#retentionMs = retentionMs
    this.#call = call
    this.#bytesMax = context.config.requestBodyBytesMax
    this.#request = textOf(body, this.#bytesMax)
    this.#promptPreview = previewOf(promptText(body))
    this.#events = new EventBuffer(kind.merge)
    this.#isComplete = hasAnswer
  }

  /**
   * Returns undefined if the bodies of this call are not recorded. There are three possible reasons: the retention is 0 (the
   * default), the request log is off, or the header `x-log-bodies: off` was sent.
   */
  static of(context: IngressContext, call: Call, kind: Kind, recorded: RecordedBodies): CallBodies | undefined {
    const retentionMs = retentionOf(context, call)
    return retentionMs === undefined ? undefined : new CallBodies(context, call, kind, recorded, retentionMs)
  }

  /** Records the beginning of a body that is not JSON. */
  static malformed(context: IngressContext, call: Call, body: Buffer): void {
    const retentionMs = retentionOf(context, call)
    if (retentionMs === undefined) return
    const request = beginningOf(body, context.config.requestBodyBytesMax)
    const times = timesOf(retentionMs)
    context.bodies?.add({
      id: call.requestId,
      ...times,
      request,
      answer: null,
      promptPreview: null,
      answerPreview: null,
    })
  }

  /**
   * Adds an event of the answer. Afterwards, {@link end} must be called, because only `end` subtracts the bytes of this call from the total of all
   * calls.
   */
  see(event: unknown): void {
    if (!this.#isComplete) return
    this.#events.push(event)
    this.#hold(this.#request.length + this.#events.bytes)
    this.#isComplete = this.#events.bytes <= EVENTS_BYTES_FACTOR * this.#bytesMax && heldBytes <= HELD_BYTES_MAX
    if (this.#isComplete) return
    this.#events.takeAll()
    this.#hold(this.#request.length)
  }

  #hold(bytes: number): void {
    heldBytes += bytes - this.#held
    this.#held = bytes
  }

  /** Records the request body of a call that is refused before its job starts. Never throws, so that the caller receives the refusal. */
  static refused(context: IngressContext, call: Call, kind: Kind, body: unknown): void {
    try {
      CallBodies.of(context, call, kind, { body, hasAnswer: false })?.refused()
    } catch (error) {
      const message = 'body of a refused call could not be recorded in the request log'
      context.log.warn({ err: error, request_id: call.requestId }, message)
    }
  }

  refused(): void {
    this.#record(null, null)
  }

  /** Records the request and the answer. Never rejects, because the answer was already sent. A failure is logged. */
  async end(end: 'completed' | 'failed' | 'cancelled', answer: Answer, encode: EncodeContext): Promise<void> {
    let text: string | null = null
    let answerPreview: string | null = null
    try {
      if (end === 'completed' && this.#isComplete) {
        const whole = await answer.whole(this.#events.takeAll(), encode)
        text = textOf(whole, this.#bytesMax)
        answerPreview = previewOf(answerText(whole))
      }
    } catch (error) {
      const { requestId: request_id, facts } = this.#call
      const fields = { err: error, request_id, job_id: facts.job_id }
      this.#context.log.warn(fields, 'answer could not be recorded in the request log')
    }
    this.#hold(0)
    this.#record(text, answerPreview)
  }

  #record(answer: string | null, answerPreview: string | null): void {
    const { requestId: id } = this.#call
    const times = timesOf(this.#retentionMs)
    const previews = { promptPreview: this.#promptPreview, answerPreview }
    this.#context.bodies?.add({ id, ...times, request: this.#request, answer, ...previews })
  }
}

/** Retention of a call's bodies in ms. Null if REQUEST_BODIES_MS applies. Undefined if the bodies of the call are not recorded. */
function retentionOf(context: IngressContext, { key, headers }: Call): number | null | undefined {
  if (!context.bodies || headers[OPT_OUT] === 'off') return undefined
  // The lower value of the key and its project applies.
  const owners = [key.limits, context.keys.limitsOf(projectIdOf(key))]
  const own = owners.flatMap((limits) => limits?.request_bodies_seconds ?? [])
  const ownMs = own.length === 0 ? null : 1_000 * Math.min(...own)
  return (ownMs ?? context.config.requestBodiesMs) === 0 ? undefined : ownMs
}

function timesOf(retentionMs: number | null): { readonly atMs: number; readonly expiresAtMs: number | null } {
  const atMs = Date.now()
  return { atMs, expiresAtMs: retentionMs === null ? null : atMs + retentionMs }
}

/**
 * Maximum bytes of the buffered events, as a multiple of the maximum bytes of the recorded answer. Events are longer
 * than the recorded answer, for example if they contain log probabilities.
 */
const EVENTS_BYTES_FACTOR = 16

const PREVIEW_CHARS_MAX = 120

/** Returns the beginning of a text as one line, for lists. Null if there is no text. */
export function previewOf(text: string | undefined): string | null {
  if (!text) return null
  // Runs of white space become one space, so more characters are read than shown.
  const line = text
    .slice(0, 4 * PREVIEW_CHARS_MAX)
    .replaceAll(/\s+/g, ' ')
    .trim()
  return boundedText(line, PREVIEW_CHARS_MAX) || null
}

/** Returns the beginning of a value's JSON. The rest is not serialized. */
function textOf(value: unknown, bytesMax: number): string {
  let text = ''
  for (const piece of writeJson(value)) {
    text += piece
    if (text.length > bytesMax) break
  }
  return beginningOf(Buffer.from(text), bytesMax)
}

function beginningOf(bytes: Buffer, bytesMax: number): string {
  if (bytes.length <= bytesMax) return bytes.toString()
  // The cut may split a character. The decoder writes its incomplete bytes as U+FFFD, which is removed here.
  return (
    bytes
      .subarray(0, bytesMax)
      .toString()
      .replace(/\uFFFD+$/, '') + MARK
  )
}
