import type { IncomingHttpHeaders } from 'node:http'
import type { Call, CallFacts, IngressContext } from '#services/ingress/call.ts'
import type { HeldBytes } from '#shared/byte-budget.ts'
import { ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'
import { completedText, failedFrame, frameText, requestEventText } from './frames.ts'
import type { Outbox } from './outbox.ts'

/** How an id ends. `body` is a JSON text; null after a stream. */
export type Ending =
  | { readonly type: 'completed'; readonly status: number; readonly body: string | null }
  | { readonly type: 'failed'; readonly error: ServiceError }
  | { readonly type: 'cancelled' }

/** The end of what was streamed. */
export const STREAMED: Ending = { type: 'completed', status: 200, body: null }
/** The end of what its client did not want any more. */
export const CANCELLED: Ending = { type: 'cancelled' }

/** Whose an exchange is, and what it is about. */
export interface ExchangeOptions {
  /** The client's id. */
  readonly id: string
  readonly kind: 'request' | 'subscription'
  readonly key: Call['key']
  /** Of the upgrade: the connection's version and trace are those of each of its requests. */
  readonly headers: IncomingHttpHeaders
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
 * One id of a connection, from the frame that begins it to the frame that ends it.
 *
 * It is cancelled by its client or left when the connection is closed: then work for nobody stops, and durable jobs go on.
 */
export class Exchange {
  readonly id: string
  readonly kind: ExchangeOptions['kind']
  readonly key: Call['key']
  readonly headers: IncomingHttpHeaders
  readonly held: HeldBytes
  readonly requestId = newId('req_')
  readonly facts: CallFacts
  /** Set while a job is attached to the connection: a drain waits for it. */
  isAttached = false
  readonly #options: ExchangeOptions
  readonly #outbox: Outbox
  readonly #stopped = new AbortController()
  readonly #startedAt = performance.now()
  /** The client said so, before a cancel became a wish. */
  isCancelled = false
  #hasLeft = false
  #askToCancel: (() => void) | undefined
  #sequence = 0

  constructor(options: ExchangeOptions) {
    this.id = options.id
    this.kind = options.kind
    this.key = options.key
    this.headers = options.headers
    this.held = options.held
    this.facts = { key_id: options.key.id }
    this.#options = options
    this.#outbox = options.outbox
  }

  /** Aborts when the work is for nobody any more. */
  get stopped(): AbortSignal {
    return this.#stopped.signal
  }

  get isStopped(): boolean {
    return this.stopped.aborted
  }

  /** The client does not want it any more. */
  cancel(): void {
    if (this.#askToCancel) return this.#askToCancel()
    this.isCancelled = true
    this.#stopped.abort()
  }

  /** The connection is closed. */
  leave(): void {
    this.#hasLeft = true
    this.#stopped.abort()
  }

  /** From now on a cancel is but a wish: the work goes on until it ends, in whichever way. */
  deferCancel(ask: () => void): void {
    this.#askToCancel = ask
  }

  /** Tells the client the job of its request. */
  accept(jobId: string): void {
    this.facts.job_id = jobId
    if (!this.isStopped) this.#outbox.reply(frameText({ type: 'request.accepted', id: this.id, job_id: jobId }))
  }

  /** Sends an event of a request, once there is room. @param event A JSON text */
  async sendEvent(event: string): Promise<void> {
    if (this.#outbox.isFull) await this.#room()
    if (!this.isStopped) this.#outbox.send(requestEventText(this.id, ++this.#sequence, event))
  }

  /** Sends an event of a job, once there is room. */
  async sendJobEvent(event: Record<string, unknown>): Promise<void> {
    if (this.#outbox.isFull) await this.#room()
    const frame = { type: 'job.event', id: this.id, event: event as { type: string } } as const
    if (!this.isStopped) this.#outbox.send(frameText(frame))
  }

  /** Does the work, and gives how it ended. Never rejects: it classifies failures as app.ts does for HTTP. */
  async settle(context: IngressContext, work: (exchange: Exchange) => Promise<Ending>): Promise<Ending> {
    try {
      const ending = await work(this)
      // A whole body may be large, so it waits for its room like any output.
      if (ending.type === 'completed' && ending.body !== null) await this.#room()
      return this.isCancelled ? CANCELLED : ending
    } catch (thrown) {
      const error = ServiceError.from(thrown)
      if (error.code === 'internal_error')
        context.log.error({ err: error, request_id: this.requestId }, 'internal error')
      return error.code === 'job_cancelled' || this.isStopped ? CANCELLED : { type: 'failed', error }
    }
  }

  /** Tells the client how it ended, unless it has left, and writes the line of the access log. */
  end(context: IngressContext, ending: Ending): void {
    this.held.release()
    if (!this.#hasLeft) this.#outbox.reply(this.#textOf(ending))
    if (ending.type === 'failed') this.facts.error_code = ending.error.code
    this.#log(context, this.#hasLeft ? 'aborted' : statusOf(ending))
  }

  async #room(): Promise<void> {
    await this.#outbox.room(this.stopped)
  }

  #textOf(ending: Ending): string {
    const { id } = this
    switch (ending.type) {
      case 'completed':
        return completedText(id, ending.status, ending.body ?? 'null')
      case 'failed':
        return frameText(failedFrame(id, ending.error))
      case 'cancelled':
        return frameText({ type: 'request.cancelled', id })
    }
  }

  /** In the frame of the lines for HTTP (app.ts). Never bodies, prompts or keys. */
  #log({ log, metrics }: IngressContext, status: number | string): void {
    const { path, route, sessionId } = this.#options
    const durationMs = performance.now() - this.#startedAt
    const model = this.facts.model ?? ''
    metrics.requests.inc({ route, status: String(status), model })
    metrics.requestSeconds.observe({ route, model }, durationMs / 1_000)
    const line = {
      request_id: this.requestId,
      method: 'WS',
      path,
      status,
      duration_ms: Math.round(durationMs * 10) / 10,
      session_id: sessionId,
      ...this.facts,
    }
    log.info(line, 'request')
  }
}

function statusOf(ending: Ending): number | 'cancelled' {
  if (ending.type === 'cancelled') return 'cancelled'
  return ending.type === 'completed' ? ending.status : ending.error.status
}
