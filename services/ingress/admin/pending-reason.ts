import type { DurableJob } from '#schemas/durable-job.ts'
import type { Pauses } from '#shared/jobs/pauses.ts'
import { sentenceOf } from '#shared/jobs/pauses.ts'
import type { Peers } from '#shared/jobs/peers.ts'

export interface Wait {
  readonly reason:
    | 'scheduled'
    | 'retry_backoff'
    | 'children'
    | 'broker_away'
    | 'model_paused'
    | 'pool_paused'
    | 'no_worker'
    | 'no_worker_for_model'
    | 'project_full'
    | 'slots_taken'
    | 'model_full'
    | 'batch_lane'
    | 'in_turn'
  readonly message: string
  /** Unix seconds at which the wait ends, if known. */
  readonly until: number | null
  readonly ahead: number | null
}

type Taken = { readonly most: number; readonly calls: number; readonly jobs: number } | undefined

export interface Fleet {
  readonly presence: Pick<Peers, 'workers' | 'hasModel' | 'slots' | 'freeSlots' | 'capacityOf'>
  readonly pauses: Pick<Pauses, 'of'>
  readonly isBrokerReachable: boolean
}

/**
 * Reason why a durable job waits; null if it runs or has ended.
 *
 * @param ahead See {@link Wait}
 */
export function pendingReason(job: DurableJob, fleet: Fleet, ahead: number, taken?: Taken): Wait | null {
  if (job.state === 'scheduled') return timed(job)
  if (job.state === 'waiting') return wait('children', 'The job waits for its child jobs.')
  if (job.state !== 'queued') return null
  const [reason, message] = whyQueued(job, fleet, taken)
  return { ...wait(reason, `${message}${aheadOf(ahead)}`), ahead }
}

function timed({ attempt, run_at_ms }: DurableJob): Wait {
  const until = Math.floor(run_at_ms / 1_000)
  const at = new Date(until * 1_000).toISOString().replace('.000', '')
  if (attempt === 0) return { ...wait('scheduled', `The job is scheduled for ${at}.`), until }
  return { ...wait('retry_backoff', `Attempt ${attempt} failed; the next one is due at ${at}.`), until }
}

/** Returns the first reason that applies. Later ones may apply too. */
function whyQueued(
  job: DurableJob,
  { presence, pauses, isBrokerReachable }: Fleet,
  taken: Taken,
): [Wait['reason'], string] {
  const { pool, model, kind } = job
  const pause = pauses.of(job)
  if (pause) return [`${pause.target}_paused`, sentenceOf(pause)]
  if (!isBrokerReachable) return ['broker_away', 'The broker cannot be reached.']
  const workers = presence.workers(pool)
  const slots = presence.slots(pool)
  if (workers.length === 0) return ['no_worker', `No ${pool} worker is running.`]
  if (slots === 0) return ['no_worker', `Each of the ${workers.length} ${pool} workers is draining.`]
  if (!presence.hasModel(pool, model)) return ['no_worker_for_model', `No ${pool} worker has the model '${model}'.`]
  if (taken && taken.calls + taken.jobs >= taken.most) return ['project_full', fullText(taken)]
  if (presence.freeSlots(pool) === 0) return ['slots_taken', `All ${slots} slots of the pool ${pool} are taken.`]
  if (job.priority === 'low') return ['batch_lane', 'Jobs of low priority may use only a part of the slots.']
  const capacity = presence.capacityOf(pool, { kind, model })
  if (capacity !== undefined && capacity < slots && isFull(job, presence))
    return ['model_full', `Workers run at most ${capacity} jobs of the model '${model}' at once.`]
  return ['in_turn', 'A worker is about to claim the job.']
}

/** Whether a worker with free slots reports that its bulkhead for such jobs is full. */
function isFull({ pool, kind, model, priority }: DurableJob, presence: Fleet['presence']): boolean {
  const isAlike = (one: { kind: string; model: string; priority: string }) =>
    one.kind === kind && one.model === model && one.priority === priority
  return presence.workers(pool).some(({ capacity }) => capacity?.backlog.some(isAlike))
}

function fullText({ most, calls, jobs }: NonNullable<Taken>): string {
  const [ofCalls, ofJobs] = [calls === 1 ? '1 call' : `${calls} calls`, jobs === 1 ? '1 job' : `${jobs} jobs`]
  return `The project is at its concurrency limit: ${ofCalls} and ${ofJobs} are running, and ${most} may run at once.`
}

function aheadOf(ahead: number): string {
  return ` ${ahead === 1 ? '1 job' : `${ahead} jobs`} of its model and lane ${ahead === 1 ? 'is' : 'are'} older.`
}

function wait(reason: Wait['reason'], message: string): Wait {
  return { reason, message, until: null, ahead: null }
}
