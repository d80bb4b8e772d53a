import type { JobEvent } from '#schemas/event.ts'
import type { Broker, Closable } from '#shared/broker/broker.ts'
import { readReply, type SkippedEvent } from '#shared/jobs/records.ts'
import { SkippedLog } from '#shared/jobs/skipped.ts'
import { REPLIES, replyShard } from '#shared/jobs/topics.ts'
import type { Log } from '#shared/log/log.ts'

/** Receives what workers say to one ingress, on the reply shard of its boot id. The caller closes it. */
export async function receiveReplies(
  { broker, log }: { readonly broker: Broker; readonly log: Log },
  boot: string,
  onEvent: (worker: string, event: JobEvent | SkippedEvent) => void,
): Promise<Closable> {
  const skipped = new SkippedLog(log)
  return await broker.receive(REPLIES, replyShard(boot), ({ key, value }) => {
    // Another replica may share the shard: the key tells whose record it is without parsing it.
    if (key !== boot) return
    const record = readReply(value)
    if (!record) return skipped.note('reply not understood')
    for (const type of record.skipped) skipped.note('event not understood', type)
    for (const event of record.events) onEvent(record.worker, event)
  })
}
