import { signal } from '@preact/signals'
import { ApiFailure, askJson, wordsOf } from '#services/console/api/client.ts'
import { askFigures, Figures } from '#services/console/api/metrics.ts'
import { askModels } from '#services/console/api/models.ts'
import { isOperator } from '#services/console/api/session.ts'
import type { Finding, Model, Page, Pool } from '#services/console/api/types.ts'
import { type PoolState, stateOf } from './pools.ts'

/** What is prepared for the first time. */
export interface Preparation {
  readonly what: string
  /** 0 to 1. */
  readonly share: number
}

/** What the service says of itself now. */
export const pools = signal<readonly PoolState[]>([])
export const models = signal<readonly Model[]>([])
export const preparations = signal<readonly Preparation[]>([])
/** Sentences of `/readyz`. */
export const problems = signal<readonly string[]>([])
/** What the doctor found; undefined for those who may not ask. */
export const findings = signal<readonly Finding[] | undefined>(undefined)
/** Why the last look came to nothing, as a sentence; empty: it did not. What was seen before stays. */
export const fault = signal('')
/** The figures are on a port of their own, where this page cannot ask for them. */
export const hasFigures = signal(true)

/** Takes all of it once more. */
export async function look(abort: AbortSignal): Promise<void> {
  void askFindings(abort)
  try {
    const [figures, ready, list, operated] = await Promise.all([
      askFigures(abort),
      // One that is not ready says why.
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

/** What `/readyz` says. */
interface Ready {
  readonly problems?: readonly string[]
  readonly preparing?: readonly string[]
}

/** From its sentences, such as `all-minilm-l6-v2 (40 %)`: figures may be on a port of their own. */
function preparationsOf({ preparing = [] }: Ready): readonly Preparation[] {
  return preparing.map((sentence) => {
    const [, what = sentence, percent = '0'] = /^(.*) \((\d+) %\)$/.exec(sentence) ?? []
    return { what, share: Number(percent) / 100 }
  })
}

/** Undefined where the store, which counts what waits, is away: the figures tell the rest. */
async function askPools(abort: AbortSignal): Promise<Page<Pool> | undefined> {
  return await askJson<Page<Pool>>('/v1/admin/pools', { signal: abort }).catch((error: unknown) => {
    if (error instanceof ApiFailure && error.status === 503) return undefined
    throw error
  })
}

let isLooking = false

/** They are asked for beside the rest, and not again before they are there: a look at a database that is away takes seconds. */
async function askFindings(abort: AbortSignal): Promise<void> {
  if (isLooking) return
  isLooking = true
  try {
    const found = isOperator.value ? askJson<Page<Finding>>('/v1/admin/findings', { signal: abort }) : undefined
    findings.value = (await found)?.data
  } catch {
    // Whether the service answers is told by what is asked beside this.
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
