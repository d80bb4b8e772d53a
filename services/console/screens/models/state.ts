import { signal } from '@preact/signals'
import { askJson, wordsOf } from '#services/console/api/client.ts'
import { askFigures, type Figures, type Latency, latencyOf, preparedOf } from '#services/console/api/metrics.ts'
import { askModels } from '#services/console/api/models.ts'
import { isOperator } from '#services/console/api/session.ts'
import type { Page, Pause, Pool, Worker } from '#services/console/api/types.ts'
import { type NamedModel, withoutAliases } from './names.ts'
import { type Served, servedOf } from './served.ts'

/** A model as the page shows it. */
export interface ModelState {
  readonly id: string
  readonly aliases: readonly string[]
  readonly pool: string
  /** Empty where the key may not call it. */
  readonly capabilities: readonly string[]
  readonly contextTokens: number | undefined
  /** 0 to 1: how far it is prepared; undefined: this process does not know. */
  readonly prepared: number | undefined
  /** Calls and jobs of everybody that wait for it; undefined: this process does not know. */
  readonly waiting: number | undefined
  /** From acceptance to the first output, as this process saw it; undefined: it does not know. */
  readonly firstOutput: Latency | undefined
  /** Of whole runs, where workers of this process run it. */
  readonly run: Latency | undefined
  readonly pause: Pause | undefined
  /** Who runs it, for operators. */
  readonly served: Served | undefined
}

/** The models of a pool. */
export interface PoolModels {
  readonly pool: string
  readonly pause: Pause | undefined
  readonly models: readonly ModelState[]
}

/** What operators see beside what callers do. */
interface Operated {
  readonly workers: readonly Worker[]
  readonly pauses: readonly Pause[]
  readonly pools: readonly string[]
}

/** The pools with their models. */
export const pools = signal<readonly PoolModels[]>([])
export const isLoaded = signal(false)
export const problem = signal('')

/** Asks for all of it once more. */
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

/** Starts nothing more of a model or a pool, or again. @throws ApiFailure where that is refused */
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

/** The models that operators know of, whatever their key may call. Workers name aliases as well, figures do not. */
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

/** The pool whose models can do that (services/ingress/endpoints/models.ts). */
function poolWith(capabilities: readonly string[]): string {
  if (capabilities.includes('chat') || capabilities.includes('moderation') || capabilities.includes('speech'))
    return 'inference'
  if (capabilities.includes('deep_research')) return 'research'
  return capabilities.includes('transcription') ? 'transcription' : 'embeddings'
}
