import { signal } from '@preact/signals'
import { ApiFailure, fetchJson, messageOf } from '#services/console/api/client.ts'
import { fetchMetrics, Metrics } from '#services/console/api/metrics.ts'
import { fetchModels } from '#services/console/api/models.ts'
import { isOperator } from '#services/console/api/session.ts'
import type { Finding, Model, Page, Pool } from '#services/console/api/types.ts'
import { type PoolState, stateOf } from './pools.ts'

export interface Preparation {
  readonly name: string
  readonly progress: number
}

export const pools = signal<readonly PoolState[]>([])
export const models = signal<readonly Model[]>([])
export const preparations = signal<readonly Preparation[]>([])
export const readyProblems = signal<readonly string[]>([])
/** Health checks; undefined for callers. */
export const findings = signal<readonly Finding[] | undefined>(undefined)
/** Error text of the last refresh, or an empty string. The previous data stays on the page. */
export const refreshError = signal('')
/** False if the metrics are served on METRICS_PORT only. */
export const hasMetrics = signal(true)

export async function refresh(abort: AbortSignal): Promise<void> {
  void fetchFindings(abort)
  try {
    const [metrics, ready, list, adminPools] = await Promise.all([
      fetchMetrics(abort),
      // A 503 lists the problems.
      fetchJson<Ready>('/readyz', { signal: abort, expects: [503] }),
      fetchModels(abort),
      isOperator.value ? fetchPools(abort) : undefined,
    ])
    readyProblems.value = ready.problems ?? []
    preparations.value = preparationsOf(ready)
    models.value = list
    hasMetrics.value = metrics !== undefined
    refreshError.value = ''
    show(metrics ?? new Metrics(''), adminPools?.data)
  } catch (error) {
    if (!abort.aborted) refreshError.value = messageOf(error)
  }
}

interface Ready {
  readonly problems?: readonly string[]
  readonly preparing?: readonly string[]
}

/** Parses entries such as `all-minilm-l6-v2 (40 %)`. The metrics may be on another port. */
function preparationsOf({ preparing = [] }: Ready): readonly Preparation[] {
  return preparing.map((sentence) => {
    const [, name = sentence, percent = '0'] = /^(.*) \((\d+) %\)$/.exec(sentence) ?? []
    return { name, progress: Number(percent) / 100 }
  })
}

/** Undefined if the store, which counts queued jobs, is unreachable. Metrics are shown instead. */
async function fetchPools(abort: AbortSignal): Promise<Page<Pool> | undefined> {
  return await fetchJson<Page<Pool>>('/v1/admin/pools', { signal: abort }).catch((error: unknown) => {
    if (error instanceof ApiFailure && error.status === 503) return undefined
    throw error
  })
}

let isFetchingFindings = false

/** Runs next to the refresh and never twice at once, because a check of an unreachable database takes seconds. */
async function fetchFindings(abort: AbortSignal): Promise<void> {
  if (isFetchingFindings) return
  isFetchingFindings = true
  try {
    const found = isOperator.value ? fetchJson<Page<Finding>>('/v1/admin/findings', { signal: abort }) : undefined
    findings.value = (await found)?.data
  } catch {
    // The refresh reports an unreachable service.
  }
  isFetchingFindings = false
}

function show(metrics: Metrics, adminPools: readonly Pool[] | undefined): void {
  const ids = adminPools?.map(({ id }) => id) ?? metrics.all('sluice_pool_slots').map(({ labels }) => labels.pool ?? '')
  pools.value = ids.map((id) =>
    stateOf(
      id,
      metrics,
      adminPools?.find((pool) => pool.id === id),
    ),
  )
}
