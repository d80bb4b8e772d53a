import { z } from 'zod'
import { PoolName } from '#schemas/job.ts'
import { Text } from './text.ts'

const JobFilters = {
  project: Text.optional().describe('Project id'),
  pool: PoolName.optional().describe('Pool name'),
  model: Text.optional().describe('Model id'),
  status: z.string().max(200).optional().describe('Comma-separated job statuses. Default: all'),
}
const Seconds = z.int().min(0).max(99_999_999_999)

export const ListAdminJobs = z.object({
  ...JobFilters,
  since: z.coerce
    .number()
    .pipe(Seconds)
    .optional()
    .describe('Only jobs created at or after this time, in Unix seconds'),
  parent_id: z.string().max(64).optional().describe('Only child jobs and redrives of this job'),
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('Maximum items per page'),
  after: z.string().max(64).optional().describe('Cursor: last_id of the previous page'),
})

/** Body of `POST /v1/admin/jobs/cancel` and `POST /v1/admin/jobs/redrive`. */
export const BulkJobs = z.object({
  ...JobFilters,
  since: Seconds.optional().describe('Only jobs created at or after this time, in Unix seconds'),
  max: z.int().min(1).max(1_000).default(100).describe('Maximum number of objects, newest first'),
  dry_run: z.boolean().default(false).describe('List the matching jobs without changing them'),
})
export type BulkJobs = z.infer<typeof BulkJobs>

export const ListDeliveries = z.object({
  project: Text.optional().describe('Project id'),
  status: z
    .enum(['pending', 'failed', 'delivered'])
    .optional()
    .describe('failed: all attempts failed. Default: pending and failed'),
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('Maximum items per page'),
  after: Text.optional().describe('Cursor: last_id of the previous page'),
})

export const ListDeadLetters = z.object({
  pool: PoolName.optional().describe('Pool name'),
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('Maximum items per page'),
  after: z.coerce.number().int().min(0).optional().describe('Cursor: last_id of the previous page'),
})

export const ListFindings = z.object({
  of: z
    .enum(['machine', 'fleet'])
    .optional()
    .describe('Only checks of this process (machine) or of all processes (fleet). Default: both'),
})

export const RedriveDeadLetters = z.object({
  pool: PoolName.optional().describe('Pool name'),
  max: z.int().min(1).max(1_000).default(100).describe('Maximum number of objects, newest first'),
  after: z.coerce
    .number()
    .int()
    .min(0)
    .optional()
    .describe('Cursor: last_id of the previous response, for older dead letters'),
  dry_run: z.boolean().default(false).describe('List the matching dead letters without requeuing them'),
})
