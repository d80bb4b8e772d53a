import type { ApiKey } from '#shared/keys/keys.ts'
import { type Limits, projectIdOf } from '#shared/keys/project.ts'

/** The settings that hold for each key which says nothing else. 0 means no limit. */
export interface LimitSettings {
  readonly rateLimitRequests: number
  readonly rateLimitTokens: number
  /** Calls at once. */
  readonly runningMaxPerKey: number
}

/** Whose limit it is. */
export type Owner = 'key' | 'project'

/** What a call has to keep within: undefined is no limit, 0 is nothing. */
export interface OwnedLimits {
  readonly owner: Owner
  readonly id: string
  readonly requests: number | undefined
  readonly tokens: number | undefined
  readonly running: number | undefined
  /** Whether `running` is that of a project, which its durable jobs are held to as well; so are those of a key that is its own. */
  readonly countsJobs: boolean
}

/**
 * The limits of a call: those of its key, else the settings; and those of the key's project, which count all its keys together.
 *
 * @param ofProject Limits of a project; undefined where it has none.
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
    running: limits.running ?? (settings.runningMaxPerKey || undefined),
    countsJobs: project === undefined && limits.running !== undefined,
  }
  const projectId = projectIdOf({ id, project })
  const { requests_per_minute: requests, tokens_per_minute: tokens, running } = ofProject(projectId) ?? {}
  return [own, { owner: 'project', id: projectId, requests, tokens, running, countsJobs: true }]
}

/**
 * What a key may use in all: of each limit the tighter of its own, else the setting, and its project's. The project's may be used up by
 * its other keys.
 *
 * @param ofProject Limits of a project; undefined where it has none.
 */
export function limitsThatHold(
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
