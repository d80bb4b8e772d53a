import { z } from 'zod'
import { PoolName } from '#schemas/job.ts'
import { Text } from './text.ts'

/** Which jobs an operator means, of all projects. */
const Which = {
  project: Text.optional(),
  pool: PoolName.optional(),
  model: Text.optional(),
  status: z.string().max(200).optional().describe('Several with commas between'),
}
const Seconds = z.int().min(0).max(99_999_999_999)

/** Query of `GET /v1/admin/jobs`. */
export const ListAdminJobs = z.object({
  ...Which,
  since: z.coerce.number().pipe(Seconds).optional().describe('Unix seconds: only jobs made since then'),
  parent_id: z.string().max(64).optional().describe('Only those that this job has submitted, or that run it again'),
  limit: z.coerce.number().int().min(1).max(100).default(20),
  after: z.string().max(64).optional().describe('Cursor: last_id of the page before'),
})

/** Body of `POST /v1/admin/jobs/cancel` and `…/redrive`. */
export const ManyJobs = z.object({
  ...Which,
  since: Seconds.optional().describe('Unix seconds: only jobs made since then'),
  max: z.int().min(1).max(1_000).default(100).describe('At most so many, newest first'),
  dry_run: z.boolean().default(false).describe('Only says which jobs it would be'),
})
export type ManyJobs = z.infer<typeof ManyJobs>

/** Query of `GET /v1/admin/deliveries`. */
export const ListDeliveries = z.object({
  project: Text.optional(),
  status: z
    .enum(['pending', 'failed', 'delivered'])
    .optional()
    .describe('failed: given up; default: both that nobody has received'),
  limit: z.coerce.number().int().min(1).max(100).default(20),
  after: Text.optional().describe('Cursor: last_id of the page before'),
})

/** Query of `GET /v1/admin/dead-letters`. */
export const ListDeadLetters = z.object({
  pool: PoolName.optional(),
  limit: z.coerce.number().int().min(1).max(100).default(20),
  after: z.coerce.number().int().min(0).optional().describe('Cursor: last_id of the page before'),
})

/** Query of `GET /v1/admin/findings`. */
export const ListFindings = z.object({
  of: z.enum(['machine', 'fleet']).optional().describe('Only what is looked at there; default: both'),
})

/** Body of `POST /v1/admin/dead-letters/redrive`. */
export const RedriveDeadLetters = z.object({
  pool: PoolName.optional(),
  max: z.int().min(1).max(1_000).default(100).describe('At most so many, newest first'),
  after: z.coerce.number().int().min(0).optional().describe('Cursor: last_id of the answer before, for older ones'),
  dry_run: z.boolean().default(false).describe('Only says which records it would be'),
})
