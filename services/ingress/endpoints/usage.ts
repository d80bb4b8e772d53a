import { ReadUsage, USAGE_DAYS_MAX, type UsageReport, type UsageSums } from '#schemas/usage.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { projectIdNamed } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { hasScope } from '#shared/keys/scopes.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { UsageAmounts } from '#shared/store/usage.ts'
import { dayOf } from '#shared/usage/cost.ts'
import { monthOf } from '#shared/usage/month.ts'

const DAY_MS = 86_400_000
const NANOS_PER_USD = 1_000_000_000
const GROUPS_MAX = 1_000

/**
 * GET /v1/usage (docs/operate/usage.md, Ask for it): usage of the caller's project. Operators get all projects, or the
 * one that they name.
 *
 * @throws ServiceError `invalid_value`; `permission_denied` for another project; `jobs_unavailable` without a store
 */
export async function readUsage(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ReadUsage, call.query)
  const { group_by, project: asked, key: keyId, ...query } = parseBody(ReadUsage, { ...call.query }, 'openai')
  const project = projectFor(context, call, asked)
  const { from, to } = rangeOf(query)
  const ledger = context.usage?.ledger
  if (!ledger) throw new ServiceError('jobs_unavailable', 'Usage is not available: the deployment has no database.')
  const sums = await ledger.sum({ project, keyId, from, to, groupBy: group_by, limit: GROUPS_MAX + 1 })
  const shown = sums.slice(0, GROUPS_MAX)
  const report: UsageReport = {
    ...{ object: 'usage', from, to, group_by, project: project ?? null },
    data: shown.map((sum) => ({ group: sum.group, ...shownAs(sum) })),
    has_more: sums.length > GROUPS_MAX,
    total: shownAs(totalOf(shown)),
    budgets: await context.budgets.stateOf(call.key),
  }
  await call.reply.whole(report)
}

function projectFor({ keys }: IngressContext, { key }: Call, asked: string | undefined): string | undefined {
  const own = projectIdOf(key)
  if (hasScope(key, 'admin')) return asked === undefined ? undefined : projectIdNamed(keys.known, asked)
  const ownName = keys.known.projects.find(({ id }) => id === own)?.name
  if (asked === undefined || asked === own || asked === ownName) return own
  throw new ServiceError('permission_denied', 'This API key may only see the usage of its own project.', {
    param: 'project',
  })
}

function rangeOf({ from, to }: Pick<ReadUsage, 'from' | 'to'>): { from: string; to: string } {
  const now = Date.now()
  const last = to ?? dayOf(now)
  const first = from ?? monthOf(Date.parse(last)).from
  const days = (Date.parse(last) - Date.parse(first)) / DAY_MS + 1
  if (days < 1) throw new ServiceError('invalid_value', `'from' is later than 'to', ${last}.`, { param: 'from' })
  if (days <= USAGE_DAYS_MAX) return { from: first, to: last }
  const message = `Expected at most ${USAGE_DAYS_MAX} days, but 'from' and 'to' span ${days}.`
  throw new ServiceError('invalid_value', message, { param: 'from' })
}

function shownAs(amounts: UsageAmounts): UsageSums {
  const { calls, failed, inputTokens, cachedInputTokens, outputTokens, audioMs, costNanos } = amounts
  const tokens = { input_tokens: inputTokens, cached_input_tokens: cachedInputTokens, output_tokens: outputTokens }
  return { calls, failed, ...tokens, audio_seconds: audioMs / 1_000, cost_usd: costNanos / NANOS_PER_USD }
}

function totalOf(all: readonly UsageAmounts[]): UsageAmounts {
  const sum = (of: (amounts: UsageAmounts) => number) => all.reduce((total, amounts) => total + of(amounts), 0)
  return {
    calls: sum(({ calls }) => calls),
    failed: sum(({ failed }) => failed),
    inputTokens: sum(({ inputTokens }) => inputTokens),
    cachedInputTokens: sum(({ cachedInputTokens }) => cachedInputTokens),
    outputTokens: sum(({ outputTokens }) => outputTokens),
    audioMs: sum(({ audioMs }) => audioMs),
    costNanos: sum(({ costNanos }) => costNanos),
  }
}
