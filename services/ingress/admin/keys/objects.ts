import type { KeyAnswer, ProjectAnswer } from '#schemas/answers/keys.ts'
import { FIXED_KEY_ID } from '#services/ingress/callers/keys.ts'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { stateOf } from '#shared/keys/changes.ts'
import type { ApiKey } from '#shared/keys/keys.ts'
import { type Project, projectIdOf } from '#shared/keys/project.ts'
import type { Activity, Spender } from '#shared/store/usage.ts'
import { dayOf } from '#shared/usage/cost.ts'
import { type Month, monthOf } from '#shared/usage/month.ts'

const NANOS_PER_USD = 1_000_000_000
const LAST_USE_MS = 90 * 86_400_000

export async function keyObjects(context: IngressContext, keys: readonly ApiKey[]): Promise<KeyAnswer[]> {
  const nowMs = Date.now()
  const used = await activityOf(
    context,
    keys.map(({ id }) => ({ owner: 'key', id })),
    nowMs,
  )
  return keys.map((key, i) => keyObject(key, used?.[i], nowMs))
}

export async function projectObjects(context: IngressContext, projects: readonly Project[]): Promise<ProjectAnswer[]> {
  const nowMs = Date.now()
  const counts = validKeys(context.keys.known.keys, nowMs)
  const used = await activityOf(
    context,
    projects.map(({ id }) => ({ owner: 'project', id })),
    nowMs,
  )
  return projects.map((project, i) => {
    const { id, name = null, limits, created_at } = project
    const head = {
      id,
      object: 'project',
      name,
      limits,
      keys: counts.get(id) ?? 0,
      created_at: created_at || null,
    } as const
    return { ...head, ...shownUse(used?.[i]), budget: budgetOf(project, used?.[i], monthOf(nowMs)) }
  })
}

function keyObject(key: ApiKey, used: Activity | undefined, nowMs: number): KeyAnswer {
  const { id, hint, name = null, scopes = ['calls'], endpoints = null, models = null, limits = {} } = key
  const isSetting = id === FIXED_KEY_ID
  return {
    ...{ id, object: 'api_key', hint, name, project: projectIdOf(key), state: stateOf(key, nowMs) },
    ...{ is_setting: isSetting, scopes, endpoints, models, limits },
    ...{ created_at: isSetting ? null : key.created_at, expires_at: key.expires_at ?? null },
    ...shownUse(used),
  }
}

function shownUse(used: Activity | undefined) {
  const month = used ? { calls: used.calls, cost_usd: used.costNanos / NANOS_PER_USD } : null
  return { last_used_on: used?.lastDay ?? null, month }
}

function budgetOf({ id, limits }: Project, used: Activity | undefined, month: Month): ProjectAnswer['budget'] {
  const usd = limits.budget_usd_per_month
  if (usd === undefined || !used) return null
  const spent_usd = used.costNanos / NANOS_PER_USD
  const remaining_usd = Math.max(0, Math.round((usd - spent_usd) * NANOS_PER_USD) / NANOS_PER_USD)
  const resets_at = month.endsAtMs / 1_000
  return { owner: 'project', id, month: month.name, budget_usd: usd, spent_usd, remaining_usd, resets_at }
}

/** Last use of keys or projects, and their usage in the current month; undefined in a deployment without a store. */
async function activityOf({ usage }: IngressContext, of: readonly Spender[], nowMs: number) {
  return await usage?.ledger.activity(of, dayOf(nowMs - LAST_USE_MS), monthOf(nowMs).from)
}

function validKeys(keys: readonly ApiKey[], nowMs: number): Map<string, number> {
  const counts = new Map<string, number>()
  for (const key of keys) {
    const id = projectIdOf(key)
    if (stateOf(key, nowMs) === 'valid') counts.set(id, (counts.get(id) ?? 0) + 1)
  }
  return counts
}
