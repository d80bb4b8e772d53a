import { signal } from '@preact/signals'
import {
  type Finding,
  fetchJson,
  fetchModels,
  isOperator,
  type Model,
  type ModelServers,
  messageOf,
  type Page,
  type Pause,
  type Worker,
} from '#services/console/api/client.ts'
import { fetchMetrics, loadProgressOf, type Metrics } from '#services/console/api/metrics.ts'
import { capacityOf, type ModelCapacity } from './capacity.ts'

export interface ModelState {
  readonly id: string
  readonly aliases: readonly string[]
  readonly pool: string
  /** Capabilities of the model. Empty if the key may not call the model. */
  readonly capabilities: readonly string[]
  readonly contextTokens: number | undefined
  readonly loadProgress: number | undefined
  /** Number of queued calls and jobs of all projects. Undefined if unknown to this process. */
  readonly waiting: number | undefined
  readonly pause: Pause | undefined
  readonly poolPause: Pause | undefined
  /** Problem of the model, such as failing calls. */
  readonly finding: Finding | undefined
  /** Capacity in the fleet. Undefined without the `admin` scope. */
  readonly capacity: ModelCapacity | undefined
  /** Prompt tokens by server; undefined without the `admin` scope. */
  readonly prompts: ModelServers | undefined
}

interface AdminView {
  readonly workers: readonly Worker[]
  readonly pauses: readonly Pause[]
  readonly models: readonly ModelServers[]
}

export const models = signal<readonly ModelState[]>([])
export const isLoaded = signal(false)
export const problem = signal('')

export async function refresh(abort: AbortSignal): Promise<void> {
  try {
    const [metrics, callable, adminView, findings] = await Promise.all([
      fetchMetrics(abort),
      fetchModels(abort),
      isOperator.value ? fetchAdminView(abort) : undefined,
      fetchFindings(abort),
    ])
    models.value = show({ callable: mergeAliases(callable), metrics, adminView, findings })
    isLoaded.value = true
    problem.value = ''
  } catch (error) {
    if (!abort.aborted) problem.value = messageOf(error)
  }
}

async function fetchAdminView(abort: AbortSignal): Promise<AdminView> {
  const [workers, pauses, all] = await Promise.all([
    fetchJson<Page<Worker>>('/v1/admin/workers', { signal: abort }),
    fetchJson<Page<Pause>>('/v1/admin/pauses', { signal: abort }),
    fetchJson<Page<ModelServers>>('/v1/admin/models', { signal: abort }),
  ])
  return { workers: workers.data, pauses: pauses.data, models: all.data }
}

async function fetchFindings(abort: AbortSignal): Promise<readonly Finding[]> {
  const path = `/v1/admin/findings${isOperator.value ? '?of=fleet' : ''}`
  // Models are shown without their problems if the checks fail.
  const found = await fetchJson<Page<Finding>>(path, { signal: abort }).catch(() => undefined)
  return found?.data ?? []
}

/** Returns all models, sorted by pool and then by id. */
function show(sources: Sources): readonly ModelState[] {
  const { callable, metrics, adminView } = sources
  const poolOf = new Map(callable.map(({ model: { id, capabilities } }) => [id, poolWith(capabilities)]))
  if (adminView)
    for (const [id, pool] of allModels(metrics, adminView.workers)) if (!poolOf.has(id)) poolOf.set(id, pool)
  const all = [...poolOf].map(([id, pool]) => stateOf(id, pool, sources))
  return all.toSorted((a, b) => (`${a.pool} ${a.id}` < `${b.pool} ${b.id}` ? -1 : 1))
}

/**
 * Returns id and pool of every model, including models that the key may not call. Metrics are preferred as the source, because the lists of workers
 * also contain aliases.
 */
function allModels(metrics: Metrics | undefined, workers: readonly Worker[]): readonly (readonly [string, string])[] {
  const shown = metrics
    ?.all('sluice_waiting_calls')
    .map(({ labels }) => [labels.model ?? '', labels.pool ?? ''] as const)
  return shown ?? workers.flatMap(({ role, models }) => (models ?? []).map((id) => [id, role] as const))
}

interface Sources {
  readonly callable: readonly NamedModel[]
  readonly metrics: Metrics | undefined
  readonly adminView: AdminView | undefined
  readonly findings: readonly Finding[]
}

function stateOf(id: string, pool: string, { callable, metrics, adminView, findings }: Sources): ModelState {
  const named = callable.find(({ model }) => model.id === id)
  return {
    id,
    aliases: named?.aliases ?? [],
    pool,
    capabilities: named?.model.capabilities ?? [],
    contextTokens: named?.model.context_length,
    loadProgress: loadProgressOf(id, pool, metrics),
    waiting:
      metrics && metrics.sum('sluice_waiting_calls', { model: id }) + metrics.sum('sluice_waiting_jobs', { model: id }),
    pause: pauseOf(adminView, 'model', id),
    poolPause: pauseOf(adminView, 'pool', pool),
    finding: findings.find(({ model }) => model === id),
    capacity: adminView && capacityOf(id, pool, adminView.workers),
    prompts: adminView?.models.find((model) => model.id === id),
  }
}

function pauseOf(adminView: AdminView | undefined, target: Pause['target'], id: string): Pause | undefined {
  return adminView?.pauses.find((pause) => pause.target === target && pause.id === id)
}

/** Returns the pool of a model, derived from its capabilities (services/ingress/endpoints/account.ts). */
function poolWith(capabilities: readonly string[]): string {
  if (capabilities.includes('chat') || capabilities.includes('moderation') || capabilities.includes('speech'))
    return 'inference'
  if (capabilities.includes('deep_research')) return 'research'
  return capabilities.includes('transcription') ? 'transcription' : 'embeddings'
}

interface NamedModel {
  readonly model: Model
  readonly aliases: readonly string[]
}

/** Merges the entries of aliases into the entries of their models. An alias is absent if the key may not call its model. */
function mergeAliases(models: readonly Model[]): readonly NamedModel[] {
  return models
    .filter(({ alias_of }) => alias_of === undefined)
    .map((model) => ({ model, aliases: models.filter(({ alias_of }) => alias_of === model.id).map(({ id }) => id) }))
}
