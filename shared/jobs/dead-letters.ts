/** Dead letters are records that no worker could run. The topic `dead` stores them for operators (docs/internals/protocol.md, Records). */
import type { Priority } from '#schemas/durable-job.ts'
import { type JobEnvelope, PoolName } from '#schemas/job.ts'
import type { Broker, HistoryRecord } from '#shared/broker/broker.ts'
import { DEAD_LETTERS, jobsTopic, readJob, readUnsupported } from './records.ts'

/**
 * Maximum size in bytes of a record that is parsed, because parsing blocks the event loop. A valid body has at most 64
 * KiB.
 */
const READ_BYTES_MAX = 128 * 1024

/** Records per read. The number is high, because each read forms a consumer group in Kafka, which takes seconds. */
const RECORDS_PER_READ = 500
export const SCANNED_MAX = 10_000
const POLL_INTERVAL_MS = 10_000

export type DeadLetterReason = 'not_understood' | 'unknown_kind' | 'understood_here'

export interface DeadLetter {
  readonly offset: number
  readonly sentAtMs: number
  /** Pool of the worker that wrote the dead letter. Undefined if this version has no such pool. */
  readonly pool: PoolName | undefined
  /** Position of the original record, as in the worker's log. Undefined if an older version wrote the dead letter. */
  readonly position: string | undefined
  readonly bytes: number
  readonly reason: DeadLetterReason
  readonly job: Partial<Pick<JobEnvelope, 'id' | 'kind' | 'tenant' | 'model'>>
  /**
   * Queue and value with which the record can be requeued. Undefined unless the record is a durable job that this version can read. Attached calls
   * are never requeued, because their callers have disconnected.
   */
  readonly requeue: { readonly queue: string; readonly value: Buffer } | undefined
}

export async function writeDeadLetter(
  broker: Pick<Broker, 'send'>,
  pool: PoolName,
  position: string,
  value: Buffer,
): Promise<void> {
  await broker.send(DEAD_LETTERS, 0, `${pool} ${position}`, value)
}

export interface DeadLetterQuery {
  readonly before?: number | undefined
  readonly max: number
  readonly isMatch?: (letter: DeadLetter) => boolean
}

/**
 * Lists matching records, newest first, without discarded records. Scans at most {@link SCANNED_MAX} records within about ten seconds, and returns a
 * cursor.
 *
 * @returns `next` is the value of `before` for the next page. Undefined on the last page
 * @throws ServiceError `overloaded` if the broker is unreachable
 */
export async function listDeadLetters(
  broker: Pick<Broker, 'history'>,
  { before, max, isMatch: isWanted = () => true }: DeadLetterQuery,
): Promise<{ letters: DeadLetter[]; next: number | undefined }> {
  const scan = new Scan(broker)
  // A discard marker is newer than its record. The scan therefore starts at the newest record, although only records before the cursor are returned.
  if (before !== undefined)
    for (let to: number | undefined; scan.canScan; ) {
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
    if (!scan.canScan) return { letters, next: to }
  }
}

export async function findDeadLetter(broker: Pick<Broker, 'history'>, offset: number): Promise<DeadLetter | undefined> {
  const found: HistoryRecord[] = []
  await broker.history(DEAD_LETTERS, 0, { before: offset + 1, max: 1 }, (record) => found.push(record))
  const [record] = found
  return record?.offset === offset && discardedBy(record) === undefined ? read(record) : undefined
}

/**
 * Discards a record. Kafka cannot delete a record from the middle of a topic. Instead, a marker with the offset of the record is appended,
 * and readers skip the record. The marker is newer, so retention deletes the record first, and a discarded record never reappears.
 *
 * @throws ServiceError `overloaded` if the broker is unreachable
 */
export async function discard(broker: Pick<Broker, 'send'>, { offset }: Pick<DeadLetter, 'offset'>): Promise<void> {
  await broker.send(DEAD_LETTERS, 0, `${DISCARDED}${offset}`, Buffer.from('{}'))
}

/** Prefix of the key of a discard marker. The key of a dead letter begins with the name of a pool instead. */
const DISCARDED = 'discarded '

function discardedBy({ key }: HistoryRecord): number | undefined {
  return key.startsWith(DISCARDED) ? Number(key.slice(DISCARDED.length)) : undefined
}

class Scan {
  readonly #broker: Pick<Broker, 'history'>
  readonly #discarded = new Set<number>()
  #scanned = 0
  #until = Date.now() + POLL_INTERVAL_MS

  constructor(broker: Pick<Broker, 'history'>) {
    this.#broker = broker
  }

  get canScan(): boolean {
    return this.#scanned < SCANNED_MAX && Date.now() < this.#until
  }

  begin(): void {
    this.#scanned = 0
    this.#until = Date.now() + POLL_INTERVAL_MS
  }

  async page(before: number | undefined) {
    const records: HistoryRecord[] = []
    const range = { before, max: RECORDS_PER_READ }
    const { hasMore } = await this.#broker.history(DEAD_LETTERS, 0, range, (record) => records.push(record))
    this.#scanned += records.length
    for (const record of records) {
      const offset = discardedBy(record)
      if (offset !== undefined) this.#discarded.add(offset)
    }
    const letters = records.filter((one) => discardedBy(one) === undefined && !this.#discarded.has(one.offset))
    return { letters: letters.reverse().map(read), hasMore, oldest: records[0]?.offset ?? 0 }
  }
}

/**
 * Requeues a record if possible. Repeating a requeue has no effect, because the store rejects a second start of the
 * job.
 *
 * @throws ServiceError `overloaded` if the broker is unreachable
 */
export async function requeueDeadLetter(broker: Pick<Broker, 'submit'>, { requeue: again }: DeadLetter): Promise<void> {
  if (again) await broker.submit(again.queue, again.value)
}

function read({ key, value, offset, sentAtMs }: HistoryRecord): DeadLetter {
  const [name, position] = key.split(' ', 2)
  const pool = PoolName.safeParse(name).data
  const isShort = value.length <= READ_BYTES_MAX
  const job = isShort ? readJob(value) : undefined
  const foreign = isShort ? readUnsupported(value) : undefined
  const known = job ?? foreign
  const isCall = known?.reply !== undefined
  return {
    ...{ offset, sentAtMs, pool, position, bytes: value.length },
    reason: isCall ? 'unknown_kind' : job ? 'understood_here' : 'not_understood',
    job: { id: known?.id, kind: known?.kind, tenant: job?.tenant, model: job?.model },
    requeue: job && !isCall ? { queue: jobsTopic(job.pool, laneOf(position)), value } : undefined,
  }
}

function laneOf(position = ''): Priority {
  return position.includes('.batch/') ? 'low' : 'normal'
}
