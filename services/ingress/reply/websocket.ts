import type { Readable } from 'node:stream'
import {
  type Call,
  CallLog,
  type IngressContext,
  type Outcome,
  type Reply,
  type ReplyForm,
} from '#services/ingress/calls/call.ts'
import { completedText, failedFrame, frameText, jobEventText, requestEventText } from '#services/ingress/ws/frames.ts'
import type { Outbox } from '#services/ingress/ws/outbox.ts'
import type { HeldBytes } from '#shared/capacity/byte-budgets.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { jsonTextOf, writeYielding } from '#shared/protocols/encode.ts'

export interface SocketReplyOptions {
  readonly id: string
  readonly kind: 'request' | 'subscription'
  readonly key: Call['key']
  readonly outbox: Outbox
  /** Memory reservation of the frame that started the request. */
  readonly held: HeldBytes
  readonly sessionId: string
  readonly path: string
  /** Route pattern as a metrics label. */
  readonly route: string
}

/**
 * The answer to one request or subscription on a WebSocket, which the client identifies by an id.
 *
 * If the client cancels or the connection closes, then attached jobs are cancelled. Durable jobs continue.
 */
export class SocketReply implements Reply {
  readonly kind: SocketReplyOptions['kind']
  readonly log: CallLog
  /** True while an attached job runs for the connection. A drain waits for it. */
  isAttached = false
  readonly #options: SocketReplyOptions
  readonly #left = new AbortController()
  readonly disconnected = this.#left.signal
  /** True if the client cancelled before the job was accepted. A durable job is then cancelled when it is accepted. */
  #isCancelled = false
  #hasLeft = false
  #askToCancel: (() => void) | undefined
  #sequence = 0
  #hasEnded = false
  /** Body for `request.completed`; null after a stream. */
  #body = { status: 200, text: 'null' }

  constructor(context: Pick<IngressContext, 'log' | 'metrics'>, options: SocketReplyOptions) {
    this.log = new CallLog(context)
    this.log.facts.key_id = options.key.id
    this.log.facts.project_id = projectIdOf(options.key)
    this.kind = options.kind
    this.#options = options
  }

  /** A drain does not abort this: the connection stays open until its calls had time to end. */
  get disconnectedOrDraining(): AbortSignal {
    return this.disconnected
  }

  get isDisconnected(): boolean {
    return this.disconnected.aborted
  }

  cancel(): void {
    if (this.#askToCancel) return this.#askToCancel()
    this.#isCancelled = true
    this.#left.abort()
  }

  leave(): void {
    this.#hasLeft = true
    this.#left.abort()
  }

  /** Has no effect, because WebSocket frames have no headers. */
  setHeader(): void {}

  /**
   * Sets the job. From now on, the client can only request the cancellation of a durable job, which may still complete.
   */
  accepted(jobId: string, cancel?: () => void): void {
    this.log.facts.job_id = jobId
    if (this.#isCancelled) return cancel?.()
    this.#askToCancel = cancel
    this.isAttached = cancel === undefined
    const { id, outbox } = this.#options
    if (!this.isDisconnected) outbox.reply(frameText({ type: 'request.accepted', id, job_id: jobId }))
  }

  /** Has no effect: WebSocket pings are the keep-alives. */
  open(_form: ReplyForm): void {}

  frames(frames: readonly Frame[]): Promise<void> | undefined {
    const { outbox } = this.#options
    for (const [index, { data }] of frames.entries()) {
      if (outbox.isFull) return this.#framesInTime(frames.slice(index))
      if (this.isDisconnected) return undefined
      this.#send(data)
    }
    return undefined
  }

  /** Stores the body, which is sent with `request.completed`. A large body waits for buffer space like other output. */
  async whole(value: unknown, status = 200): Promise<void> {
    this.#body = { status, text: jsonTextOf(await writeYielding(value)) }
    await this.#options.outbox.waitForSpace(this.disconnected)
  }

  /** Destroys the source and throws, because a WebSocket call cannot have a binary answer. */
  async bytes(source: Readable): Promise<void> {
    source.destroy()
    throw new ServiceError(
      'invalid_request',
      'This endpoint has a binary answer, which a WebSocket cannot carry. Use HTTP.',
    )
  }

  end(outcome: Outcome): void {
    if (this.#hasEnded) return
    this.#hasEnded = true
    const { id, held, outbox, path, route, sessionId } = this.#options
    held.release()
    const error = outcome.type === 'failed' ? this.log.classify(outcome.thrown) : undefined
    const isCancelled = this.isDisconnected || error?.code === 'job_cancelled'
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
      if (outbox.isFull) await outbox.waitForSpace(this.disconnected)
      if (this.isDisconnected) return
      this.#send(data)
    }
  }

  #send(data: string): void {
    const { id, kind, outbox } = this.#options
    outbox.send(kind === 'request' ? requestEventText(id, ++this.#sequence, data) : jobEventText(id, data))
  }
}
