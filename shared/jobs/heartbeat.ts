/** How often a process that has something to do says that it lives, in a fleet that is not large, in milliseconds. */
export const HEARTBEAT_MS = 500
/** Rhythm of a process that has nothing to do: each heartbeat wakes all others, which have nothing to do either. */
const IDLE_RHYTHM = 2
/** How often it says that it lives, in milliseconds. */
export const IDLE_HEARTBEAT_MS = IDLE_RHYTHM * HEARTBEAT_MS
/** Half seconds without a job after which a process has nothing to do. */
export const IDLE_FROM = 10
/** Processes for each half second between two heartbeats: so many of them everybody hears each half second, and no more. */
const FLEET_PER_BEAT = 100
/** Longest rhythm: beyond 1,000 processes what is heard grows again, but a dead one is noticed. */
export const HEARTBEAT_INTERVAL_MAX = 10

/** What a {@link heartbeatIntervalOf} is made from: what peers told of theirs. */
interface Rhythmic {
  readonly rhythm: number | undefined
}

/**
 * How often a process says that it lives: every so many half seconds, 1 to 10. Everybody hears everybody, so at one rhythm for
 * all fleets what is heard would grow with the square of the processes (docs/scale.md, Processes).
 *
 * @param peers All processes of the fleet. Those that never told a rhythm may be older, and count on two heartbeats a second.
 * @param isIdle Whether it has had nothing to do for {@link IDLE_FROM} half seconds.
 */
export function heartbeatIntervalOf(peers: ReadonlyMap<string, Rhythmic>, own: string, isIdle: boolean): number {
  const wanted = Math.max(isIdle ? IDLE_RHYTHM : 1, Math.ceil(peers.size / FLEET_PER_BEAT))
  if (wanted === 1) return 1
  for (const [boot, { rhythm }] of peers) if (rhythm === undefined && boot !== own) return 1
  return Math.min(HEARTBEAT_INTERVAL_MAX, wanted)
}

/**
 * What silence is allowed in addition at a rhythm, in milliseconds: the longer rest, and as much again, so that a channel
 * which is late shows in our own heartbeat before it shows in those of others.
 */
export function slackMs(rhythm: number): number {
  return 2 * (rhythm - 1) * HEARTBEAT_MS
}
