import type { PoolName } from '#schemas/job.ts'
import type { Topic } from '#shared/broker/broker.ts'

/** Partitions of `replies`. An ingress reads the one its boot id hashes to. */
export const REPLY_SHARDS = 16

/** Channel of the events of attached jobs, by reply shard. */
export const REPLIES = 'replies'
/** Channel of heartbeats and cancels; one partition that every process reads. */
export const CONTROL = 'control'
/** Records that could not be decoded, raw, for people to look at. */
export const DEAD = 'dead'

const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS

/** The queue of a pool. */
export function jobsTopic(pool: PoolName): string {
  return `jobs.${pool}`
}

/**
 * Every topic these pools need, with its settings (DESIGN section 4).
 *
 * @param deadlineMs Longest deadline a job may have. Queues keep records at least that long.
 */
export function topicsFor(pools: readonly PoolName[], deadlineMs: number): Topic[] {
  const queues = pools.map(
    (pool): Topic => ({
      name: jobsTopic(pool),
      partitions: 1,
      retentionMs: Math.max(72 * HOUR_MS, deadlineMs),
      kind: 'queue',
    }),
  )
  return [
    ...queues,
    { name: REPLIES, partitions: REPLY_SHARDS, retentionMs: Math.max(10 * MINUTE_MS, deadlineMs), kind: 'channel' },
    { name: CONTROL, partitions: 1, retentionMs: HOUR_MS, kind: 'channel' },
    { name: DEAD, partitions: 1, retentionMs: 14 * 24 * HOUR_MS, kind: 'channel' },
  ]
}

/** The reply shard of a boot id: FNV-1a, so that every process and language finds the same. */
export function replyShard(boot: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < boot.length; i++) hash = Math.imul(hash ^ boot.charCodeAt(i), 0x01000193) >>> 0
  return hash % REPLY_SHARDS
}
