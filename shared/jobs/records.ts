/**
 * Readers for records of other processes, of any version. During a rolling upgrade, older processes receive fields, events and kinds that
 * they do not support.
 *
 * Unknown fields are stripped (`tolerant.ts`). An event or control record of an unknown type is ignored. A job that this version cannot run
 * is read as an {@link UnsupportedJob} (`unsupported-jobs.ts`). For an unreadable record, the readers return undefined.
 */
import { z } from 'zod'
import { DurableEvent, type Priority } from '#schemas/durable-job.ts'
import { ControlRecord, DurableEnd, EventsRecord, JobEvent, ReplyRecord } from '#schemas/event.ts'
import { JobEnvelope, type PoolName, StoredRequest } from '#schemas/job.ts'
import type { Topic } from '#shared/broker/broker.ts'
import { hashOf } from '#shared/lib/id.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import type { Log } from '#shared/log/log.ts'

/** Fields of a job that every version can read, which suffice to requeue the job or to send an error to its caller. */
export const UnsupportedJob = JobEnvelope.pick({ id: true, attempt: true, kind: true, reply: true, deadline_ms: true })
export type UnsupportedJob = z.infer<typeof UnsupportedJob>

/**
 * Placeholder for an event of an unknown type. The event is ignored, but its sequence number counts, so that the receiver detects no gap.
 */
export const SkippedEvent = z.object({
  type: z.string().transform(() => 'skipped' as const),
  job_id: z.string(),
  attempt: z.int(),
  seq: z.int(),
})
export type SkippedEvent = z.infer<typeof SkippedEvent>

export interface WorkerReply {
  readonly worker: string
  readonly events: readonly (JobEvent | SkippedEvent)[]
  readonly skipped?: readonly string[]
}

const readers = {
  job: tolerant(JobEnvelope),
  unsupported: tolerant(UnsupportedJob),
  stored: tolerant(StoredRequest),
  reply: tolerant(ReplyRecord),
  replyHead: tolerant(ReplyRecord.extend({ events: z.array(z.unknown()) })),
  event: tolerant(JobEvent),
  control: tolerant(ControlRecord),
  events: tolerant(EventsRecord),
  eventsHead: tolerant(EventsRecord.extend({ events: z.array(z.unknown()).optional() })),
  durableEvent: tolerant(DurableEvent),
  end: tolerant(DurableEnd),
}
const EVENT_TYPES: ReadonlySet<unknown> = typesOf(JobEvent)
const CONTROL_TYPES: ReadonlySet<unknown> = typesOf(ControlRecord)
/** Maximum length of a logged type name, because names that other processes sent are not trusted. */
const TYPE_CHARS_MAX = 40

export function readJob(value: Buffer): JobEnvelope | undefined {
  return readers.job.safeParse(parseJson(value)).data
}

export function readUnsupported(value: Buffer): UnsupportedJob | undefined {
  return readers.unsupported.safeParse(parseJson(value)).data
}

/**
 * Validates a stored request and returns it with unknown fields, which a worker of a newer version needs.
 *
 * @throws ZodError if the known fields are invalid
 */
export function readStored(request: unknown): StoredRequest {
  readers.stored.parse(request)
  return request as StoredRequest
}

export function readReply(value: Buffer): WorkerReply | undefined {
  const json = parseJson(value)
  const whole = readers.reply.safeParse(json).data
  if (whole) return { ...whole, skipped: [] }
  const head = readers.replyHead.safeParse(json).data
  if (!head) return undefined
  const events: (JobEvent | SkippedEvent)[] = []
  const skipped: string[] = []
  for (const item of head.events) {
    const event = readers.event.safeParse(item).data
    if (!event) skipped.push(typeOf(item))
    // An invalid event of a known type is dropped. The receiver detects the loss by the gap in the sequence.
    const kept = event ?? (EVENT_TYPES.has((item as { type?: unknown } | null)?.type) ? undefined : skippedOf(item))
    if (kept) events.push(kept)
  }
  return { worker: head.worker, events, skipped }
}

/** Reads a record on `control`. Returns the name of the type if this version does not support the type, and undefined if the record is invalid. */
export function readControl(value: Buffer): ControlRecord | string | undefined {
  const json = parseJson(value)
  const record = readers.control.safeParse(json).data
  if (record) return record
  const type = (json as { type?: unknown } | null | undefined)?.type
  return typeof type === 'string' && !CONTROL_TYPES.has(type) ? typeOf(json) : undefined
}

interface ReceivedEvents {
  readonly events?: DurableEvent[] | undefined
  /** Input for {@link readEnd}. The end is not parsed here, because most receivers need only the events. */
  readonly end?: unknown
  readonly skipped: readonly string[]
}

/** Reads the value of a record on `events`. Events of an unknown type are left out, because subscribers read them from the store. Undefined if invalid. */
export function readEvents(value: Buffer): ReceivedEvents | undefined {
  const json = parseJson(value)
  const whole = readers.events.safeParse(json).data
  if (whole) return { events: whole.events, end: whole.end, skipped: [] }
  const head = readers.eventsHead.safeParse(json).data
  if (!head?.events) return undefined
  const items = head.events.map((item) => ({ item, event: readers.durableEvent.safeParse(item).data }))
  const events = items.flatMap(({ event }) => event ?? [])
  return { events, skipped: items.flatMap(({ item, event }) => (event ? [] : [typeOf(item)])) }
}

/** Reads the end of a job. If undefined, because absent or invalid, then the caller reads the end from the store. */
export function readEnd(end: unknown): DurableEnd | undefined {
  return end === undefined ? undefined : readers.end.safeParse(end).data
}

function skippedOf(item: unknown): SkippedEvent | undefined {
  return SkippedEvent.safeParse(item).data
}

function typeOf(item: unknown): string {
  return String((item as { type?: unknown } | null)?.type).slice(0, TYPE_CHARS_MAX)
}

function parseJson(value: Buffer): unknown {
  try {
    return JSON.parse(value.toString())
  } catch {
    return undefined
  }
}

function typesOf(union: { options: readonly { shape: { type: { value: unknown } } }[] }): ReadonlySet<unknown> {
  return new Set(union.options.map(({ shape }) => shape.type.value))
}

/** Number of partitions of `replies`. An ingress reads the partition that the hash of its own id (`boot`) selects. */
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
 * Minimum interval between fetches of `control`, in ms. In a fleet of 200 processes, one fetch per heartbeat would cost each process 5 % of a core
 * (docs/operate/scale.md). The interval grows with the fleet, by the same factor as the heartbeat interval (`peers.ts`). A cancel is delayed by at
 * most one interval.
 */
const CONTROL_FETCH_GAP_MS = 50
const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS

/** Returns the queue of a pool: the interactive lane, or the batch lane for jobs of low priority. */
export function jobsTopic(pool: PoolName, priority: Priority = 'normal'): string {
  return priority === 'low' ? `jobs.${pool}.batch` : `jobs.${pool}`
}

/**
 * Returns all topics for these pools, with their settings (docs/internals/protocol.md, Records).
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
    // The minimum retention depends only on attached calls. A durable job whose record has expired is republished, but an attached call would be
    // lost.
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

const LOG_INTERVAL_MS = 60_000
/** Maximum number of distinct log messages that have their own counter. All further messages have one common counter. */
const TYPES_MAX = 32

interface RecordType {
  count: number
  loggedAtMs: number
}

/**
 * Rate-limited log of ignored records. The first record of each type is logged at once, and later records once a minute with their count.
 * Other processes control the number of such records, so the log must not grow with it.
 */
export class UnknownRecordLog {
  readonly #log: Log
  readonly #types = new Map<string, RecordType>()

  constructor(log: Log) {
    this.#log = log
  }

  note(message: string, type = ''): void {
    const sort = this.#typeOf(`${message} ${type}`)
    sort.count++
    const now = Date.now()
    if (now - sort.loggedAtMs < LOG_INTERVAL_MS) return
    this.#log.warn({ ...(type !== '' && { type }), count: sort.count }, message)
    sort.count = 0
    sort.loggedAtMs = now
  }

  #typeOf(name: string): RecordType {
    const key = this.#types.has(name) || this.#types.size < TYPES_MAX ? name : ''
    const known = this.#types.get(key)
    if (known) return known
    const sort = { count: 0, loggedAtMs: Number.NEGATIVE_INFINITY }
    this.#types.set(key, sort)
    return sort
  }
}
