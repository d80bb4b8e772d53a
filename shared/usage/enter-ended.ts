import { Metered } from '#schemas/usage.ts'
import type { Metrics } from '#shared/lib/metrics.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { EndedJob, UsageLedger } from '#shared/store/records.ts'
import type { HistoryRecorder } from './history.ts'
import { requestOfJob } from './request-log.ts'
import { entryOf, NOTHING } from './usage.ts'

const JOBS_MAX = 200

interface EndedOptions {
  /** Whether the request log is kept. Default: true. */
  readonly isLogged?: boolean
  readonly history?: HistoryRecorder
  readonly metrics?: Pick<Metrics, 'addUsage'>
}

/**
 * Adds ended durable jobs to the usage ledger, at the present prices, to the request log and to the history.
 *
 * @returns True if more ended jobs may follow
 */
export async function enterEnded(
  ledger: UsageLedger,
  models: ModelCatalogue,
  { isLogged = true, history, metrics }: EndedOptions = {},
): Promise<boolean> {
  const ended = await ledger.listEnded(JOBS_MAX)
  if (ended.length === 0) return false
  const entered = ended.map((job) => {
    const call = callOf(job)
    const entry = entryOf(call, models.priceOf(job))
    const request = isLogged ? requestOfJob(job, entry, call.metered.server ?? null) : undefined
    return { jobId: job.jobId, ...entry, request }
  })
  await ledger.enter(entered)
  for (const entry of entered) {
    history?.add(entry)
    metrics?.addUsage(entry)
  }
  return ended.length === JOBS_MAX
}

function callOf({ state, metered, ...job }: EndedJob) {
  const { data = NOTHING } = Metered.safeParse(metered)
  const end = state === 'completed' || state === 'cancelled' ? state : 'failed'
  return { ...job, end, metered: data } as const
}
