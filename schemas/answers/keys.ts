import { z } from 'zod'
import { BudgetState } from '#schemas/usage.ts'
import { listOf, Seconds } from './models.ts'

const Count = z.int().min(0)

const LimitsAnswer = z.object({
  requests_per_minute: Count.optional(),
  tokens_per_minute: Count.optional(),
  running: Count.optional(),
  queued: Count.optional(),
  scheduled: Count.optional(),
  budget_usd_per_month: z.number().min(0).optional(),
  request_bodies_seconds: Count.optional(),
})

const Month = z
  .object({ calls: Count, cost_usd: z.number().min(0) })
  .nullable()
  .describe('Usage of the current calendar month (UTC). null: this deployment records no usage')
const LastUsed = z.string().nullable().describe('UTC date. null: not used in the last 90 days, or no usage is recorded')

export const KeyAnswer = z.object({
  id: z.string(),
  object: z.literal('api_key'),
  hint: z.string().describe('Last characters of the secret'),
  name: z.string().nullable(),
  project: z.string(),
  state: z.enum(['valid', 'revoked', 'expired']),
  is_setting: z.boolean().describe('The key is the setting SLUICE_API_KEY and cannot be changed through the API'),
  scopes: z.array(z.string()),
  endpoints: z.array(z.string()).nullable().describe('Allowed endpoint paths. null: all'),
  models: z.array(z.string()).nullable().describe('Allowed model ids. null: all'),
  limits: LimitsAnswer,
  created_at: Seconds.nullable(),
  expires_at: Seconds.nullable(),
  last_used_on: LastUsed,
  month: Month,
})
export type KeyAnswer = z.infer<typeof KeyAnswer>

export const OwnKeyAnswer = KeyAnswer.pick({
  id: true,
  object: true,
  name: true,
  project: true,
  scopes: true,
  endpoints: true,
  models: true,
  expires_at: true,
}).extend({
  project_name: z.string().nullable().describe('Name of the project. null: the project has no name'),
  limits: LimitsAnswer.describe('Effective limits: the lowest of key, project and settings. Absent: no limit'),
})

export const KeyCreatedAnswer = KeyAnswer.extend({ secret: z.string().describe('Returned only once') })

export const KeyRotatedAnswer = KeyCreatedAnswer.extend({
  replaces: KeyAnswer.describe('The old key, which stays valid until `expires_at`'),
})

export const KeyListAnswer = listOf(KeyAnswer)

export const ProjectAnswer = z.object({
  id: z.string(),
  object: z.literal('project'),
  name: z.string().nullable(),
  limits: LimitsAnswer,
  keys: Count.describe('Number of valid keys'),
  created_at: Seconds.nullable(),
  last_used_on: LastUsed,
  month: Month,
  budget: BudgetState.nullable(),
})
export type ProjectAnswer = z.infer<typeof ProjectAnswer>

export const ProjectListAnswer = listOf(ProjectAnswer)

/** Changes of API keys, projects and webhook secrets, newest first. */
export const AuditListAnswer = z.object({
  object: z.literal('list'),
  data: z.array(
    z.object({
      at: Seconds,
      author: z.string(),
      action: z.string(),
      subject: z.string(),
      project: z.string().nullable(),
      change: z.record(z.string(), z.unknown()),
    }),
  ),
})
