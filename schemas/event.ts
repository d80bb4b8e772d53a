import { z } from 'zod'
import { DurableEvent, DurableJob, Priority } from './durable-job.ts'
import { ErrorBody } from './error.ts'
import { PoolName } from './job.ts'

/**
 * What a worker says about one attempt of an attached job, on the reply shard of its ingress.
 *
 * One Kafka record carries many events of one worker for one ingress ({@link ReplyRecord}); its key is the ingress' boot
 * id, so that a replica sharing the shard drops it without parsing. `seq` counts from 1 in each attempt without gaps.
 */
export const JobEvent = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('started'), job_id: z.string(), attempt: z.int(), seq: z.int() }),
  z.strictObject({
    type: z.literal('delta'),
    job_id: z.string(),
    attempt: z.int(),
    seq: z.int(),
    deltas: z.array(z.unknown()).describe('Events of the kind, such as GenerateEvent'),
  }),
  z.strictObject({
    type: z.literal('completed'),
    job_id: z.string(),
    attempt: z.int(),
    seq: z.int(),
    deltas: z.array(z.unknown()).describe('The last events of the kind; all of them when the job does not stream'),
  }),
  z.strictObject({ type: z.literal('failed'), job_id: z.string(), attempt: z.int(), seq: z.int(), error: ErrorBody }),
  z
    .strictObject({
      type: z.literal('handed_back'),
      job_id: z.string(),
      attempt: z.int(),
      seq: z.int(),
    })
    .describe('The worker drains and did not finish; the retry budget is untouched'),
])
export type JobEvent = z.infer<typeof JobEvent>

/** Value of a record on `replies`. */
export const ReplyRecord = z.strictObject({
  worker: z.string().describe('Boot id of the worker'),
  events: z.array(JobEvent),
})
export type ReplyRecord = z.infer<typeof ReplyRecord>

/** Value of a record on `control`: read by every process, from the end. */
export const ControlRecord = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('heartbeat'),
    boot: z.string(),
    role: z
      .union([PoolName, z.enum(['ingress', 'scheduler', 'other'])])
      .catch('other')
      .describe('other: one that this version does not know'),
    slots: z.int().min(0).describe('Jobs it can run at once; 0 for what is no worker'),
    running: z.int().min(0),
    draining: z.boolean(),
    version: z.string(),
  }),
  z.strictObject({
    type: z.literal('cancel'),
    job_id: z.string(),
    attempt: z.int().optional().describe('Absent: every attempt'),
    worker: z.string().optional().describe('Absent: whichever worker runs it'),
    partial: z.boolean().optional().describe('It is to write what there is, and to end then'),
  }),
  z
    .strictObject({ type: z.literal('pause'), job_id: z.string(), attempt: z.int() })
    .describe('The reader is slow: stop emitting'),
  z.strictObject({ type: z.literal('resume'), job_id: z.string(), attempt: z.int() }),
  z
    .strictObject({
      type: z.literal('capacity'),
      boot: z.string(),
      models: z.array(z.string()).nullable().describe('Ids of the models it can run; null: whichever is asked for'),
      bounds: z
        .array(z.strictObject({ kind: z.string(), model: z.string(), capacity: z.int().min(1) }))
        .describe('Jobs it can have running at once, where these are fewer than its slots'),
      waiting: z
        .array(z.strictObject({ kind: z.string(), model: z.string(), priority: Priority }))
        .describe('Durable jobs that it had no room for: they are queued in the store, for whoever has room'),
      aside: z
        .int()
        .min(0)
        .optional()
        .describe('Calls that it holds without a slot; absent in older versions, as those below'),
      host: z.string().optional().describe('Name of its machine'),
      pid: z.int().optional(),
      found: z
        .array(
          z.strictObject({
            model: z.string(),
            server: z.int().min(0).describe('Its place among the servers of the model'),
            generation: z.int().min(1).describe('How often the limit was lowered'),
            limit: z.int().min(1),
          }),
        )
        .optional()
        .describe('Calls at once that servers were found to bear, from all workers together'),
      failing: z
        .array(z.string())
        .optional()
        .describe('Models whose servers all keep failing, so that calls are refused'),
    })
    .describe('What a worker can start, and where it is. Beside the heartbeat, which older processes read strictly'),
  z
    .strictObject({
      type: z.literal('calls_waiting'),
      boot: z.string(),
      queues: z.array(
        z.strictObject({
          pool: z.string(),
          kind: z.string(),
          model: z.string(),
          calls: z.int().min(1),
          tenants: z.array(z.string()).describe('Hashes of whose they are'),
          more_tenants: z.int().min(0).describe('How many others there are'),
        }),
      ),
    })
    .describe('Calls that wait in an ingress for their turn: the ingresses share a pool by whose they are'),
  z
    .strictObject({
      type: z.literal('jobs_waiting'),
      pool: PoolName,
      waiting: z.array(z.strictObject({ kind: z.string(), model: z.string(), priority: Priority })),
    })
    .describe('Durable jobs were queued in the store: for whoever has room'),
  z
    .strictObject({
      type: z.literal('pause_work'),
      what: z.enum(['model', 'pool']),
      id: z.string(),
      paused: z.boolean(),
      by: z.string().describe('Id of the key that asked for it'),
    })
    .describe('An operator pauses a model or a pool, or ends that; the store says the same'),
  z
    .strictObject({ type: z.literal('drain'), boot: z.string(), drained: z.boolean() })
    .describe('An operator wants a worker to take nothing more, or to take jobs again'),
  z
    .strictObject({
      type: z.literal('rhythm'),
      boot: z.string(),
      beat_ms: z.int().min(1).describe('Between two of its heartbeats, which are further apart in a large fleet'),
    })
    .describe('Tells that it knows of rhythms, too. Beside the heartbeat, which older processes read strictly'),
  z.strictObject({ type: z.literal('goodbye'), boot: z.string() }).describe('The process leaves in good order'),
])
export type ControlRecord = z.infer<typeof ControlRecord>

/** Value of a record on `events`: what one move of a durable job wrote, once it is committed. */
export const EventsRecord = z.strictObject({
  last_seq: z.int().min(1),
  events: z.array(DurableEvent).optional().describe('Absent when they are too large: they are in the store'),
  end: z
    .unknown()
    .optional()
    .describe('A DurableEnd, for those who wait for it; absent where it is large: it is in the store'),
})
export type EventsRecord = z.infer<typeof EventsRecord>

/** A job that has ended as its row says it, with the result that is kept of it: null unless it completed. */
export const DurableEnd = z.strictObject({ job: DurableJob, result: z.unknown() })
export type DurableEnd = z.infer<typeof DurableEnd>
