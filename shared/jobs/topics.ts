import type { Priority } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Topic } from '#shared/broker/broker.ts'
import { hashOf } from '#shared/lib/id.ts'

/** Number of partitions of `replies`. An ingress reads the partition that the hash of its boot id selects. */
export const REPLY_SHARDS = 16

export const REPLIES = 'replies'
/** Number of partitions of `events`. The events of a job are in the partition that the hash of the job id selects. */
export const EVENT_PARTITIONS = 8
export const EVENTS = 'events'
export const CONTROL = 'control'
export const DEAD_LETTERS = 'dead'
/** Maximum number of dead letters in the memory broker, each below 1 MiB. */
const DEAD_LETTERS_MAX = 50

/**
 * Minimum interval between fetches of `control`, in ms. One fetch per heartbeat would cost each process of a fleet of 200 five
 * percent of a core (docs/operate/scale.md). A cancel is delayed by at most this time, multiplied by the heartbeat interval of a large
 * fleet (`heartbeat.ts`).
 */
const CONTROL_FETCH_GAP_MS = 50
const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS

/** The queue of a pool: the interactive lane, or the batch lane for jobs of low priority. */
export function jobsTopic(pool: PoolName, priority: Priority = 'normal'): string {
  return priority === 'low' ? `jobs.${pool}.batch` : `jobs.${pool}`
}

/**
 * All topics for these pools, with their settings (docs/internals/protocol.md, Records).
 *
 * @param callDeadlineMs Maximum deadline of an attached job, in ms
 * @param jobDeadlineMs Maximum deadline of a durable job, in ms. Queues retain records at least that long
 */
export function topicsFor(
  pools: readonly PoolName[],
  callDeadlineMs: number,
  jobDeadlineMs: number = callDeadlineMs,
): Topic[] {
  const deadlineMs = Math.max(callDeadlineMs, jobDeadlineMs)
  const names = pools.flatMap((pool) => [jobsTopic(pool), jobsTopic(pool, 'low')])
  const queues = names.map((name): Topic => {
    const retentionMs = Math.max(72 * HOUR_MS, deadlineMs)
    // The minimum retention depends on calls only. A durable job whose record has expired is republished, but a call would be lost.
    return { name, partitions: 1, retentionMs, retentionMsMin: Math.max(HOUR_MS, callDeadlineMs), kind: 'queue' }
  })
  return [
    ...queues,
    channel(REPLIES, REPLY_SHARDS, Math.max(10 * MINUTE_MS, callDeadlineMs)),
    channel(EVENTS, EVENT_PARTITIONS, 24 * HOUR_MS),
    { ...channel(CONTROL, 1, HOUR_MS), fetchGapMs: CONTROL_FETCH_GAP_MS },
    { ...channel(DEAD_LETTERS, 1, 14 * 24 * HOUR_MS), historyMax: DEAD_LETTERS_MAX },
  ]
}

/** Records of a channel are consumed immediately. Longer retention serves only operators and processes that fell behind. */
function channel(name: string, partitions: number, retentionMs: number): Topic {
  return { name, partitions, retentionMs, retentionMsMin: MINUTE_MS, kind: 'channel' }
}

export function replyShard(boot: string): number {
  return hashOf(boot) % REPLY_SHARDS
}

export function eventPartition(jobId: string): number {
  return hashOf(jobId) % EVENT_PARTITIONS
}
