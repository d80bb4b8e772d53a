import { z } from 'zod'

/** What a pool is for; also the name of its topic (`jobs.<pool>`) and of its service. */
export const PoolName = z.enum(['inference'])
export type PoolName = z.infer<typeof PoolName>

/**
 * A job as it travels on `jobs.<pool>` (DESIGN section 4).
 *
 * `id` and `attempt` together name one execution. Times are absolute unix milliseconds.
 */
export const JobEnvelope = z.strictObject({
  id: z.string().startsWith('job_'),
  attempt: z.int().min(1).describe('Counts executions; fences the output of older ones'),
  pool: PoolName,
  kind: z.string().describe('What to do in the pool, such as generate'),
  tenant: z.string().describe('Id of the API key the job belongs to'),
  model: z.string(),
  created_at_ms: z.number(),
  deadline_ms: z.number().describe('No output counts after this'),
  reply: z
    .strictObject({ boot: z.string().describe('Boot id of the ingress that holds the job'), shard: z.int().min(0) })
    .describe('Where the events of an attached job go'),
  stream: z.boolean().describe('Deltas are wanted as they come; otherwise they are held back until the end'),
  traceparent: z.string().optional().describe('W3C Trace Context'),
  request_id: z.string().optional(),
  body: z.unknown().optional().describe('The request in the internal form of its kind, up to 64 KiB of JSON'),
  blob: z.string().optional().describe('Where the body lies when it is larger'),
})
export type JobEnvelope = z.infer<typeof JobEnvelope>
