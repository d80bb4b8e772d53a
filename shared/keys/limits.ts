import type { ApiKey } from './keys.ts'
import { type Limits, projectIdOf } from './project.ts'

export interface LimitSettings {
  readonly rateLimitRequests: number
  readonly rateLimitTokens: number
  readonly concurrencyMaxPerKey: number
}

export type Owner = 'key' | 'project'

export interface OwnedLimits {
  readonly owner: Owner
  readonly id: string
  readonly requests: number | undefined
  readonly tokens: number | undefined
  readonly running: number | undefined
  /** Whether `running` also counts durable jobs. True for a project, and for a key that belongs to no project. */
  readonly countsJobs: boolean
}

/**
 * Limits that apply to a call: those of its key, with the settings as defaults, and those of its project. Limits of a
 * project count the calls of all its keys.
 *
 * @param ofProject Returns the limits of a project; undefined if it has none
 */
export function limitsOfKey(
  { id, project, limits = {} }: Pick<ApiKey, 'id' | 'project' | 'limits'>,
  settings: LimitSettings,
  ofProject: (project: string) => Limits | undefined,
): OwnedLimits[] {
  const own: OwnedLimits = {
    owner: 'key',
    id,
    requests: limits.requests_per_minute ?? (settings.rateLimitRequests || undefined),
    tokens: limits.tokens_per_minute ?? (settings.rateLimitTokens || undefined),
    running: limits.running ?? (settings.concurrencyMaxPerKey || undefined),
    countsJobs: project === undefined && limits.running !== undefined,
  }
  const projectId = projectIdOf({ id, project })
  const { requests_per_minute: requests, tokens_per_minute: tokens, running } = ofProject(projectId) ?? {}
  return [own, { owner: 'project', id: projectId, requests, tokens, running, countsJobs: true }]
}

/**
 * Effective limits of a key: for each limit, the smaller one of the key's (or the default) and the project's. Other keys may
 * already have used up the project's limit.
 *
 * @param ofProject Returns the limits of a project; undefined if it has none
 */
export function effectiveLimits(
  key: Pick<ApiKey, 'id' | 'project' | 'limits'>,
  settings: LimitSettings,
  ofProject: (project: string) => Limits | undefined,
): Limits {
  const [own, project] = [key.limits ?? {}, ofProject(projectIdOf(key)) ?? {}]
  const owners = limitsOfKey(key, settings, ofProject)
  const all: Record<keyof Limits, readonly (number | undefined)[]> = {
    requests_per_minute: owners.map(({ requests }) => requests),
    tokens_per_minute: owners.map(({ tokens }) => tokens),
    running: owners.map(({ running }) => running),
    queued: [own.queued, project.queued],
    scheduled: [own.scheduled, project.scheduled],
    budget_usd_per_month: [own.budget_usd_per_month, project.budget_usd_per_month],
  }
  const entries = Object.entries(all).map(
    ([name, found]) => [name, found.filter((limit) => limit !== undefined)] as const,
  )
  return Object.fromEntries(entries.flatMap(([name, set]) => (set.length > 0 ? [[name, Math.min(...set)]] : [])))
}
