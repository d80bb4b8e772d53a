import { Metered } from '#schemas/usage.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { EndedJob, UsageLedger } from '#shared/store/records.ts'
import { entryOf, NOTHING } from './usage.ts'

const JOBS_MAX = 200

/** Adds ended durable jobs to the usage ledger, at the present prices. @returns True if more ended jobs may follow */
export async function enterEnded(ledger: UsageLedger, models: ModelCatalogue): Promise<boolean> {
  const ended = await ledger.listEnded(JOBS_MAX)
  if (ended.length === 0) return false
  await ledger.enter(ended.map((job) => ({ jobId: job.jobId, ...entryOf(callOf(job), models.priceOf(job)) })))
  return ended.length === JOBS_MAX
}

function callOf({ state, metered, ...job }: EndedJob) {
  const { data = NOTHING } = Metered.safeParse(metered)
  const end = state === 'completed' || state === 'cancelled' ? state : 'failed'
  return { ...job, end, metered: data } as const
}
