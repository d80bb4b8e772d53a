import { z } from 'zod'
import { recordOf } from './lib/record.ts'

export const USAGE_DAYS_MAX = 366
/** Number of days for which the ledger stores usage per hour. Older hours are merged into their day. */
export const HOURS_DAYS = 7

const Name = z
  .string()
  .max(200)
  .regex(/^\P{Cc}*$/u)

const Hour = z
  .string()
  .regex(/^\d{4}-\d\d-\d\dT([01]\d|2[0-3])$/)
  .refine((hour) => z.iso.date().safeParse(hour.slice(0, 10)).success)

/** A UTC day, or an hour of it such as `2030-01-31T08`. */
const Time = z.union([z.iso.date(), Hour], {
  error: 'must be a day such as 2030-01-31, or an hour such as 2030-01-31T08',
})

/** Dimensions by which a usage report can be grouped. */
export const USAGE_GROUPS = ['project', 'key', 'model', 'endpoint', 'day', 'hour'] as const
export type UsageGroup = (typeof USAGE_GROUPS)[number]
const ONE_GROUP = `(${USAGE_GROUPS.join('|')})`

/** Query of `GET /v1/usage` (docs/operate/usage.md). Days are UTC days. The first and the last day are included. */
export const ReadUsage = z.object({
  from: Time.optional().describe(
    'First UTC day, or an hour such as 2030-01-31T08. Default: the first day of the month of `to`',
  ),
  to: Time.optional().describe('Last UTC day or hour, included. Default: today'),
  group_by: z
    .string()
    .regex(new RegExp(`^${ONE_GROUP}(,${ONE_GROUP})*$`), `must be one or several of ${USAGE_GROUPS.join(', ')}`)
    .refine((text) => new Set(text.split(',')).size === text.split(',').length, 'must name each dimension only once')
    .default('day')
    .describe(
      `One row per project, key, model, endpoint, day or hour, or per combination, such as day,project,model. Hours are stored for ${HOURS_DAYS} days`,
    ),
  order_by: z
    .enum(['group', 'cost'])
    .default('group')
    .describe('Order of the rows: by group, or the most expensive groups first'),
  compare: z
    .enum(['previous'])
    .optional()
    .describe(
      '`previous`: adds `comparison` and, per row, `compared`: the full days or hours of the period, and equally many before it',
    ),
  project: Name.optional().describe(
    'Project id or name. Default: the project of the key; with the admin scope, all projects',
  ),
  key: Name.optional().describe('API key id. Default: all keys of the project'),
  model: Name.optional().describe('Model id. Default: all models'),
  endpoint: Name.optional().describe('Path of an endpoint, such as /v1/chat/completions. Default: all endpoints'),
  format: z
    .enum(['json', 'csv'])
    .optional()
    .describe('Format of the response. Default: CSV if the header Accept begins with text/csv, otherwise JSON'),
  beta: z.unknown().optional().describe('Ignored. Some SDKs add this parameter to every query'),
})
export type ReadUsage = z.infer<typeof ReadUsage>

const Count = z.int().min(0)

export const UsageSums = z.object({
  calls: Count.describe('Calls and jobs that have ended'),
  failed: Count.describe(
    'Calls with the status 400 or above, refused calls included and 499 excluded, and failed or expired jobs',
  ),
  input_tokens: Count,
  cached_input_tokens: Count.describe('Part of the input tokens that came from a prompt cache'),
  output_tokens: Count,
  audio_seconds: z.number().min(0),
  cost_usd: z.number().min(0),
})
export type UsageSums = z.infer<typeof UsageSums>

/** A budget and the amount that remains in the current month. */
export const BudgetState = z.object({
  owner: z.enum(['project', 'key']),
  id: z.string(),
  name: z.string().nullable().default(null),
  month: z.string().describe('UTC month, such as 2030-01'),
  budget_usd: z.number().min(0),
  spent_usd: z.number().min(0),
  remaining_usd: z.number().min(0),
  resets_at: z.int().describe('Start of the next month, in Unix seconds'),
})
export type BudgetState = z.infer<typeof BudgetState>

export const BudgetForecast = z.object({
  usd_per_day: z.number().min(0).describe('Mean spending per day over the last days, at most 7'),
  days: z.int().min(1).optional().describe('Number of days of this mean, the first one with spending included'),
  month_end_usd: z.number().min(0).nullish().describe('Spending of the whole month at this rate'),
  used_up_at: z
    .int()
    .nullable()
    .describe('Unix seconds at which the budget is used up at this rate. null: not before the budget resets'),
})
export type BudgetForecast = z.infer<typeof BudgetForecast>

/** Spending of the current month (UTC), with or without a budget. */
export const CurrentMonth = BudgetState.pick({ month: true, spent_usd: true, resets_at: true }).extend({
  forecast: BudgetForecast.nullable().describe(
    'From the spending of the last days. null: spending on fewer than two days',
  ),
})
export type CurrentMonth = z.infer<typeof CurrentMonth>

/** Type and data of the webhook message about a budget that is partly or completely spent (docs/operate/usage.md, Alerts). */
export const BUDGET_EVENT = 'budget.threshold_reached'
export const BudgetEventData = BudgetState.extend({
  project: z.string(),
  threshold_percent: z.union([z.literal(80), z.literal(100)]),
})
export type BudgetEventData = z.infer<typeof BudgetEventData>

/** Usage of a window of full days or hours. */
const ComparedWindow = z.object({
  from: z.string(),
  to: z.string().describe('Last day or hour, included'),
  total: UsageSums,
  units_with_usage: Count.describe('Days or hours that have usage'),
})

/** Change of a period since the period before it. */
export const UsageComparison = z.object({
  unit: z.enum(['day', 'hour']),
  units: Count.describe('Number of full days or hours of the period'),
  current: ComparedWindow,
  previous: ComparedWindow,
})
export type UsageComparison = z.infer<typeof UsageComparison>

export const UsageReport = z.object({
  object: z.literal('usage'),
  from: z.string(),
  to: z.string(),
  group_by: z.string().describe('As in the query'),
  project: z.string().nullable().describe('null: all projects'),
  data: z.array(
    UsageSums.extend({
      group: z
        .string()
        .describe(
          'Project id, key id, model id, endpoint, day, or start of the hour. Empty: unknown. With several dimensions: their values, separated by commas',
        ),
      name: z.string().nullable().default(null).describe('Name of the project or key. With several dimensions: null'),
      groups: recordOf(z.string(), z.string())
        .optional()
        .describe('Value of each dimension, with the names of project and key. Only with several dimensions'),
      compared: z
        .object({ current_cost_usd: z.number().min(0), previous_cost_usd: z.number().min(0) })
        .optional()
        .describe('Costs in the two windows of `comparison`. Absent if a window has too many groups'),
    }),
  ),
  has_more: z.boolean().describe('true: the report is truncated to the first groups'),
  total: UsageSums.describe('Totals of `data`'),
  comparison: UsageComparison.nullable()
    .default(null)
    .describe(
      'Only with `compare=previous`. null: the period has no full day or hour, or the hours before it are not stored',
    ),
  current_month: CurrentMonth.nullable()
    .default(null)
    .describe('Spending of the current month with the filters of the query. null: the period ends before today'),
  budgets: z
    .array(
      BudgetState.extend({
        forecast: BudgetForecast.nullable()
          .default(null)
          .describe('Forecast from the spending of the last days. null: spending on fewer than two days'),
      }),
    )
    .describe('Budgets of the calling project and key. With the admin scope, at most 500 of all projects and keys'),
  alerts_to: z
    .string()
    .nullable()
    .default(null)
    .describe(
      'Host that receives alerts at 80 % and 100 % of a budget (BUDGET_WEBHOOK_URL); only with the admin scope',
    ),
})
export type UsageReport = z.infer<typeof UsageReport>

/** Interval of usage samples, in seconds. After a day, samples are merged into one per 5 minutes. After 7 days, they are deleted. */
export const HISTORY_SAMPLE_SECONDS = 15
/** Length and sample interval of each range of `GET /v1/history`, in seconds. */
export const HISTORY_RANGES = {
  '15m': { length: 900, step: 15 },
  '1h': { length: 3_600, step: 30 },
  '6h': { length: 21_600, step: 180 },
  '24h': { length: 86_400, step: 600 },
  '7d': { length: 604_800, step: 3_600 },
} as const
export type HistoryRange = keyof typeof HISTORY_RANGES

/** Query of `GET /v1/history` (docs/operate/usage.md, History). */
export const ReadHistory = z.object({
  range: z
    .enum(Object.keys(HISTORY_RANGES) as [HistoryRange, ...HistoryRange[]])
    .default('1h')
    .describe('Time until now. A longer range has longer intervals'),
  project: ReadUsage.shape.project,
  beta: z.unknown().optional().describe('Ignored. Some SDKs add this parameter to every query'),
})

const Seconds = z.number().min(0).nullable()

export const HistoryPoint = z.object({
  at: z.int().describe('Start of the interval, in Unix seconds'),
  calls: Count.describe('Calls and jobs that ended in the interval'),
  failed: Count.describe('Calls and jobs that failed, by the definition of `GET /v1/usage`'),
  input_tokens: Count,
  output_tokens: Count,
  cost_usd: z.number().min(0),
  queue_seconds: Seconds.describe('Mean time in the queue of attached calls; null: none'),
  queue_seconds_max: Seconds,
  first_output_seconds: Seconds.describe('Mean time to the first token or other output of attached calls; null: none'),
  first_output_seconds_max: Seconds,
  running: Count.describe('Maximum of running calls and jobs'),
  waiting: Count.describe('Maximum of queued calls and jobs'),
})

export const HistoryReport = z.object({
  object: z.literal('history'),
  project: z.string().nullable().describe('null: the whole service'),
  from: z.int().describe('Unix seconds'),
  to: z.int().describe('Unix seconds'),
  step_seconds: z.int().describe('Length of an interval'),
  data: z.array(HistoryPoint).describe('All intervals, oldest first, also those without calls'),
})
export type HistoryReport = z.infer<typeof HistoryReport>

const Amount = z.int().min(0).default(0)

/** Usage of one attempt, stored with its job. */
export const Metered = z.object({
  input_tokens: Amount,
  cached_tokens: Amount,
  output_tokens: Amount,
  audio_ms: Amount,
  run_ms: Amount.describe('Of code'),
  cost_nanos: Amount.describe('Cost of external services, such as searches, in billionths of a US dollar'),
  server: z.string().optional().describe('Upstream server of the last attempt, as in the event `completed`'),
})
export type Metered = z.infer<typeof Metered>
