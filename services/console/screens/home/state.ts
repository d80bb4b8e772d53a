import { signal } from '@preact/signals'
import { ApiFailure, askJson, wordsOf } from '#services/console/api/client.ts'
import { askFigures, Figures } from '#services/console/api/metrics.ts'
import { askModels } from '#services/console/api/models.ts'
import { isOperator } from '#services/console/api/session.ts'
import type { Finding, Model, Page, Pool } from '#services/console/api/types.ts'
import { type PoolState, stateOf } from './pools.ts'

/** A download or start of a model or a sandbox in progress. */
export interface Preparation {
  readonly what: string
  /** 0 to 1. */
  readonly share: number
}

export const pools = signal<readonly PoolState[]>([])
export const models = signal<readonly Model[]>([])
export const preparations = signal<readonly Preparation[]>([])
/** Problems that `/readyz` reports. */
export const problems = signal<readonly string[]>([])
/** Health checks; undefined for callers. */
export const findings = signal<readonly Finding[] | undefined>(undefined)
/** Error text of the last refresh, or an empty string. The previous data stays on the page. */
export const fault = signal('')
/** False if the metrics are served on METRICS_PORT only. */
export const hasFigures = signal(true)

export async function look(abort: AbortSignal): Promise<void> {
  void askFindings(abort)
  try {
    const [figures, ready, list, operated] = await Promise.all([
      askFigures(abort),
      // A 503 lists the problems.
      askJson<Ready>('/readyz', { signal: abort, expects: [503] }),
      askModels(abort),
      isOperator.value ? askPools(abort) : undefined,
    ])
    problems.value = ready.problems ?? []
    preparations.value = preparationsOf(ready)
    models.value = list
    hasFigures.value = figures !== undefined
    fault.value = ''
    show(figures ?? new Figures(''), operated?.data)
  } catch (error) {
    if (!abort.aborted) fault.value = wordsOf(error)
  }
}

interface Ready {
  readonly problems?: readonly string[]
  readonly preparing?: readonly string[]
}

/** Parses entries such as `all-minilm-l6-v2 (40 %)`. The metrics may be on another port. */
function preparationsOf({ preparing = [] }: Ready): readonly Preparation[] {
  return preparing.map((sentence) => {
    const [, what = sentence, percent = '0'] = /^(.*) \((\d+) %\)$/.exec(sentence) ?? []
    return { what, share: Number(percent) / 100 }
  })
}

/** Undefined if the store, which counts queued jobs, is unreachable. Metrics are shown instead. */
async function askPools(abort: AbortSignal): Promise<Page<Pool> | undefined> {
  return await askJson<Page<Pool>>('/v1/admin/pools', { signal: abort }).catch((error: unknown) => {
    if (error instanceof ApiFailure && error.status === 503) return undefined
    throw error
  })
}

let isLooking = false

/** Runs next to the refresh and never twice at once, because a check of an unreachable database takes seconds. */
async function askFindings(abort: AbortSignal): Promise<void> {
  if (isLooking) return
  isLooking = true
  try {
    const found = isOperator.value ? askJson<Page<Finding>>('/v1/admin/findings', { signal: abort }) : undefined
    findings.value = (await found)?.data
  } catch {
    // The refresh reports an unreachable service.
  }
  isLooking = false
}

function show(figures: Figures, operated: readonly Pool[] | undefined): void {
  const ids = operated?.map(({ id }) => id) ?? figures.all('sluice_pool_slots').map(({ labels }) => labels.pool ?? '')
  pools.value = ids.map((id) =>
    stateOf(
      id,
      figures,
      operated?.find((pool) => pool.id === id),
    ),
  )
}
