/** Limits per WebSocket connection, key and process, and timeouts. */
export interface SocketBounds {
  readonly connectionsMax: number
  readonly connectionsMaxPerKey: number
  /** Maximum concurrent ids per connection, including subscriptions. */
  readonly inFlightMax: number
  /** Maximum unsent bytes per connection. Above it, the connection takes no more output from its requests. */
  readonly bufferedBytesMax: number
  /** Maximum unsent replies per connection. At the maximum, no more frames are read from the client. */
  readonly repliesMax: number
  /**
   * Time after which a client is disconnected if it reads nothing while more than {@link bufferedBytesMax} are unsent.
   */
  readonly drainMs: number
  readonly heartbeatMs: number
  /** Time without received bytes after which the connection is closed. Checked with each ping. */
  readonly idleMs: number
  readonly malformedMax: number
  /** Time that a client has to complete the closing handshake. */
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
