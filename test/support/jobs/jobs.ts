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

/** An empty key store, reduced to the methods that a scheduler calls. */
export async function openNoKeys(): Promise<Pick<KeyStore, 'webhookRoot' | 'listWebhookSecrets' | 'close'>> {
  return {
    webhookRoot: async () => `whsec_${'a'.repeat(32)}`,
    listWebhookSecrets: async () => [],
    close: async () => {},
  }
}

/** Opens an embedded broker with the topics of all pools. */
export function openBroker(): Promise<Broker> {
  return openMemoryBroker({ topics: topicsFor(PoolName.options, 60_000) })
}

/** The queue record of an attached job (envelope and body), as an ingress sends it to a worker. */
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

/** Output delta of the test kind `say`. Consecutive deltas are merged into one, unless `apart` is true. */
export interface Said {
  readonly text: string
  readonly apart?: boolean
}

/** A response format that streams each event as JSON. `whole` builds the complete response if the caller requests no stream. */
export function answerAsIs(whole: (events: readonly unknown[]) => unknown): Answer {
  return { whole, open: () => ({ push: (event) => [{ data: JSON.stringify(event) }], end: () => [] }) }
}

/** The test kind `say`. Events of a job are {@link Said} deltas, and the complete response is their text. */
export const sayKind: Kind = {
  name: 'say',
  pool: 'inference',
  request: z.unknown(),
  merge: mergeSaid,
  isOutput: () => true,
  answer: () => answerAsIs((events) => ({ text: textOf(events) })),
}

/** Merges two consecutive deltas; returns undefined if one of them has `apart`. */
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
