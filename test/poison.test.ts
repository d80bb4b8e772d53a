/* Tests that a fleet survives malformed records in its topics (docs/internals/protocol.md, Records). The test itself writes these records. */
import { gzipSync } from 'node:zlib'
import kafkajs, { type Message } from 'kafkajs'
import { describe, expect, inject, it } from 'vitest'
import {
  CONTROL,
  DEAD_LETTERS,
  EVENT_PARTITIONS,
  EVENTS,
  jobsTopic,
  REPLIES,
  REPLY_SHARDS,
} from '#shared/jobs/records.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { openPostgresKeys } from '#shared/keys/postgres.ts'
import { newId } from '#shared/lib/id.ts'
import { openPostgresDatabase } from './support/jobs/stores.ts'
import { type Fleet, openFleet, type RoleProcess } from './support/processes/fleet.ts'
import { until } from './support/stack.ts'

const kafka = inject('kafka')
const postgres = inject('postgres')
const OPERATOR = 'sk-operator-0123456789'

const JOB = {
  ...{ id: 'job_1', attempt: 0, pool: 'inference', kind: 'generate', tenant: 'p', model: 'echo-1', stream: false },
  ...{ created_at_ms: Date.now(), deadline_ms: Date.now() + 60_000, reply: { boot: 'ing_x', shard: 0 }, body: {} },
}
const BODY = { dialect: 'openai', model: 'echo-1', turns: [{ role: 'user', parts: [{ type: 'text', text: 'hi' }] }] }

/** Malformed records for every topic. No process of the service writes such records. */
const POISON: readonly Message[] = [
  { value: null },
  { key: 'a key', value: null },
  { value: Buffer.alloc(0) },
  { value: Buffer.alloc(900_000, 0xff) },
  { value: '['.repeat(900_000) },
  { value: `{"events":${'{"a":'.repeat(150_000)}` },
  { value: gzipSync('{}') },
  { value: '{"id":"job_1","attempt":' },
  { value: '{"__proto__":{"type":"heartbeat"},"type":"dance","events":[[[]]]}' },
  { key: 'k'.repeat(100_000), value: '[]', headers: { none: 'x'.repeat(10_000) } },
]

/** Job records with missing or malformed fields. */
const JOBS: readonly object[] = [
  { ...JOB, attempt: 1e308 },
  { ...JOB, id: { a: 1 }, deadline_ms: 'soon' },
  { ...JOB, id: '../../etc/passwd' },
  { ...JOB, reply: { boot: 'ing_x', shard: 99_999_999 } },
  { ...JOB, reply: { boot: 'x'.repeat(100_000), shard: 0 } },
  { ...JOB, body: undefined, blob: '../../../../../etc/passwd' },
  { ...JOB, body: JSON.parse(`${'['.repeat(2_000)}${']'.repeat(2_000)}`) },
  { ...JOB, body: { ...BODY, turns: 'none', dialect: 7 } },
  { ...JOB, body: { ...BODY, version: 99, from_tomorrow: true }, envelope_version: 99 },
  { ...JOB, kind: 'dream' },
  { ...JOB, kind: '__proto__' },
  { ...JOB, kind: 'constructor', model: 'toString' },
  { ...JOB, id: `job_${'0'.repeat(24)}`, reply: undefined },
  { ...JOB, deadline_ms: Number.MAX_VALUE, created_at_ms: -1 },
]

async function poison(prefix: string): Promise<void> {
  const logLevel = kafkajs.logLevel.NOTHING
  const producer = new kafkajs.Kafka({ brokers: (kafka ?? '').split(','), logLevel }).producer()
  await producer.connect()
  const jobs = JOBS.map((job) => ({ value: JSON.stringify(job) }))
  const send = async (topic: string, messages: readonly Message[], compression = kafkajs.CompressionTypes.None) => {
    for (const message of messages) await producer.send({ topic: prefix + topic, messages: [message], compression })
  }
  const everywhere = (partitions: number) =>
    Array.from({ length: partitions }, (_, partition) =>
      POISON.slice(2, 9).map((one) => ({ ...one, partition })),
    ).flat()
  await send(jobsTopic('inference'), [...POISON, ...jobs])
  await send(jobsTopic('inference'), [{ value: 'compressed' }], kafkajs.CompressionTypes.GZIP)
  await send(jobsTopic('inference', 'low'), [...POISON, ...jobs])
  await send(REPLIES, everywhere(REPLY_SHARDS))
  await send(EVENTS, everywhere(EVENT_PARTITIONS))
  await send(CONTROL, [...POISON, ...jobs])
  await send(DEAD_LETTERS, [...POISON, ...jobs])
  await producer.disconnect()
}

describe.skipIf(!kafka || !postgres).each(['share', 'classic'])('a fleet with %s groups of Kafka', (client) => {
  it('continues to run jobs if its topics contain malformed records', { timeout: 240_000 }, async () => {
    await using fleet = await openFleet(kafka ?? '')
    await using database = await openPostgresDatabase(postgres ?? '')
    const keys = await openPostgresKeys(database.url)
    await keys.create(keyOf(OPERATOR, { id: 'op', project: 'ops', scopes: ['admin'] }))
    await keys.close()
    const settings = {
      ...{ KAFKA_PREFIX: `${newId('t', 8)}.`, KAFKA_CLIENT: client, KAFKA_QUEUE_PARTITIONS: '2' },
      ...{ DATABASE_URL: database.url, DATABASE_CONNECTIONS: '5' },
    }
    const ingress = await fleet.start('ingress', settings)
    const worker = await fleet.start('inference', settings)
    const ended = Promise.race([ingress.exited, worker.exited])
    expect(await say(fleet, ingress, 'before')).toBe('before')

    const amid = Array.from({ length: 20 }, (_, nth) => `amid ${nth}`)
    const said = Promise.all(amid.map((content) => say(fleet, ingress, content)))
    await poison(settings.KAFKA_PREFIX)
    expect(await said).toEqual(amid)
    const unread = () =>
      worker.log.filter(({ msg }) => msg === 'queue record is not supported; moving it to the dead letters')
    await until(() => unread().length >= 2 * POISON.length, { withinMs: 60_000 })

    expect(await say(fleet, ingress, 'after')).toBe('after')
    const response = await fleet.post(ingress, '/v1/responses', { model: 'echo-1', input: 'kept' })
    expect(await response.json()).toMatchObject({ status: 'completed', output: [{ content: [{ text: 'kept' }] }] })
    const letters = await fetch(`${ingress.url}/v1/admin/dead-letters?limit=100`, {
      headers: { authorization: `Bearer ${OPERATOR}` },
    })
    const { data } = (await letters.json()) as { data: { reason: string }[] }
    expect(data.length).toBeGreaterThanOrEqual(POISON.length)
    const errors = [ingress, worker].flatMap(({ log }) => log.filter(({ level }) => Number(level) >= 50))
    expect(errors.filter((line) => !unread().includes(line))).toEqual([])
    expect(await Promise.race([ended, 'none'])).toBe('none')
  })
})

async function say(fleet: Fleet, ingress: RoleProcess, content: string): Promise<unknown> {
  const body = { model: 'echo-1', messages: [{ role: 'user', content }] }
  const answer = await fleet.post(ingress, '/v1/chat/completions', body)
  const { choices, error } = (await answer.json()) as { choices?: [{ message: { content: string } }]; error?: unknown }
  return choices?.[0].message.content ?? error
}
