import type { Readable } from 'node:stream'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { completedText, failedFrame, frameText, jobEventText, requestEventText } from '#services/ingress/ws/frames.ts'
import type { Outbox } from '#services/ingress/ws/outbox.ts'
import type { HeldBytes } from '#shared/byte-budget.ts'
import { ServiceError } from '#shared/error.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { jsonTextOf } from '#shared/protocols/encode.ts'
import { CallLog } from './call-log.ts'
import type { Outcome, Reply, ReplyForm } from './reply.ts'

/** Whose a reply is, and what it is about. */
export interface SocketReplyOptions {
  /** The client's id. */
  readonly id: string
  readonly kind: 'request' | 'subscription'
  readonly key: Call['key']
  readonly outbox: Outbox
  /** What its frame holds of the memory. */
  readonly held: HeldBytes
  readonly sessionId: string
  /** As the access log shows it. */
  readonly path: string
  /** Label of the metrics: a known route. */
  readonly route: string
}

/**
 * The answer to one id of a WebSocket, from the frame that begins it to the frame that ends it.
 *
 * It is cancelled by its client or left when the connection is closed: then work for nobody stops, and durable jobs go on.
 */
export class SocketReply implements Reply {
  readonly kind: SocketReplyOptions['kind']
  readonly log: CallLog
  /** Set while a job is attached to the connection: a drain waits for it. */
  isAttached = false
  readonly #options: SocketReplyOptions
  readonly #left = new AbortController()
  readonly left = this.#left.signal
  /** The client said so, before a cancel became a wish. */
  #isCancelled = false
  #hasLeft = false
  #askToCancel: (() => void) | undefined
  #sequence = 0
  #hasEnded = false
  /** What `request.completed` says: null after a stream. */
  #body = { status: 200, text: 'null' }

  constructor(context: Pick<IngressContext, 'log' | 'metrics'>, options: SocketReplyOptions) {
    this.log = new CallLog(context)
    this.log.facts.key_id = options.key.id
    this.log.facts.project_id = projectIdOf(options.key)
    this.kind = options.kind
    this.#options = options
  }

  /** When this process drains, connections are closed once their calls had time. */
  get leaving(): AbortSignal {
    return this.left
  }

  get hasLeft(): boolean {
    return this.left.aborted
  }

  /** The client does not want it any more. */
  cancel(): void {
    if (this.#askToCancel) return this.#askToCancel()
    this.#isCancelled = true
    this.#left.abort()
  }

  /** The connection is closed. */
  leave(): void {
    this.#hasLeft = true
    this.#left.abort()
  }

  /** Frames have no headers. */
  setHeader(): void {}

  /** From then on a cancel of a job that outlives the call is but a wish: the work goes on until it ends, in whichever way. */
  accepted(jobId: string, cancel?: () => void): void {
    this.log.facts.job_id = jobId
    // Cancelled while it was being accepted.
    if (this.#isCancelled) return cancel?.()
    this.#askToCancel = cancel
    this.isAttached = cancel === undefined
    const { id, outbox } = this.#options
    if (!this.hasLeft) outbox.reply(frameText({ type: 'request.accepted', id, job_id: jobId }))
  }

  /** The connection has pings of its own. */
  open(_form: ReplyForm): void {}

  frames(frames: readonly Frame[]): Promise<void> | undefined {
    const { outbox } = this.#options
    for (const [index, { data }] of frames.entries()) {
      if (outbox.isFull) return this.#framesInTime(frames.slice(index))
      if (this.hasLeft) return undefined
      this.#send(data)
    }
    return undefined
  }

  /** It goes out with the end. It may be large, so it waits for its room like any output. */
  async whole(value: unknown, status = 200): Promise<void> {
    this.#body = { status, text: jsonTextOf(value) }
    await this.#options.outbox.room(this.left)
  }

  /** No call over a WebSocket has such an answer. */
  async bytes(source: Readable): Promise<void> {
    source.destroy()
    throw new ServiceError('invalid_request', 'This is not to be had over a WebSocket.')
  }

  end(outcome: Outcome): void {
    if (this.#hasEnded) return
    this.#hasEnded = true
    const { id, held, outbox, path, route, sessionId } = this.#options
    held.release()
    const error = outcome.type === 'failed' ? this.log.classify(outcome.thrown) : undefined
    const isCancelled = this.hasLeft || error?.code === 'job_cancelled'
    const { status, text } = this.#body
    if (!this.#hasLeft) {
      if (isCancelled) outbox.reply(frameText({ type: 'request.cancelled', id }))
      else outbox.reply(error ? frameText(failedFrame(id, error)) : completedText(id, status, text))
    }
    if (error && !isCancelled) this.log.failed(error, error.status)
    const end = this.#hasLeft ? 'aborted' : isCancelled ? 'cancelled' : (error?.status ?? status)
    this.log.ended({ method: 'WS', path, route, status: end, more: { session_id: sessionId } })
  }

  async #framesInTime(frames: readonly Frame[]): Promise<void> {
    const { outbox } = this.#options
    for (const { data } of frames) {
      if (outbox.isFull) await outbox.room(this.left)
      if (this.hasLeft) return
      this.#send(data)
    }
  }

  #send(data: string): void {
    const { id, kind, outbox } = this.#options
    outbox.send(kind === 'request' ? requestEventText(id, ++this.#sequence, data) : jobEventText(id, data))
  }
}
