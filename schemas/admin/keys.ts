import { z } from 'zod'
import { Text } from './text.ts'

const COUNT_MAX = 1_000_000_000_000
const USD_MAX = 1_000_000_000
const Count = z.int().min(0).max(COUNT_MAX).nullable().optional()
const SECONDS_MAX = 99_999_999_999
/** Longest time that a key goes on beside its successor: 90 days, in seconds. */
const OVERLAP_SECONDS_MAX = 7_776_000
/** Paths and models that a key may name. */
const NAMES_MAX = 1_000

/** Limits that are changed: those that are not named stay. */
export const ChangeLimits = z
  .object({
    requests_per_minute: Count,
    tokens_per_minute: Count,
    running: Count.describe('Calls and durable jobs that run at once'),
    queued: Count.describe('Durable jobs that wait to be started'),
    scheduled: Count.describe('Durable jobs that wait for their time'),
    budget_usd_per_month: z.number().min(0).max(USD_MAX).nullable().optional(),
  })
  .describe('null takes a limit away, so that the setting holds; 0: nothing')

const Rights = {
  name: Text.nullable().optional().describe('Whose or what for'),
  scopes: z
    .array(z.enum(['calls', 'admin']))
    .min(1)
    .max(2)
    .nullable()
    .optional()
    .describe('null: calls'),
  endpoints: z
    .array(Text)
    .min(1)
    .max(NAMES_MAX)
    .nullable()
    .optional()
    .describe('Paths that it may call, with those below them; null: all'),
  models: z.array(Text).min(1).max(NAMES_MAX).nullable().optional().describe('By ids or aliases; null: all'),
  expires_at: z.int().min(0).max(SECONDS_MAX).nullable().optional().describe('Unix seconds; null: never'),
  limits: ChangeLimits.nullable().optional().describe('Of this key alone, beside those of its project; null: none'),
}

/** Body of `POST /v1/admin/keys`. */
export const CreateKey = z.object({
  ...Rights,
  project: Text.nullable().optional().describe('Id or name; null: the key is a project of its own'),
})

/** Body of `POST /v1/admin/keys/{id}`: what is not named stays. */
export const UpdateKey = z.object(Rights)
export type UpdateKey = z.infer<typeof UpdateKey>

/** Body of `POST /v1/admin/keys/{id}/rotate`. */
export const RotateKey = z.object({
  overlap_seconds: z
    .int()
    .min(0)
    .max(OVERLAP_SECONDS_MAX)
    .optional()
    .describe('How long the old key goes on; default: a day'),
  expires_at: Rights.expires_at.describe('When the new key ends; it must be said where the old one ends by itself'),
})

const page = {
  limit: z.coerce.number().int().min(1).max(100).default(20),
  after: Text.optional().describe('Cursor: last_id of the page before'),
}

/** Query of `GET /v1/admin/keys`. */
export const ListKeys = z.object({
  project: Text.optional().describe('Id or name'),
  state: z.enum(['valid', 'revoked', 'expired']).optional().describe('Default: all'),
  ...page,
})

/** Query of `GET /v1/admin/projects`. */
export const ListProjects = z.object(page)

/** Body of `POST /v1/admin/projects` and `…/{id}`. */
export const ChangeProject = z.object({
  name: Text.nullable().optional(),
  limits: ChangeLimits.optional().describe('Of all of its keys together'),
})

/** Query of `GET /v1/admin/audit`. */
export const ListAudit = z.object({ limit: z.coerce.number().int().min(1).max(1_000).default(50) })
