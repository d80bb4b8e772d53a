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
  type Pool,
  type Worker,
} from '#services/console/api/client.ts'
import { fetchMetrics, type Latency, latencyOf, loadProgressOf, type Metrics } from '#services/console/api/metrics.ts'
import { capacityOf, type ModelCapacity } from './capacity.ts'

/** Cached model id of each name or alias. */
const idOf = new Map<string, string>()

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
  /** Time from acceptance to the first output, measured by this process. */
  readonly firstOutput: Latency | undefined
  /** Duration of complete runs. Undefined if this process does not run the model. */
  readonly run: Latency | undefined
  readonly pause: Pause | undefined
  /** Problem of the model, such as failing calls. */
  readonly finding: Finding | undefined
  /** Capacity in the fleet. Undefined without the `admin` scope. */
  readonly capacity: ModelCapacity | undefined
  /** Prompt tokens by server; undefined without the `admin` scope. */
  readonly prompts: ModelServers | undefined
}

export interface PoolModels {
  readonly pool: string
  readonly pause: Pause | undefined
  readonly models: readonly ModelState[]
}

interface AdminView {
  readonly workers: readonly Worker[]
  readonly pauses: readonly Pause[]
  readonly pools: readonly string[]
  readonly models: readonly ModelServers[]
}

export const pools = signal<readonly PoolModels[]>([])
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
    pools.value = show({ callable: await mergeAliases(callable, metrics, abort), metrics, adminView, findings })
    isLoaded.value = true
    problem.value = ''
  } catch (error) {
    if (!abort.aborted) problem.value = messageOf(error)
  }
}

export async function setPaused(target: Pause['target'], id: string, isPaused: boolean): Promise<void> {
  const path = `/v1/admin/${target}s/${encodeURIComponent(id)}/${isPaused ? 'pause' : 'resume'}`
  await fetchJson(path, { method: 'POST' })
  await refresh(new AbortController().signal)
}

async function fetchAdminView(abort: AbortSignal): Promise<AdminView> {
  const [workers, pauses, all, models] = await Promise.all([
    fetchJson<Page<Worker>>('/v1/admin/workers', { signal: abort }),
    fetchJson<Page<Pause>>('/v1/admin/pauses', { signal: abort }),
    fetchJson<Page<Pool>>('/v1/admin/pools', { signal: abort }),
    fetchJson<Page<ModelServers>>('/v1/admin/models', { signal: abort }),
  ])
  return { workers: workers.data, pauses: pauses.data, pools: all.data.map(({ id }) => id), models: models.data }
}

async function fetchFindings(abort: AbortSignal): Promise<readonly Finding[]> {
  const path = `/v1/admin/findings${isOperator.value ? '?of=fleet' : ''}`
  // Models are shown without their problems if the checks fail.
  const found = await fetchJson<Page<Finding>>(path, { signal: abort }).catch(() => undefined)
  return found?.data ?? []
}

function show(sources: Sources): readonly PoolModels[] {
  const { callable, metrics, adminView } = sources
  const poolOf = new Map(callable.map(({ model: { id, capabilities } }) => [id, poolWith(capabilities)]))
  if (adminView)
    for (const [id, pool] of allModels(metrics, adminView.workers)) if (!poolOf.has(id)) poolOf.set(id, pool)
  const models = [...poolOf].map(([id, pool]) => stateOf(id, pool, sources))
  const names = adminView?.pools ?? [...new Set(poolOf.values())]
  return names.map((pool) => ({
    pool,
    pause: pauseOf(adminView, 'pool', pool),
    models: models.filter((model) => model.pool === pool),
  }))
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
    firstOutput: metrics && latencyOf('sluice_job_first_output_seconds', { model: id }, metrics),
    run: metrics && latencyOf('sluice_attempt_duration_seconds', { model: id }, metrics),
    pause: pauseOf(adminView, 'model', id),
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

/** Merges alias entries into their model. `GET /v1/models/ALIAS` returns the model that an alias stands for. */
async function mergeAliases(
  models: readonly Model[],
  metrics: Metrics | undefined,
  abort: AbortSignal,
): Promise<readonly NamedModel[]> {
  for (const { labels } of metrics?.all('sluice_waiting_calls') ?? []) idOf.set(labels.model ?? '', labels.model ?? '')
  for (const { id } of models) if (!idOf.has(id)) idOf.set(id, await resolve(id, abort))
  return models
    .filter(({ id }) => idOf.get(id) === id)
    .map((model) => ({
      model,
      aliases: models.filter(({ id }) => id !== model.id && idOf.get(id) === model.id).map(({ id }) => id),
    }))
}

async function resolve(name: string, abort: AbortSignal): Promise<string> {
  return (await fetchJson<Model>(`/v1/models/${encodeURIComponent(name)}`, { signal: abort })).id
}
