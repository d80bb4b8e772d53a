import type { EncodeContext } from '#schemas/job.ts'
import { writeJson } from '#shared/json/write.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { EventBuffer } from '#shared/lib/buffers.ts'
import type { Call, IngressContext } from './call.ts'

/** Header with which a caller excludes the bodies of one call from the request log. */
const OPT_OUT = 'x-log-bodies'
const MARK = '… [truncated]'

/**
 * Records the bodies of one attached call for the request log, as JSON texts of bounded length. The events of a stream
 * are joined into a whole answer. The answer is null if the call failed, or if its events need too much memory.
 */
export class CallBodies {
  readonly #context: IngressContext
  readonly #call: Call
  readonly #bytesMax: number
  readonly #request: string
  readonly #events: EventBuffer
  #isComplete = true

  private constructor(context: IngressContext, call: Call, kind: Kind, body: unknown) {
    this.#context = context
    this.#call = call
    this.#bytesMax = context.config.requestBodyBytesMax
    this.#request = textOf(body, this.#bytesMax)
    this.#events = new EventBuffer(kind.merge)
  }

  /** Undefined if bodies are not recorded: by default, or if the header `x-log-bodies: off` excludes the call. */
  static of(context: IngressContext, call: Call, kind: Kind, body: unknown): CallBodies | undefined {
    if (!context.bodies || call.headers[OPT_OUT] === 'off') return undefined
    return new CallBodies(context, call, kind, body)
  }

  see(event: unknown): void {
    if (!this.#isComplete) return
    this.#events.push(event)
    this.#isComplete = this.#events.bytes <= EVENTS_BYTES_FACTOR * this.#bytesMax
    if (!this.#isComplete) this.#events.takeAll()
  }

  /** Never rejects, because the answer was already sent. */
  async end(end: 'completed' | 'failed' | 'cancelled', answer: Answer, encode: EncodeContext): Promise<void> {
    const { log, bodies } = this.#context
    const { requestId: id } = this.#call
    let text: string | null = null
    try {
      if (end === 'completed' && this.#isComplete)
        text = textOf(await answer.whole(this.#events.takeAll(), encode), this.#bytesMax)
    } catch (error) {
      log.warn({ err: error, request_id: id }, 'answer could not be recorded in the request log')
    }
    bodies?.add({ id, atMs: Date.now(), request: this.#request, answer: text })
  }
}

/**
 * Ratio of the maximum bytes of events to those of the recorded answer. Events are longer than the answer, for example
 * with log probabilities.
 */
const EVENTS_BYTES_FACTOR = 16

/** Returns the beginning of a value's JSON. The rest is not serialized. */
function textOf(value: unknown, bytesMax: number): string {
  let text = ''
  for (const piece of writeJson(value)) {
    text += piece
    if (text.length > bytesMax) break
  }
  const bytes = Buffer.from(text)
  if (bytes.length <= bytesMax) return text
  // The cut may split a character, whose bytes are then decoded as U+FFFD.
  return (
    bytes
      .subarray(0, bytesMax)
      .toString()
      .replace(/\uFFFD+$/, '') + MARK
  )
}
