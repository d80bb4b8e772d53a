/** Heartbeat interval in ms of a busy process in a small fleet, and the unit of longer intervals. */
export const HEARTBEAT_MS = 500
/**
 * Interval of an idle process, in units of {@link HEARTBEAT_MS}. Longer than that of a busy process, because each heartbeat wakes
 * every other process.
 */
const IDLE_INTERVAL = 2
export const IDLE_HEARTBEAT_MS = IDLE_INTERVAL * HEARTBEAT_MS
/** Number of units without a job after which a process counts as idle. */
export const IDLE_UNITS = 10
/** Number of processes for which the interval grows by one unit. Each process thus receives about this many heartbeats per 500 ms. */
const PROCESSES_PER_UNIT = 100
/** Maximum interval in units. Beyond 1,000 processes the load grows again, but a dead process is detected in time. */
export const HEARTBEAT_INTERVAL_MAX = 10

type Peers = ReadonlyMap<string, { readonly heartbeatInterval: number | undefined }>

/**
 * Heartbeat interval of this process, in units of 500 ms, from 1 to 10.
 *
 * Every process receives the heartbeats of all others. With a constant interval, the load would grow with the square of the fleet
 * (docs/operate/scale.md, Processes). Example: 250 processes give an interval of 3 units, which is 1.5 s.
 *
 * @param peers All processes. If one has published no interval, then it may be an older version that expects 500 ms, and the
 * result is 1
 * @param isIdle True if this process had no job for {@link IDLE_UNITS} units
 */
export function heartbeatIntervalOf(peers: Peers, own: string, isIdle: boolean): number {
  const wanted = Math.max(isIdle ? IDLE_INTERVAL : 1, Math.ceil(peers.size / PROCESSES_PER_UNIT))
  if (wanted === 1) return 1
  for (const [boot, { heartbeatInterval }] of peers) if (heartbeatInterval === undefined && boot !== own) return 1
  return Math.min(HEARTBEAT_INTERVAL_MAX, wanted)
}

/**
 * Silence in ms that is tolerated in addition at a heartbeat interval of n × 500 ms: twice the added interval, which is 2 × (n − 1) × 500
 * ms. A late channel thus shows in our own heartbeat before a peer is suspected.
 */
export function slackMs(interval: number): number {
  return 2 * (interval - 1) * HEARTBEAT_MS
}
