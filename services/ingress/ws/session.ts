import type { IncomingHttpHeaders } from 'node:http'
import type { Socket } from 'node:net'
import type { WebSocket } from 'ws'
import { type ClientFrame, type ServerFrame, WS_CLOSE, WS_PROTOCOL } from '#schemas/ws.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { findEndpoint } from '#services/ingress/endpoints/endpoints.ts'
import { COMPLETED, type Outcome } from '#services/ingress/reply/reply.ts'
import { SocketReply } from '#services/ingress/reply/websocket.ts'
import type { HeldBytes } from '#shared/byte-budget.ts'
import { ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'
import { runToEnd, runYielding } from '#shared/yielding.ts'
import type { SocketBounds } from './bounds.ts'
import { errorFrame, frameText, type ReadFrame, readFrame } from './frames.ts'
import { Outbox, ReadPause } from './outbox.ts'
import { PartialMessage } from './partial.ts'
import { type Asking, runRequest, runSubscription } from './perform.ts'

/** Bytes above which a message is read in turns with others. */
const LARGE_BYTES = 64 * 1024

/** What a {@link Session} needs. */
export interface SessionOptions {
  readonly context: IngressContext
  readonly ws: WebSocket
  readonly socket: Socket
  /** Of the upgrade. */
  readonly headers: IncomingHttpHeaders
  /** The key of the connection as it is now. @throws ServiceError When it is not valid any more */
  readonly findKey: () => Call['key']
  readonly keyId: string
  readonly bounds: SocketBounds
}

/**
 * One WebSocket connection: `open → closing → closed`.
 *
 * While open it reads frames and runs what they ask for, many things at once. From the first reason to close on, no frame
 * is taken any more and whatever is attached to the connection is cancelled; durable jobs go on.
 */
export class Session {
  readonly id = newId('ws_')
  /** Requests and subscriptions begun so far. */
  begun = 0
  /** With which code we closed it, or the client did. */
  closeCode: number | undefined
  readonly #options: SessionOptions
  readonly #outbox: Outbox
  readonly #replies = new Map<string, SocketReply>()
  readonly #heartbeat: NodeJS.Timeout
  readonly #partial: PartialMessage
  readonly #pause: ReadPause
  /** Settles when the large messages that have come are read; undefined while there is none. */
  #reading: Promise<void> | undefined
  #malformed = 0
  #bytesRead = 0
  #heardAt = performance.now()
  #isClosing = false
  #linger: NodeJS.Timeout | undefined

  constructor(options: SessionOptions) {
    const { ws, socket, bounds, keyId, context } = options
    this.#options = options
    this.#pause = new ReadPause(ws)
    this.#outbox = new Outbox(ws, bounds, this.#pause, () => this.close(WS_CLOSE.overloaded, 'You read too slowly.'))
    this.#heartbeat = setInterval(() => this.#beat(), bounds.heartbeatMs)
    const { budget, config } = context
    const onTooMuch = () => this.#onTooMuch()
    this.#partial = new PartialMessage({ ws, socket, budget, keyId, messageBytesMax: config.bodyBytesMax, onTooMuch })
    // Frames that break the protocol: ws itself closes with 1002, 1007 or 1009.
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

  /** Whether the answer to an attached request is under way. */
  get isBusy(): boolean {
    return [...this.#replies.values()].some((reply) => reply.isAttached)
  }

  /** Asks the client to finish and to connect again. */
  announceDrain(deadlineMs: number): void {
    this.#reply({ type: 'session.draining', deadline_seconds: Math.ceil(deadlineMs / 1_000) })
  }

  /** Closes the connection; the client gets a moment for its part. A second call does nothing. */
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

  /** The memory for messages is used up. */
  #onTooMuch(): void {
    this.close(WS_CLOSE.overloaded, 'The server holds as many messages as it can. Try again shortly.')
  }

  /** Large messages are read in turns with others, yet messages take effect in the order in which they come. */
  #onMessage(data: Buffer, isBinary: boolean): void {
    const held = this.#partial.take()
    if (this.#isClosing) return held.release()
    const reading = readFrame(data, isBinary, held)
    if (!this.#reading && data.length <= LARGE_BYTES) return this.#onRead(runToEnd(reading), held)
    // Nothing more is read meanwhile but what came in the same piece.
    this.#pause.begin('reading')
    const last = (this.#reading ?? Promise.resolve()).then(async () => {
      this.#onRead(await runYielding(reading), held)
      if (this.#reading !== last) return
      this.#reading = undefined
      this.#pause.end('reading')
    })
    this.#reading = last
  }

  /** @param held Given back here, unless an exchange begins that takes it over. */
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
    work: (asking: Asking, reply: SocketReply) => Promise<void>,
  ): void {
    const isInUse = this.#replies.has(id)
    if (isInUse) this.close(WS_CLOSE.duplicateId, 'The id is in use.')
    const key = isInUse ? undefined : this.#findKey()
    if (!key) return held.release()
    this.begun++
    const { headers, context, bounds } = this.#options
    const log = { sessionId: this.id, path, route: routeOf(kind, path) }
    const reply = new SocketReply(context, { id, kind, key, outbox: this.#outbox, held, ...log })
    if (this.#replies.size >= bounds.inFlightMax) {
      return reply.end({ type: 'failed', thrown: tooMany(bounds.inFlightMax) })
    }
    this.#replies.set(id, reply)
    const end = (outcome: Outcome) => {
      // First: the client may use the id again as soon as it hears.
      this.#replies.delete(id)
      reply.end(outcome)
    }
    void work({ key, headers, held }, reply).then(
      () => end(COMPLETED),
      (thrown: unknown) => end({ type: 'failed', thrown }),
    )
  }

  /** The key as it is now, since it may be revoked or lose a right while the connection is open. */
  #findKey(): Call['key'] | undefined {
    try {
      return this.#options.findKey()
    } catch {
      this.close(WS_CLOSE.keyRevoked, 'The key is not valid any more.')
      return undefined
    }
  }

  #beat(): void {
    const { socket, bounds, ws } = this.#options
    const now = performance.now()
    // Frames, pongs, and pieces of a large frame, which no pong can come between.
    if (socket.bytesRead !== this.#bytesRead) {
      this.#bytesRead = socket.bytesRead
      this.#heardAt = now
    } else if (now - this.#heardAt >= bounds.idleMs) {
      return this.close(WS_CLOSE.idle, 'Nothing was heard from you.')
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

/** Labels of metrics are few: a path of the client's own making is none. */
function routeOf(kind: SocketReply['kind'], path: string): string {
  if (kind === 'subscription') return path
  try {
    return findEndpoint(path).path
  } catch {
    return 'none'
  }
}

function tooMany(most: number): ServiceError {
  const message = `This connection may run ${most} requests and subscriptions at once.`
  return new ServiceError('rate_limit_exceeded', message, { retryAfterMs: 1_000 })
}
