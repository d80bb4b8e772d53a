/*
 * Records about jobs between processes, in three topics:
 *
 * 1. `replies`: one record contains many events of one worker for one ingress (`ReplyRecord`). The key is the boot id of that ingress. Other
 *    ingresses that read the same partition compare the key, and drop the record without parsing it.
 * 2. `control`: heartbeats, cancels, pauses and announcements for every process (`ControlRecord`). A starting process reads this topic from its end,
 *    so it receives only later records.
 * 3. `events`: the events of one committed state transition of a durable job (`EventsRecord`).
 */

import { z } from 'zod'
import { DurableEvent, DurableJob, Priority } from './durable-job.ts'
import { ErrorBody } from './error.ts'
import { PoolName } from './job.ts'

const Server = z
  .string()
  .max(200)
  .optional()
  .describe('Upstream server of the attempt: index in base_urls of the model, after `model/` if a fallback ran the job')

/** Event of one attempt of an attached job. `seq` counts from 1 in each attempt, without gaps. */
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
    deltas: z.array(z.unknown()).describe('Last events of the kind. All events if the job does not stream'),
    server: Server,
  }),
  z.strictObject({
    type: z.literal('failed'),
    job_id: z.string(),
    attempt: z.int(),
    seq: z.int(),
    error: ErrorBody,
    server: Server,
  }),
  z
    .strictObject({
      type: z.literal('handed_back'),
      job_id: z.string(),
      attempt: z.int(),
      seq: z.int(),
    })
    .describe('The worker drains and returns the unfinished job. The retry budget is unchanged'),
])
export type JobEvent = z.infer<typeof JobEvent>

export const ReplyRecord = z.strictObject({
  worker: z.string().describe('Boot id of the worker'),
  events: z.array(JobEvent),
})
export type ReplyRecord = z.infer<typeof ReplyRecord>

export const ControlRecord = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('heartbeat'),
    boot: z.string(),
    role: z
      .union([PoolName, z.enum(['ingress', 'scheduler', 'other'])])
      .catch('other')
      .describe('other: a role of a newer version'),
    slots: z.int().min(0).describe('Maximum concurrent jobs. 0: not a worker'),
    running: z.int().min(0),
    draining: z.boolean(),
    version: z.string(),
  }),
  z.strictObject({
    type: z.literal('cancel'),
    job_id: z.string(),
    attempt: z.int().optional().describe('Absent: every attempt'),
    worker: z.string().optional().describe('Absent: any worker that runs the job'),
    partial: z.boolean().optional().describe('The job writes a partial result before it ends'),
  }),
  z
    .strictObject({ type: z.literal('pause'), job_id: z.string(), attempt: z.int() })
    .describe('The client reads slowly: stop sending output'),
  z.strictObject({ type: z.literal('resume'), job_id: z.string(), attempt: z.int() }),
  z
    .strictObject({
      type: z.literal('capacity'),
      boot: z.string(),
      models: z.array(z.string()).nullable().describe('Ids of the models that the worker can run. null: any model'),
      concurrency_limits: z
        .array(z.strictObject({ kind: z.string(), model: z.string(), capacity: z.int().min(1) }))
        .describe('Concurrency limits of models, if below the slots'),
      backlog: z
        .array(z.strictObject({ kind: z.string(), model: z.string(), priority: Priority }))
        .describe('Queues of the store with durable jobs that the worker had no free slot for'),
      parked_calls: z
        .int()
        .min(0)
        .optional()
        .describe(
          'Calls that wait in the worker for the concurrency limit of their model. This field and the next are absent in older versions',
        ),
      host: z.string().optional().describe('Host name'),
      pid: z.int().optional(),
      adaptive_limits: z
        .array(
          z.strictObject({
            model: z.string(),
            server: z.int().min(0).describe('Index of the server in base_urls of the model'),
            generation: z.int().min(1).describe('Number of times the limit was lowered'),
            limit: z.int().min(1),
          }),
        )
        .optional()
        .describe('Adaptive concurrency limits of upstream servers, for all workers together'),
      preparing: z
        .array(
          z.strictObject({
            model: z.string().nullable().describe('null: any model'),
            resource: z.string().describe('Model or environment that is downloaded, built or loaded'),
            percent: z.int().min(0).max(100),
            step: z.string(),
          }),
        )
        .optional()
        .describe('Models whose calls wait in the worker, because a part of them is not ready yet'),
      work: z
        .array(
          z.strictObject({
            pool: PoolName,
            model: z.string(),
            queued: z.int().min(0).describe('Attached calls of an ingress, or durable jobs of the store'),
            running: z.int().min(0),
            oldest_at_ms: z.int().optional().describe('Start of the oldest wait'),
            ended: z.int().min(0).optional().describe('Recent attempts of a worker, older ones with less weight'),
            busy_ms: z.int().min(0).optional().describe('Run time of these attempts together'),
          }),
        )
        .optional()
        .describe('Waiting and running work by model, as this process sees it'),
      prompt_tokens: z
        .array(
          z.strictObject({
            model: z.string(),
            server: z.int().min(0).describe('Index of the server in base_urls of the model'),
            input: z.int().min(0),
            cached: z.int().min(0).describe('Tokens that the server read from its prefix cache'),
          }),
        )
        .optional()
        .describe('Prompt tokens of upstream servers since the worker opened the model'),
      open_circuits: z.array(z.string()).optional().describe('Models whose circuit breakers on all servers are open'),
    })
    .describe(
      'Capacity and host of a worker. Separate from the heartbeat, because older versions reject heartbeats with unknown fields',
    ),
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
          tenants: z.array(z.string()).describe('Hashes of the tenants'),
          more_tenants: z.int().min(0).describe('Number of further tenants'),
        }),
      ),
    })
    .describe('Calls that wait in the fair queue of an ingress. Ingresses divide the slots of a pool by tenant'),
  z
    .strictObject({
      type: z.literal('jobs_waiting'),
      pool: PoolName,
      backlog: z.array(z.strictObject({ kind: z.string(), model: z.string(), priority: Priority })),
    })
    .describe('Notification: durable jobs were queued in the store, for workers with free slots'),
  z
    .strictObject({
      type: z.literal('pause_work'),
      target: z.enum(['model', 'pool']),
      id: z.string(),
      paused: z.boolean(),
      by: z.string().describe('Id of the API key of the operator'),
    })
    .describe('An operator paused or resumed a model or a pool. The store has the same state'),
  z
    .strictObject({ type: z.literal('drain'), boot: z.string(), drained: z.boolean() })
    .describe('An operator drains or undrains a worker'),
  z
    .strictObject({
      type: z.literal('heartbeat_interval'),
      boot: z.string(),
      interval_ms: z.int().min(1).describe('Heartbeat interval, in milliseconds. Longer in a large fleet'),
    })
    .describe(
      'Heartbeat interval of a process that supports variable intervals. Separate from the heartbeat, because older versions reject heartbeats with unknown fields',
    ),
  z.strictObject({ type: z.literal('leave'), boot: z.string() }).describe('Graceful shutdown of a process'),
])
export type ControlRecord = z.infer<typeof ControlRecord>

export const EventsRecord = z.strictObject({
  last_seq: z.int().min(1),
  events: z.array(DurableEvent).optional().describe('Absent if too large: read them from the store'),
  end: z.unknown().optional().describe('A DurableEnd for waiting clients. Absent if too large: read it from the store'),
})
export type EventsRecord = z.infer<typeof EventsRecord>

/** A job in a terminal state with its stored result. The result is null unless the job completed. */
export const DurableEnd = z.strictObject({ job: DurableJob, result: z.unknown() })
export type DurableEnd = z.infer<typeof DurableEnd>
