import type { Closable, HistoryRecord } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { pause, within } from './supervision.ts'

/** Maximum time of a read, in ms. Long, because forming a classic group takes some seconds. */
const READ_TIMEOUT_MS = 15_000
const LEADERLESS_MS = 10_000
const RETRY_DELAY_MS = 100

/** Range of a partition's stored offsets. `end` is the offset of the next record. */
export interface StoredOffsets {
  readonly first: number
  readonly end: number
}

interface HistoryClient {
  isTransient(error: unknown): boolean
  suspect(): void
  storedOffsets(topic: string, partition: number): Promise<StoredOffsets>
  receiver(
    topic: string,
    partitions: readonly number[],
    onRecord: (record: HistoryRecord) => void,
    from: number,
  ): Closable & { open(): Promise<Closable> }
}

/** Reads the last `max` records before an offset. Like {@link Broker.history}, for a topic name with its prefix. */
export async function readHistory(
  client: HistoryClient,
  topic: string,
  partition: number,
  { before = Number.POSITIVE_INFINITY, max }: { readonly before?: number | undefined; readonly max: number },
  onRecord: (record: HistoryRecord) => void,
): Promise<{ hasMore: boolean }> {
  const { first, end } = await offsetsWithRetry(client, topic, partition)
  const to = Math.min(before, end)
  const from = Math.max(first, to - max)
  if (from >= to) return { hasMore: false }
  const { promise, resolve } = Promise.withResolvers<void>()
  const receiver = client.receiver(
    topic,
    [partition],
    (record) => {
      if (record.offset < to) onRecord(record)
      if (record.offset >= to - 1) resolve()
    },
    from,
  )
  try {
    const isRead = await within(
      READ_TIMEOUT_MS,
      receiver.open().then(() => promise),
    )
    if (isRead) return { hasMore: from > first }
    throw new ServiceError('overloaded', `The broker did not return its records within ${READ_TIMEOUT_MS / 1_000} s.`)
  } finally {
    await receiver.close()
  }
}

/** Retries while the leader refuses, as a newly elected leader does at first. */
async function offsetsWithRetry(client: HistoryClient, topic: string, partition: number): Promise<StoredOffsets> {
  const timeout = AbortSignal.timeout(LEADERLESS_MS)
  for (;;) {
    try {
      return await client.storedOffsets(topic, partition)
    } catch (cause) {
      if (timeout.aborted || !client.isTransient(cause)) {
        throw new ServiceError('overloaded', 'The broker did not return the range of its records.', { cause })
      }
      client.suspect()
      await pause(RETRY_DELAY_MS, timeout)
    }
  }
}
