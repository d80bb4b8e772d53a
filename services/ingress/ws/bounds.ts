/** What one connection, one key and the process may hold of WebSockets, and how long is waited for whom. */
export interface SocketBounds {
  readonly connectionsMax: number
  readonly connectionsMaxPerKey: number
  /** Ids active at once on one connection, subscriptions included. */
  readonly inFlightMax: number
  /** Bytes waiting to be read by the client at which nothing more is taken from its requests. */
  readonly bufferedBytesMax: number
  /** Answers waiting to be read by the client at which nothing more is read from it. */
  readonly repliesMax: number
  /** A client that takes nothing for this long, while more than the bytes above wait for it, is given up. */
  readonly drainMs: number
  /** How often each connection is pinged. */
  readonly heartbeatMs: number
  /** A connection on which nothing arrives for this long is given up; looked at with each heartbeat. */
  readonly idleMs: number
  /** Malformed frames after which a connection is closed. */
  readonly malformedMax: number
  /** How long a client may take to close its side, once told to. */
  readonly lingerMs: number
}

/** See docs/websocket.md, Limits. */
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
