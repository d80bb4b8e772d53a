import { Metered } from '#schemas/usage.ts'
import type { Metrics } from '#shared/lib/metrics.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { UsageLedger } from '#shared/store/records.ts'
import type { HistoryRecorder } from './history.ts'
import { requestOfJob } from './request-log.ts'
import { entryOf, NOTHING } from './usage.ts'

const JOBS_MAX = 200

interface EndedOptions {
  /** False if the request log is turned off. Default: true. */
  readonly isLogged?: boolean
  readonly history?: HistoryRecorder
  readonly metrics?: Pick<Metrics, 'addUsage'>
}

/**
 * Adds ended durable jobs to the usage ledger, to the request log and to the history of metrics. Costs are computed with the present prices.
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
    const { data: metered = NOTHING } = Metered.safeParse(job.metered)
    const end = job.state === 'completed' || job.state === 'cancelled' ? job.state : 'failed'
    const entry = entryOf({ ...job, end, metered }, models.priceOf(job))
    const request = isLogged ? requestOfJob(job, entry, metered.server ?? null) : undefined
    return { jobId: job.jobId, ...entry, request }
  })
  await ledger.enter(entered)
  for (const entry of entered) {
    history?.add(entry)
    metrics?.addUsage(entry)
  }
  return ended.length === JOBS_MAX
}
