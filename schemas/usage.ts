import { z } from 'zod'

/** Days that one question may span. */
export const USAGE_DAYS_MAX = 366

/** Query of `GET /v1/usage` (docs/usage.md, Ask for it). Days are of UTC, both included. */
export const ReadUsage = z.object({
  from: z.iso.date().optional().describe('First day; default: the first of this month'),
  to: z.iso.date().optional().describe('Last day; default: today'),
  group_by: z.enum(['project', 'key', 'model', 'day']).default('day'),
  project: z
    .string()
    .max(200)
    .regex(/^\P{Cc}*$/u)
    .optional()
    .describe('Operators only; absent: theirs are all'),
  key: z
    .string()
    .max(200)
    .regex(/^\P{Cc}*$/u)
    .optional()
    .describe('Id of one key; absent: all of the project'),
  beta: z.unknown().optional().describe('Some SDKs put it into every query; ignored everywhere'),
})
export type ReadUsage = z.infer<typeof ReadUsage>

const Count = z.int().min(0)

/** What was used, in the words of the wire. */
export const UsageSums = z.object({
  calls: Count.describe('Calls and jobs that ended'),
  failed: Count,
  input_tokens: Count,
  cached_input_tokens: Count.describe('Of the input tokens'),
  output_tokens: Count,
  audio_seconds: z.number().min(0),
  cost_usd: z.number().min(0),
})
export type UsageSums = z.infer<typeof UsageSums>

/** A budget of the month under way, and what is left of it. */
export const BudgetState = z.object({
  owner: z.enum(['project', 'key']),
  id: z.string(),
  month: z.string().describe('Of UTC, such as 2030-01'),
  budget_usd: z.number().min(0),
  spent_usd: z.number().min(0),
  remaining_usd: z.number().min(0),
  resets_at: z.int().describe('Unix seconds'),
})
export type BudgetState = z.infer<typeof BudgetState>

/** The answer of `GET /v1/usage`. */
export const UsageReport = z.object({
  object: z.literal('usage'),
  from: z.string(),
  to: z.string(),
  group_by: ReadUsage.shape.group_by.unwrap(),
  project: z.string().nullable().describe('Null: every project'),
  data: z.array(UsageSums.extend({ group: z.string().describe('The project, key, model or day') })),
  has_more: z.boolean().describe('There are more groups than one answer holds'),
  total: UsageSums.describe('Of `data`'),
  budgets: z.array(BudgetState).describe('Of the project and key that ask, where they have one'),
})
export type UsageReport = z.infer<typeof UsageReport>
