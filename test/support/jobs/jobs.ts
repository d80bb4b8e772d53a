import { z } from 'zod'
import type { JobEvent } from '#schemas/event.ts'
import { type AttachedEnvelope, PoolName } from '#schemas/job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { openMemoryBroker } from '#shared/broker/memory.ts'
import { topicsFor } from '#shared/jobs/records.ts'
import type { KeyStore } from '#shared/keys/keys.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { openLog } from '#shared/log/log.ts'

export const silentLog = openLog('silent', 'test')

/** The part of an empty key store that a scheduler uses. */
export async function openNoKeys(): Promise<Pick<KeyStore, 'webhookRoot' | 'listWebhookSecrets' | 'close'>> {
  return {
    webhookRoot: async () => `whsec_${'a'.repeat(32)}`,
    listWebhookSecrets: async () => [],
    close: async () => {},
  }
}

/** An embedded broker with every topic of the inference pool. */
export function openBroker(): Promise<Broker> {
  return openMemoryBroker({ topics: topicsFor(PoolName.options, 60_000) })
}

/** A job as an ingress sends it. */
export function envelopeOf(more: Partial<AttachedEnvelope> = {}): AttachedEnvelope {
  const now = Date.now()
  return {
    id: 'job_1',
    attempt: 1,
    pool: 'inference',
    kind: 'say',
    tenant: 'key_1',
    model: 'm',
    created_at_ms: now,
    deadline_ms: now + 60_000,
    reply: { boot: 'ing_1', shard: 0 },
    stream: true,
    encode: { request_id: 'req_1', call_id: '1', created_at: 0, model: 'm', include_usage: false, version: '' },
    body: {},
    ...more,
  }
}

/** Delta of a test; texts of one channel are merged. */
export interface Said {
  readonly text: string
  readonly apart?: boolean
}

/** Streams events unchanged; `whole` builds the complete response. */
export function answerAsIs(whole: (events: readonly unknown[]) => unknown): Answer {
  return { whole, open: () => ({ push: (event) => [{ data: JSON.stringify(event) }], end: () => [] }) }
}

/** A kind whose events are {@link Said} deltas, and whose complete response is their text. */
export const sayKind: Kind = {
  name: 'say',
  pool: 'inference',
  request: z.unknown(),
  merge: mergeSaid,
  isOutput: () => true,
  answer: () => answerAsIs((events) => ({ text: textOf(events) })),
}

/** Merges texts unless one of them is marked as separate. */
export function mergeSaid(previous: unknown, next: unknown): Said | undefined {
  const [a, b] = [previous as Said, next as Said]
  return a.apart || b.apart ? undefined : { text: a.text + b.text }
}

/** The concatenated text of deltas. */
export function textOf(deltas: readonly unknown[]): string {
  return deltas.map((delta) => (delta as Said).text).join('')
}

/** The concatenated text of the deltas in events. */
export function textOfEvents(events: readonly JobEvent[]): string {
  return events.map((event) => ('deltas' in event ? textOf(event.deltas) : '')).join('')
}
