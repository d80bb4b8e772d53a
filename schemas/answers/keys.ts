import { z } from 'zod'
import { BudgetState } from '#schemas/usage.ts'
import { listOf, Seconds } from './shapes.ts'

const Count = z.int().min(0)

const LimitsAnswer = z.object({
  requests_per_minute: Count.optional(),
  tokens_per_minute: Count.optional(),
  running: Count.optional(),
  queued: Count.optional(),
  scheduled: Count.optional(),
  budget_usd_per_month: z.number().min(0).optional(),
})

/** What was used in the month under way; null where the deployment keeps no usage. */
const Month = z.object({ calls: Count, cost_usd: z.number().min(0) }).nullable()
const LastUsed = z.string().nullable().describe('Day of UTC; null: not within 90 days, or no usage is kept')

/** A key as operators see it: without its secret. */
export const KeyAnswer = z.object({
  id: z.string(),
  object: z.literal('api_key'),
  hint: z.string().describe('The end of its secret'),
  name: z.string().nullable(),
  project: z.string(),
  state: z.enum(['valid', 'revoked', 'expired']),
  is_setting: z.boolean().describe('It is SLUICE_API_KEY, and changes with that setting alone'),
  scopes: z.array(z.string()),
  endpoints: z.array(z.string()).nullable().describe('null: all'),
  models: z.array(z.string()).nullable().describe('null: all'),
  limits: LimitsAnswer,
  created_at: Seconds.nullable(),
  expires_at: Seconds.nullable(),
  last_used_on: LastUsed,
  month: Month,
})
export type KeyAnswer = z.infer<typeof KeyAnswer>

/** The key that asks, as itself. */
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
  limits: LimitsAnswer.describe(
    'Those that hold: of each the lowest of the key, its project and the settings; absent: none',
  ),
})

/** A new key: its secret is told only now. */
export const KeyCreatedAnswer = KeyAnswer.extend({ secret: z.string() })

/** A new key, and the old one, which ends. */
export const KeyRotatedAnswer = KeyCreatedAnswer.extend({ replaces: KeyAnswer })

/** A page of keys. */
export const KeyListAnswer = listOf(KeyAnswer)

/** A project. */
export const ProjectAnswer = z.object({
  id: z.string(),
  object: z.literal('project'),
  name: z.string().nullable(),
  limits: LimitsAnswer,
  keys: Count.describe('Valid ones'),
  created_at: Seconds.nullable(),
  last_used_on: LastUsed,
  month: Month,
  budget: BudgetState.nullable(),
})
export type ProjectAnswer = z.infer<typeof ProjectAnswer>

/** A page of projects. */
export const ProjectListAnswer = listOf(ProjectAnswer)

/** Who changed which key, project or webhook secret, the last first. */
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
