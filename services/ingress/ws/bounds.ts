/** Limits of WebSockets per connection, key and process, and their timeouts. */
export interface SocketBounds {
  readonly connectionsMax: number
  readonly connectionsMaxPerKey: number
  /** Maximum concurrent ids per connection, including subscriptions. */
  readonly inFlightMax: number
  /** Bytes waiting for the client at which the connection takes no more output from its requests. */
  readonly bufferedBytesMax: number
  /** Replies waiting for the client at which no more frames are read from it. */
  readonly repliesMax: number
  /** Time after which a client that reads nothing is disconnected, while more than {@link bufferedBytesMax} wait. */
  readonly drainMs: number
  readonly heartbeatMs: number
  /** Time without any bytes from the client after which the connection is closed. Checked with each ping. */
  readonly idleMs: number
  readonly malformedMax: number
  /** Time in which a client may complete the closing handshake. */
  readonly lingerMs: number
}

/** Defaults (docs/guides/websocket.md, Limits). */
export const SOCKET_BOUNDS: SocketBounds = {
  connectionsMax: 5_000,
  connectionsMaxPerKey: 200,
  inFlightMax: 32,
  bufferedBytesMax: 1024 * 1024,
  repliesMax: 1_000,
  drainMs: 60_000,
  heartbeatMs: 20_000,
  idleMs: 60_000,
  malformedMax: 3,
  lingerMs: 2_000,
}
