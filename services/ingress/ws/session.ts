import type { IncomingHttpHeaders } from 'node:http'
import type { Socket } from 'node:net'
import type { WebSocket } from 'ws'
import { type ClientFrame, type ServerFrame, WS_CLOSE, WS_PROTOCOL } from '#schemas/ws.ts'
import { type Call, COMPLETED, type IngressContext, type Outcome } from '#services/ingress/calls/call.ts'
import { findEndpoint } from '#services/ingress/endpoints/endpoints.ts'
import type { HeldBytes } from '#shared/capacity/byte-budgets.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import { runToEnd, runYielding } from '#shared/lib/yielding.ts'
import { errorFrame, frameText, Outbox, type ReadFrame, ReadPause, readFrame, type SocketBounds } from './frames.ts'
import { PartialMessage } from './partial.ts'
import { type RequestOrigin, runRequest, runSubscription, SocketReply } from './perform.ts'

const LARGE_BYTES = 64 * 1024

export interface SessionOptions {
  readonly context: IngressContext
  readonly ws: WebSocket
  readonly socket: Socket
  readonly headers: IncomingHttpHeaders
  /**
   * Returns the current state of the key of the connection.
   *
   * @throws ServiceError if the key is no longer valid
   */
  readonly findKey: () => Call['key']
  readonly keyId: string
  readonly bounds: SocketBounds
}

/**
 * One WebSocket connection with the states `open → closing → closed`.
 *
 * While the connection is open, the session reads frames and runs their requests concurrently. At the first reason to
 * close, no more frames are accepted, and attached jobs, which are not stored, are cancelled. Durable jobs continue.
 */
export class Session {
  readonly id = newId('ws_')
  begun = 0
  closeCode: number | undefined
  readonly #options: SessionOptions
  readonly #outbox: Outbox
  readonly #replies = new Map<string, SocketReply>()
  readonly #heartbeat: NodeJS.Timeout
  readonly #partial: PartialMessage
  readonly #pause: ReadPause
  /** Settles when all received large messages have been parsed. Undefined if no message is being parsed. */
  #reading: Promise<void> | undefined
  #malformed = 0
  #bytesRead = 0
  #receivedAt = performance.now()
  #isClosing = false
  #linger: NodeJS.Timeout | undefined

  constructor(options: SessionOptions) {
    const { ws, socket, bounds, keyId, context } = options
    this.#options = options
    this.#pause = new ReadPause(ws)
    this.#outbox = new Outbox(ws, bounds, this.#pause, () =>
      this.close(WS_CLOSE.overloaded, 'The client reads too slowly.'),
    )
    this.#heartbeat = setInterval(() => this.#beat(), bounds.heartbeatMs)
    const { budget, config } = context
    const onTooMuch = () => this.#onTooMuch()
    this.#partial = new PartialMessage({ ws, socket, budget, keyId, messageBytesMax: config.bodyBytesMax, onTooMuch })
    // After a protocol violation, `ws` closes the connection with 1002, 1007 or 1009. The session stops its requests
    // and drops the incomplete message.
    ws.on('error', () => {
      this.#stop()
      this.#partial.drop()
    })
    ws.on('message', (data, isBinary) => this.#onMessage(data as Buffer, isBinary))
    ws.once('close', (code) => {
      this.closeCode ??= code
      this.#stop()
      clearTimeout(this.#linger)
    })
    this.#reply({ type: 'session.created', session: this.#describe() })
  }

  get isBusy(): boolean {
    return [...this.#replies.values()].some((reply) => reply.isAttached)
  }

  announceDrain(deadlineMs: number): void {
    this.#reply({ type: 'session.draining', deadline_seconds: Math.ceil(deadlineMs / 1_000) })
  }

  /**
   * Closes the connection. The client has `lingerMs` to complete the closing handshake. Further calls have no effect.
   */
  close(code: number, reason: string): void {
    if (this.#isClosing) return
    this.closeCode = code
    this.#options.ws.close(code, reason)
    this.#stop()
  }

  #describe() {
    const { bounds, context } = this.#options
    return {
      id: this.id,
      protocol: WS_PROTOCOL,
      max_in_flight: bounds.inFlightMax,
      max_message_bytes: context.config.bodyBytesMax,
      heartbeat_seconds: bounds.heartbeatMs / 1_000,
    } as const
  }

  #reply(frame: ServerFrame): void {
    this.#outbox.reply(frameText(frame))
  }

  #onTooMuch(): void {
    this.close(
      WS_CLOSE.overloaded,
      'The server has too little free memory for this message. Try again shortly, or send a smaller message.',
    )
  }

  /**
   * Processes a message. Large messages are parsed with event-loop yields. Later messages wait for them, so that all
   * messages are processed in order of arrival.
   */
  #onMessage(data: Buffer, isBinary: boolean): void {
    const held = this.#partial.take()
    if (this.#isClosing) return held.release()
    const reading = readFrame(data, isBinary, held)
    if (!this.#reading && data.length <= LARGE_BYTES) return this.#onRead(runToEnd(reading), held)
    // Reading from the socket pauses while a large message is parsed. Messages that were already received still arrive here, and wait in order.
    this.#pause.begin('reading')
    const last = (this.#reading ?? Promise.resolve()).then(async () => {
      this.#onRead(await runYielding(reading), held)
      if (this.#reading !== last) return
      this.#reading = undefined
      this.#pause.end('reading')
    })
    this.#reading = last
  }

  /** @param held Reservation of the message, which is released here unless a request takes it over */
  #onRead(read: ReadFrame, held: HeldBytes): void {
    if (this.#isClosing) return held.release()
    if ('frame' in read) return this.#onFrame(read.frame, held)
    const { id, error } = read
    if (id !== undefined) return this.#begin(id, 'request', 'none', held, () => Promise.reject(error))
    held.release()
    this.#reply(errorFrame(error))
    if (error.code !== 'overloaded' && ++this.#malformed >= this.#options.bounds.malformedMax)
      this.close(WS_CLOSE.malformed, 'Malformed frames.')
  }

  #onFrame(frame: ClientFrame, held: HeldBytes): void {
    const { context } = this.#options
    if (frame.type === 'request.create') {
      const { id, endpoint } = frame
      return this.#begin(id, 'request', endpoint, held, (asking, reply) => runRequest(context, asking, reply, frame))
    }
    held.release()
    switch (frame.type) {
      case 'job.subscribe':
        return this.#begin(frame.id, 'subscription', '/v1/jobs/:id/events', held, (asking, reply) =>
          runSubscription(context, asking, reply, frame),
        )
      case 'request.cancel':
        return this.#find(frame.id, 'request')?.cancel()
      case 'job.unsubscribe':
        return this.#find(frame.id, 'subscription')?.cancel()
      case 'ping':
        return this.#reply({ type: 'pong', id: frame.id })
    }
  }

  #find(id: string, kind: SocketReply['kind']): SocketReply | undefined {
    const reply = this.#replies.get(id)
    return reply?.kind === kind ? reply : undefined
  }

  #begin(
    id: string,
    kind: SocketReply['kind'],
    path: string,
    held: HeldBytes,
    work: (asking: RequestOrigin, reply: SocketReply) => Promise<void>,
  ): void {
    const isInUse = this.#replies.has(id)
    if (isInUse) this.close(WS_CLOSE.duplicateId, 'The id is in use by another request of this connection.')
    const key = isInUse ? undefined : this.#findKey()
    if (!key) return held.release()
    this.begun++
    const { headers, context, bounds } = this.#options
    const log = { sessionId: this.id, path, route: routeOf(context, kind, path), headers }
    const reply = new SocketReply(context, { id, kind, key, outbox: this.#outbox, held, ...log })
    if (this.#replies.size >= bounds.inFlightMax) {
      return reply.end({ type: 'failed', thrown: tooMany(bounds.inFlightMax) })
    }
    this.#replies.set(id, reply)
    const end = (outcome: Outcome) => {
      // The client may reuse the id as soon as it receives the final frame, so the entry is deleted before the frame is
      // sent.
      this.#replies.delete(id)
      reply.end(outcome)
    }
    void work({ key, headers, held }, reply).then(
      () => end(COMPLETED),
      (thrown: unknown) => end({ type: 'failed', thrown }),
    )
  }

  /** Returns the current state of the key, which may have been revoked or restricted since the connection opened. */
  #findKey(): Call['key'] | undefined {
    try {
      return this.#options.findKey()
    } catch {
      this.close(WS_CLOSE.keyRevoked, 'The key is no longer valid.')
      return undefined
    }
  }

  #beat(): void {
    const { socket, bounds, ws } = this.#options
    const now = performance.now()
    // While a large frame arrives, no pong can arrive, so any received byte shows that the client is alive.
    if (socket.bytesRead !== this.#bytesRead) {
      this.#bytesRead = socket.bytesRead
      this.#receivedAt = now
    } else if (now - this.#receivedAt >= bounds.idleMs) {
      return this.close(WS_CLOSE.idle, 'No data arrived from the client.')
    }
    ws.ping()
  }

  #stop(): void {
    if (this.#isClosing) return
    this.#isClosing = true
    clearInterval(this.#heartbeat)
    for (const reply of this.#replies.values()) reply.leave()
    this.#outbox.close()
    this.#pause.stop()
    const { ws, bounds } = this.#options
    this.#linger = setTimeout(() => ws.terminate(), bounds.lingerMs)
  }
}

/**
 * Returns the metrics label of a path. Any unknown path becomes `none`, because clients could otherwise create any
 * number of labels.
 */
function routeOf(context: IngressContext, kind: SocketReply['kind'], path: string): string {
  if (kind === 'subscription') return path
  try {
    return findEndpoint(context, path).path
  } catch {
    return 'none'
  }
}

function tooMany(most: number): ServiceError {
  const message = `This connection is at its limit of ${most} concurrent requests and subscriptions.`
  return new ServiceError('rate_limit_exceeded', message, { retryAfterMs: 1_000 })
}
