import { z } from 'zod'
import { PoolName } from '#schemas/job.ts'
import { IncludeChildren, ListJobs } from '#schemas/jobs.ts'

const TEXT_MAX = 256

/** A name, id or path. Control characters are rejected, because one of them, NUL, cannot be stored in Postgres. */
const Text = z
  .string()
  .min(1)
  .max(TEXT_MAX)
  .regex(/^\P{Cc}*$/u)

const JobFilters = {
  project: Text.optional().describe('Project id'),
  pool: PoolName.optional().describe('Pool name'),
  model: Text.optional().describe('Model id'),
  status: ListJobs.shape.status,
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
  group: z.string().max(64).optional().describe('Id of a job or batch: only the jobs that it has created'),
  include_children: IncludeChildren,
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('Maximum items per page'),
  after: z.string().max(64).optional().describe('Cursor: last_id of the previous page'),
})

export const ListAdminBatches = z.object({
  project: Text.optional().describe('Project id or name. Default: all'),
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('Maximum batches per page'),
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
    .enum(['pending', 'failed', 'delivered', 'all'])
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

const COUNT_MAX = 1_000_000_000_000
const USD_MAX = 1_000_000_000
const Count = z.int().min(0).max(COUNT_MAX).nullable().optional()
/** Maximum retention of recorded bodies, in seconds: 90 days. */
export const BODIES_SECONDS_MAX = 7_776_000
const SECONDS_MAX = 99_999_999_999
/** Maximum time that the old secret of a rotated key stays valid, in seconds: 90 days. */
const GRACE_PERIOD_SECONDS_MAX = 7_776_000
/** Maximum number of endpoints that the permissions of a key may list, and maximum number of models. */
const NAMES_MAX = 1_000

/** Omitted limits do not change. */
export const ChangeLimits = z
  .object({
    requests_per_minute: Count.describe('Requests per minute'),
    tokens_per_minute: Count.describe('Input and output tokens per minute'),
    running: Count.describe('Maximum concurrent calls and durable jobs'),
    queued: Count.describe('Maximum queued durable jobs'),
    scheduled: Count.describe('Maximum scheduled durable jobs'),
    budget_usd_per_month: z
      .number()
      .min(0)
      .max(USD_MAX)
      .nullable()
      .optional()
      .describe('US dollars per calendar month'),
    request_bodies_seconds: z
      .int()
      .min(0)
      .max(BODIES_SECONDS_MAX)
      .nullable()
      .optional()
      .describe('Time for which the request log keeps the bodies of calls, in seconds. 0: bodies are not recorded'),
  })
  .describe('null: remove the limit, so that the service-wide setting applies. 0: reject all')

const Permissions = {
  name: Text.nullable().optional().describe('Owner or purpose, such as ci-server'),
  scopes: z
    .array(z.enum(['calls', 'admin']))
    .min(1)
    .max(2)
    .nullable()
    .optional()
    .describe('calls: inference and jobs. admin: the admin API. Default: calls'),
  endpoints: z
    .array(Text)
    .min(1)
    .max(NAMES_MAX)
    .nullable()
    .optional()
    .describe('Allowed endpoint paths, including all paths below each. null: all'),
  models: z
    .array(Text)
    .min(1)
    .max(NAMES_MAX)
    .nullable()
    .optional()
    .describe('Allowed models, by id or alias. null: all'),
  expires_at: z.int().min(0).max(SECONDS_MAX).nullable().optional().describe('Expiry, in Unix seconds. null: never'),
  limits: ChangeLimits.nullable()
    .optional()
    .describe('Limits of this key, in addition to the limits of its project. null: none'),
}

export const CreateKey = z.object({
  ...Permissions,
  project: Text.nullable().optional().describe('Project id or name. null: standalone key without a project'),
})

/** Body of `POST /v1/admin/keys/{id}`. Omitted fields do not change. */
export const UpdateKey = z.object(Permissions)
export type UpdateKey = z.infer<typeof UpdateKey>

export const RotateKey = z.object({
  grace_period_seconds: z
    .int()
    .min(0)
    .max(GRACE_PERIOD_SECONDS_MAX)
    .optional()
    .describe('Time for which the old key stays valid, in seconds. Default: 86,400 (one day)'),
  expires_at: Permissions.expires_at.describe(
    'Expiry of the new key, in Unix seconds. Required if the old key has an expiry. null: never',
  ),
})

const page = {
  limit: z.coerce.number().int().min(1).max(100).default(20).describe('Maximum items per page'),
  after: Text.optional().describe('Cursor: last_id of the previous page'),
}

export const ListKeys = z.object({
  project: Text.optional().describe('Project id or name'),
  state: z.enum(['valid', 'revoked', 'expired']).optional().describe('Default: all states'),
  ...page,
})

export const ListProjects = z.object(page)

export const ChangeProject = z.object({
  name: Text.nullable().optional(),
  limits: ChangeLimits.optional().describe('Limits for all keys of the project together'),
})

export const ListAudit = z.object({
  limit: z.coerce.number().int().min(1).max(1_000).default(50).describe('Maximum audit events'),
})
