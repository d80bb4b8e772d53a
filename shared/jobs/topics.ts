import type { Priority } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Topic } from '#shared/broker/broker.ts'

/** Partitions of `replies`. An ingress reads the one its boot id hashes to. */
export const REPLY_SHARDS = 16

/** Channel of the events of attached jobs; its partitions are the reply shards. */
export const REPLIES = 'replies'
/** Partitions of `events`. A job's events lie in the one its id hashes to. */
export const EVENT_PARTITIONS = 8
/** Channel of the events of durable jobs, for whoever follows them. */
export const EVENTS = 'events'
/** Channel of heartbeats and cancels; one partition that every process reads. */
export const CONTROL = 'control'
/** Records that could not be decoded, raw, for people to look at. */
export const DEAD = 'dead'
/** Records of it that one process keeps by itself, each below 1 MiB. */
const DEAD_KEPT_MAX = 50

/**
 * Everybody hears everybody on `control`. A fetch for each heartbeat would cost a fleet of 200 five percent of a core a
 * process (docs/scale.md); a cancel is late by no more than this, times the rhythm of a large fleet (`heartbeat.ts`).
 */
const CONTROL_GAP_MS = 50
const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS

/** The queue of a pool: its interactive lane, or its batch lane for jobs of low priority. */
export function jobsTopic(pool: PoolName, priority: Priority = 'normal'): string {
  return priority === 'low' ? `jobs.${pool}.batch` : `jobs.${pool}`
}

/**
 * Every topic these pools need, with its settings (docs/design.md, Topics and records).
 *
 * @param callDeadlineMs Longest deadline of an attached job.
 * @param jobDeadlineMs Longest deadline of a durable one. Queues keep records at least that long.
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
    // A durable job whose record was deleted is published again; a call waits no longer than its deadline.
    return { name, partitions: 1, retentionMs, retentionMsMin: Math.max(HOUR_MS, callDeadlineMs), kind: 'queue' }
  })
  return [
    ...queues,
    channel(REPLIES, REPLY_SHARDS, Math.max(10 * MINUTE_MS, callDeadlineMs)),
    channel(EVENTS, EVENT_PARTITIONS, 24 * HOUR_MS),
    { ...channel(CONTROL, 1, HOUR_MS), fetchGapMs: CONTROL_GAP_MS },
    { ...channel(DEAD, 1, 14 * 24 * HOUR_MS), keptMax: DEAD_KEPT_MAX },
  ]
}

/** Who reads a channel reads it as it grows: what is kept longer is for a process that fell behind, and for people. */
function channel(name: string, partitions: number, retentionMs: number): Topic {
  return { name, partitions, retentionMs, retentionMsMin: MINUTE_MS, kind: 'channel' }
}

/** The reply shard that an ingress reads, by its boot id: a partition of {@link REPLIES}. */
export function replyShard(boot: string): number {
  return hashOf(boot) % REPLY_SHARDS
}

/** The partition of {@link EVENTS} in which a durable job's events lie. */
export function eventPartition(jobId: string): number {
  return hashOf(jobId) % EVENT_PARTITIONS
}

/** FNV-1a, so that every process and language finds the same. */
export function hashOf(text: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0
  return hash
}
