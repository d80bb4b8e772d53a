/**
 * Reads what other processes sent, whatever version they are: while a fleet is upgraded the older half meets fields, events
 * and kinds of job that it has never heard of, and must go on with what it knows.
 *
 * Fields it does not know are stripped (`tolerant.ts`). An event or a control record of a type it does not know is passed
 * over alone; a job it does not know how to run is `foreign` (`unsupported-jobs.ts`). What cannot be read at all gives undefined.
 */
import { z } from 'zod'
import { DurableEvent } from '#schemas/durable-job.ts'
import { ControlRecord, DurableEnd, EventsRecord, JobEvent, ReplyRecord } from '#schemas/event.ts'
import { JobEnvelope, StoredRequest } from '#schemas/job.ts'
import { tolerant } from '#shared/tolerant.ts'

/** A job as far as every version can read it: enough to give it to another worker, or to tell its caller. */
export const ForeignJob = JobEnvelope.pick({ id: true, attempt: true, kind: true, reply: true, deadline_ms: true })
export type ForeignJob = z.infer<typeof ForeignJob>

/** Stands for an event of a type that this version does not know: it counts in the order, and says nothing. */
export const SkippedEvent = z.object({
  type: z.string().transform(() => 'skipped' as const),
  job_id: z.string(),
  attempt: z.int(),
  seq: z.int(),
})
export type SkippedEvent = z.infer<typeof SkippedEvent>

/** The events of a reply, and the types of those that were passed over. */
export interface WorkerReply {
  readonly worker: string
  readonly events: readonly (JobEvent | SkippedEvent)[]
  readonly skipped: readonly string[]
}

const readers = {
  job: tolerant(JobEnvelope),
  foreign: tolerant(ForeignJob),
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
/** Longest name of a type that is told: what others sent is not trusted to be short. */
const TYPE_CHARS_MAX = 40

/** Reads the envelope of a job, its body not fetched yet. Undefined when it cannot be understood. */
export function readJob(value: Buffer): JobEnvelope | undefined {
  return readers.job.safeParse(parseJson(value)).data
}

/** The envelope of a job that was handed over inside this process: it is of its own version, and needs no check. */
export function jobOfPayload(said: object): JobEnvelope {
  return said as JobEnvelope
}

/** Reads as much of a job as every version can, for one that cannot be run here. Undefined when not even that is there. */
export function readForeign(value: Buffer): ForeignJob | undefined {
  return readers.foreign.safeParse(parseJson(value)).data
}

/**
 * Reads what the store keeps of a request, and keeps all of it: fields that this version does not know are for the
 * worker that does.
 *
 * @throws ZodError When it cannot be understood
 */
export function readStored(request: unknown): StoredRequest {
  readers.stored.parse(request)
  return request as StoredRequest
}

/** A record on `replies` that was passed inside this process: it is of its own version, and needs no check. */
export function passedReply(said: object): WorkerReply {
  const { worker, events } = said as ReplyRecord
  return { worker, events, skipped: [] }
}

/** Reads the value of a record on `replies`. Undefined when it cannot be understood. */
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
    // Of a type that is known it is broken: the gap it leaves in the order tells that something was lost.
    const kept = event ?? (EVENT_TYPES.has((item as { type?: unknown } | null)?.type) ? undefined : skippedOf(item))
    if (kept) events.push(kept)
  }
  return { worker: head.worker, events, skipped }
}

/** A record on `control` that was passed inside this process (see {@link passedReply}). */
export function passedControl(said: object): ControlRecord {
  return said as ControlRecord
}

/** Reads a record on `control`; a string: the type of one that this version does not know. Undefined: neither. */
export function readControl(value: Buffer): ControlRecord | string | undefined {
  const json = parseJson(value)
  const record = readers.control.safeParse(json).data
  if (record) return record
  const type = (json as { type?: unknown } | null | undefined)?.type
  return typeof type === 'string' && !CONTROL_TYPES.has(type) ? typeOf(json) : undefined
}

/** What a record on `events` says, as far as it is understood, and the types of the events that were passed over. */
export interface HeardEvents {
  readonly events?: DurableEvent[] | undefined
  /** For {@link readEnd}: most who hear of an end need no more than its event. */
  readonly end?: unknown
  readonly skipped: readonly string[]
}

/**
 * Reads the value of a record on `events`. Events of a type that this version does not know are passed over: they are
 * in the store, for those who miss them. Undefined when it cannot be understood.
 */
export function readEvents(value: Buffer): HeardEvents | undefined {
  const json = parseJson(value)
  const whole = readers.events.safeParse(json).data
  if (whole) return { events: whole.events, end: whole.end, skipped: [] }
  const head = readers.eventsHead.safeParse(json).data
  if (!head?.events) return undefined
  const items = head.events.map((item) => ({ item, event: readers.durableEvent.safeParse(item).data }))
  const events = items.flatMap(({ event }) => event ?? [])
  return { events, skipped: items.flatMap(({ item, event }) => (event ? [] : [typeOf(item)])) }
}

/** Reads how a job ended. Undefined when it was not told, or cannot be understood: the store has it. */
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
