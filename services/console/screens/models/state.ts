import { signal } from '@preact/signals'
import { askJson, wordsOf } from '#services/console/api/client.ts'
import { askFigures, type Figures, type Latency, latencyOf, preparedOf } from '#services/console/api/metrics.ts'
import { askModels } from '#services/console/api/models.ts'
import { isOperator } from '#services/console/api/session.ts'
import type { Page, Pause, Pool, Worker } from '#services/console/api/types.ts'
import { type NamedModel, withoutAliases } from './names.ts'
import { type Served, servedOf } from './served.ts'

export interface ModelState {
  readonly id: string
  readonly aliases: readonly string[]
  readonly pool: string
  /** Empty if the key may not call the model. */
  readonly capabilities: readonly string[]
  readonly contextTokens: number | undefined
  /** Load progress, 0 to 1; undefined: unknown to this process. */
  readonly prepared: number | undefined
  /** Queued calls and jobs of all projects; undefined: unknown to this process. */
  readonly waiting: number | undefined
  /** Time from acceptance to the first output, measured by this process. */
  readonly firstOutput: Latency | undefined
  /** Duration of full runs, if this process runs the model. */
  readonly run: Latency | undefined
  readonly pause: Pause | undefined
  /** For operators only. */
  readonly served: Served | undefined
}

export interface PoolModels {
  readonly pool: string
  readonly pause: Pause | undefined
  readonly models: readonly ModelState[]
}

/** Data of the admin API. */
interface Operated {
  readonly workers: readonly Worker[]
  readonly pauses: readonly Pause[]
  readonly pools: readonly string[]
}

export const pools = signal<readonly PoolModels[]>([])
export const isLoaded = signal(false)
export const problem = signal('')

export async function look(abort: AbortSignal): Promise<void> {
  try {
    const [figures, callable, operated] = await Promise.all([
      askFigures(abort),
      askModels(abort),
      isOperator.value ? askOperated(abort) : undefined,
    ])
    pools.value = show(await withoutAliases(callable, figures, abort), figures, operated)
    isLoaded.value = true
    problem.value = ''
  } catch (error) {
    if (!abort.aborted) problem.value = wordsOf(error)
  }
}

/** Pauses or resumes a model or a pool. @throws ApiFailure */
export async function setPaused(what: Pause['what'], id: string, isPaused: boolean): Promise<void> {
  const path = `/v1/admin/${what}s/${encodeURIComponent(id)}/${isPaused ? 'pause' : 'resume'}`
  await askJson(path, { method: 'POST' })
  await look(new AbortController().signal)
}

async function askOperated(abort: AbortSignal): Promise<Operated> {
  const [workers, pauses, all] = await Promise.all([
    askJson<Page<Worker>>('/v1/admin/workers', { signal: abort }),
    askJson<Page<Pause>>('/v1/admin/pauses', { signal: abort }),
    askJson<Page<Pool>>('/v1/admin/pools', { signal: abort }),
  ])
  return { workers: workers.data, pauses: pauses.data, pools: all.data.map(({ id }) => id) }
}

function show(
  callable: readonly NamedModel[],
  figures: Figures | undefined,
  operated: Operated | undefined,
): readonly PoolModels[] {
  const poolOf = new Map(callable.map(({ model: { id, capabilities } }) => [id, poolWith(capabilities)]))
  if (operated) for (const [id, pool] of known(figures, operated.workers)) if (!poolOf.has(id)) poolOf.set(id, pool)
  const models = [...poolOf].map(([id, pool]) => stateOf(id, pool, { callable, figures, operated }))
  const names = operated?.pools ?? [...new Set(poolOf.values())]
  return names.map((pool) => ({
    pool,
    pause: pauseOf(operated, 'pool', pool),
    models: models.filter((model) => model.pool === pool),
  }))
}

/** Model id and pool of every model, including those the key may not call. Metrics are preferred, because workers list aliases too. */
function known(figures: Figures | undefined, workers: readonly Worker[]): readonly (readonly [string, string])[] {
  const shown = figures
    ?.all('sluice_waiting_calls')
    .map(({ labels }) => [labels.model ?? '', labels.pool ?? ''] as const)
  return shown ?? workers.flatMap(({ role, models }) => (models ?? []).map((id) => [id, role] as const))
}

interface Seen {
  readonly callable: readonly NamedModel[]
  readonly figures: Figures | undefined
  readonly operated: Operated | undefined
}

function stateOf(id: string, pool: string, { callable, figures, operated }: Seen): ModelState {
  const named = callable.find(({ model }) => model.id === id)
  return {
    id,
    aliases: named?.aliases ?? [],
    pool,
    capabilities: named?.model.capabilities ?? [],
    contextTokens: named?.model.context_length,
    prepared: preparedOf(id, pool, figures),
    waiting:
      figures && figures.sum('sluice_waiting_calls', { model: id }) + figures.sum('sluice_waiting_jobs', { model: id }),
    firstOutput: figures && latencyOf('sluice_job_first_output_seconds', { model: id }, figures),
    run: figures && latencyOf('sluice_attempt_duration_seconds', { model: id }, figures),
    pause: pauseOf(operated, 'model', id),
    served: operated && servedOf(id, pool, operated.workers),
  }
}

function pauseOf(operated: Operated | undefined, what: Pause['what'], id: string): Pause | undefined {
  return operated?.pauses.find((pause) => pause.what === what && pause.id === id)
}

/** The pool of a model by its capabilities (services/ingress/endpoints/models.ts). */
function poolWith(capabilities: readonly string[]): string {
  if (capabilities.includes('chat') || capabilities.includes('moderation') || capabilities.includes('speech'))
    return 'inference'
  if (capabilities.includes('deep_research')) return 'research'
  return capabilities.includes('transcription') ? 'transcription' : 'embeddings'
}
