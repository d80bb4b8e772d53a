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

/** Records that are read in one go: a Kafka forms a group for each, which takes seconds. */
const READ_AT_ONCE = 500
/** Records that are looked at for one page, and for how long. */
export const LOOKED_MAX = 10_000
const POLL_INTERVAL_MS = 10_000

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

/** Which of them {@link listDead} gives. */
export interface DeadQuery {
  /** Only those before this offset: the cursor of the next page. */
  readonly before?: number | undefined
  readonly max: number
  /** Default: all. */
  readonly isWanted?: (letter: DeadLetter) => boolean
}

/**
 * The newest that are wanted, newest first, without those that were discarded. It looks at {@link LOOKED_MAX} records at most and for ten
 * seconds or so, and says where to go on.
 *
 * @returns `next`: what to ask `before` for those that come after; undefined: there are none
 * @throws ServiceError `overloaded` while the broker is away
 */
export async function listDead(
  broker: Pick<Broker, 'history'>,
  { before, max, isWanted = () => true }: DeadQuery,
): Promise<{ letters: DeadLetter[]; next: number | undefined }> {
  const scan = new Scan(broker)
  // What says that one was discarded is newer than it.
  if (before !== undefined)
    for (let to: number | undefined; scan.canLook; ) {
      const { oldest, hasMore } = await scan.page(to)
      if (!hasMore || oldest <= before) break
      to = oldest
    }
  scan.begin()
  const letters: DeadLetter[] = []
  for (let to = before; ; ) {
    const page = await scan.page(to)
    for (const letter of page.letters) {
      if (!isWanted(letter)) continue
      if (letters.length === max) return { letters, next: letters.at(-1)?.offset }
      letters.push(letter)
    }
    if (!page.hasMore) return { letters, next: undefined }
    to = page.oldest
    if (!scan.canLook) return { letters, next: to }
  }
}

/** One of them; undefined where no such one is kept. @throws ServiceError `overloaded` while the broker is away */
export async function findDead(broker: Pick<Broker, 'history'>, offset: number): Promise<DeadLetter | undefined> {
  const found: KeptRecord[] = []
  await broker.history(DEAD, 0, { before: offset + 1, max: 1 }, (record) => found.push(record))
  const [record] = found
  return record?.offset === offset && discardedBy(record) === undefined ? read(record) : undefined
}

/**
 * Has one shown no more. Nothing can be taken out of the middle of a topic, so a record behind it says so, which is deleted after it.
 *
 * @throws ServiceError `overloaded` while the broker is away
 */
export async function discard(broker: Pick<Broker, 'send'>, { offset }: Pick<DeadLetter, 'offset'>): Promise<void> {
  await broker.send(DEAD, 0, `${DISCARDED}${offset}`, Buffer.from('{}'))
}

/** How the key of a record begins that says that another one was discarded: no pool has that name. */
const DISCARDED = 'discarded '

/** The offset of the one that a record says was discarded; undefined for what is a letter itself. */
function discardedBy({ key }: KeptRecord): number | undefined {
  return key.startsWith(DISCARDED) ? Number(key.slice(DISCARDED.length)) : undefined
}

/** Reads the topic from its end towards its beginning, and remembers what was discarded. */
class Scan {
  readonly #broker: Pick<Broker, 'history'>
  readonly #discarded = new Set<number>()
  #looked = 0
  #until = Date.now() + POLL_INTERVAL_MS

  constructor(broker: Pick<Broker, 'history'>) {
    this.#broker = broker
  }

  get canLook(): boolean {
    return this.#looked < LOOKED_MAX && Date.now() < this.#until
  }

  /** From now on it may look as long again. */
  begin(): void {
    this.#looked = 0
    this.#until = Date.now() + POLL_INTERVAL_MS
  }

  /** The letters before an offset, newest first. */
  async page(before: number | undefined) {
    const records: KeptRecord[] = []
    const range = { before, max: READ_AT_ONCE }
    const { hasMore } = await this.#broker.history(DEAD, 0, range, (record) => records.push(record))
    this.#looked += records.length
    for (const record of records) {
      const offset = discardedBy(record)
      if (offset !== undefined) this.#discarded.add(offset)
    }
    const letters = records.filter((one) => discardedBy(one) === undefined && !this.#discarded.has(one.offset))
    return { letters: letters.reverse().map(read), hasMore, oldest: records[0]?.offset ?? 0 }
  }
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
