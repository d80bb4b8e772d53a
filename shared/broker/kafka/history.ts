import type { Closable, KeptRecord } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import { pause, within } from './supervision.ts'

/** Longest reading, in milliseconds: a classic group alone takes some seconds to form. */
const READ_MS = 15_000
/** Longest a partition may be between two leaders, in milliseconds, before its reader hears of it. */
const LEADERLESS_MS = 10_000
const RETRY_DELAY_MS = 100

/** What a partition keeps: from the offset of its oldest record to that which the next one will have. */
export interface KeptOffsets {
  readonly first: number
  readonly end: number
}

/** What it takes to read. Topics are named in full. */
interface HistoryClient {
  isTransient(error: unknown): boolean
  suspect(): void
  kept(topic: string, partition: number): Promise<KeptOffsets>
  receiver(
    topic: string,
    partitions: readonly number[],
    onRecord: (record: KeptRecord) => void,
    from: number,
  ): Closable & { open(): Promise<Closable> }
}

/** Reads the last `max` records before an offset. As {@link Broker.history}, of a topic named in full. */
export async function readHistory(
  client: HistoryClient,
  topic: string,
  partition: number,
  { before = Number.POSITIVE_INFINITY, max }: { readonly before?: number | undefined; readonly max: number },
  onRecord: (record: KeptRecord) => void,
): Promise<{ hasMore: boolean }> {
  const { first, end } = await askKept(client, topic, partition)
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
      READ_MS,
      receiver.open().then(() => promise),
    )
    if (isRead) return { hasMore: from > first }
    throw new ServiceError('overloaded', `The broker did not give its records within ${READ_MS / 1_000} s.`)
  } finally {
    await receiver.close()
  }
}

/** Asks again when a leader refuses: one that is new does, until it has heard that it leads. */
async function askKept(client: HistoryClient, topic: string, partition: number): Promise<KeptOffsets> {
  const timeout = AbortSignal.timeout(LEADERLESS_MS)
  for (;;) {
    try {
      return await client.kept(topic, partition)
    } catch (cause) {
      if (timeout.aborted || !client.isTransient(cause)) {
        throw new ServiceError('overloaded', 'The broker does not say which records it keeps.', { cause })
      }
      client.suspect()
      await pause(RETRY_DELAY_MS, timeout)
    }
  }
}
