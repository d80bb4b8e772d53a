/**
 * Records that no worker could run, for people: what `dead` keeps of them (docs/design.md, Topics and records), and what may be
 * done about it.
 */
import type { Priority } from '#schemas/durable-job.ts'
import { type JobEnvelope, PoolName } from '#schemas/job.ts'
import type { Broker, KeptRecord } from '#shared/broker/broker.ts'
import { readForeign, readJob } from './records.ts'
import { DEAD, jobsTopic } from './topics.ts'

/** A job has a body of 64 KiB at most, so that nothing larger is one; what is here is read on the event loop. */
const READ_BYTES_MAX = 128 * 1024

/** Why nobody could run it, as far as this version can tell. */
export type DeathReason = 'not_understood' | 'unknown_kind' | 'understood_here'

/** One record of `dead`. */
export interface DeadLetter {
  readonly offset: number
  readonly sentAtMs: number
  /** Whose worker has put it there; undefined where that is no pool of this version. */
  readonly pool: PoolName | undefined
  /** Where it came from, as the worker's log has it; undefined for one of an older version. */
  readonly position: string | undefined
  readonly bytes: number
  readonly reason: DeathReason
  /** As much of the job as could be read. */
  readonly job: Partial<Pick<JobEnvelope, 'id' | 'kind' | 'tenant' | 'model'>>
  /** What may go back to its queue: a durable job that this version reads. A call has nobody who waits for it any more. */
  readonly again: { readonly queue: string; readonly value: Buffer } | undefined
}

/** Puts a record away. @throws ServiceError As `Broker.send` */
export async function bury(
  broker: Pick<Broker, 'send'>,
  pool: PoolName,
  position: string,
  value: Buffer,
): Promise<void> {
  await broker.send(DEAD, 0, `${pool} ${position}`, value)
}

/** The newest of them before an offset, newest first. @throws ServiceError `overloaded` while the broker is away */
export async function listDead(
  broker: Pick<Broker, 'history'>,
  range: { readonly before?: number | undefined; readonly max: number },
): Promise<{ letters: DeadLetter[]; hasMore: boolean }> {
  const letters: DeadLetter[] = []
  const { hasMore } = await broker.history(DEAD, 0, range, (record) => letters.push(read(record)))
  return { letters: letters.reverse(), hasMore }
}

/**
 * Puts one back into its queue, where that can still do something. Said twice it costs no more than a start that is refused: the store
 * knows what has become of the job.
 *
 * @throws ServiceError `overloaded` while the broker is away
 */
export async function putBack(broker: Pick<Broker, 'submit'>, { again }: DeadLetter): Promise<void> {
  if (again) await broker.submit(again.queue, again.value)
}

function read({ key, value, offset, sentAtMs }: KeptRecord): DeadLetter {
  const [name, position] = key.split(' ', 2)
  const pool = PoolName.safeParse(name).data
  const isShort = value.length <= READ_BYTES_MAX
  const job = isShort ? readJob(value) : undefined
  const foreign = isShort ? readForeign(value) : undefined
  const known = job ?? foreign
  const isCall = known?.reply !== undefined
  return {
    ...{ offset, sentAtMs, pool, position, bytes: value.length },
    reason: isCall ? 'unknown_kind' : job ? 'understood_here' : 'not_understood',
    job: { id: known?.id, kind: known?.kind, tenant: job?.tenant, model: job?.model },
    again: job && !isCall ? { queue: jobsTopic(job.pool, laneOf(position)), value } : undefined,
  }
}

/** The lane of the queue that a position names. */
function laneOf(position = ''): Priority {
  return position.includes('.batch/') ? 'low' : 'normal'
}
