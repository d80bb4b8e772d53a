import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, inject, it } from 'vitest'
import { stringify } from 'yaml'
import { startInference } from '#services/inference/inference.ts'
import { startIngress } from '#services/ingress/ingress.ts'
import { parseConfig } from '#shared/config/config.ts'
import { CONTROL, DEAD_LETTERS, jobsTopic, REPLIES, REPLY_SHARDS } from '#shared/jobs/records.ts'
import { keyOf } from '#shared/keys/keys.ts'
import { newId } from '#shared/lib/id.ts'
import { openPorts } from '#shared/ports.ts'
import { stopAll } from '#shared/process/lifecycle.ts'
import { silentLog } from '../../support/jobs/jobs.ts'
import { ECHO_MODEL, TEST_KEY, until } from '../../support/stack.ts'

/** The queue implementations. In none of them may an unreadable record block the records behind it. */
const MODES = [
  { mode: 'embedded', settings: () => ({}) },
  { mode: 'Kafka, share groups', settings: () => ({ KAFKA_CLIENT: 'share', ...kafka() }) },
  {
    mode: 'Kafka, classic groups',
    settings: () => ({ KAFKA_CLIENT: 'classic', KAFKA_QUEUE_PARTITIONS: '2', ...kafka() }),
  },
]

function kafka(): Record<string, string> {
  return { KAFKA_BROKERS: inject('kafka') ?? '', KAFKA_PREFIX: `${newId('t', 8)}.` }
}

const OPERATOR = 'sk-operator-0123456789'

/** Starts a service of one process. The test has access to its broker, to publish records and to receive the dead letters. */
async function startWithBroker(settings: Record<string, string>) {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-test-'))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models: [ECHO_MODEL] }))
  const operator = keyOf(OPERATOR, { id: 'op', project: 'ops', scopes: ['admin'] })
  await writeFile(join(dataDir, 'keys.json'), JSON.stringify({ keys: [operator] }))
  const env = { PORT: '0', DATA_DIR: dataDir, MODELS_FILE: modelsFile, SLUICE_API_KEY: TEST_KEY, ...settings }
  const ports = await openPorts(parseConfig(env), silentLog, 'test', true, (error) => {
    throw error
  })
  const { broker } = ports
  const dead: Buffer[] = []
  await broker.receive(DEAD_LETTERS, [0], (record) => dead.push(record.value))
  const services = [await startInference(ports), await startIngress(ports)] as const
  const [, ingress] = services
  return {
    broker,
    dead,
    call: (content: string) =>
      fetch(`http://127.0.0.1:${ingress.port}/v1/chat/completions`, {
        method: 'POST',
        headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'echo-1', messages: [{ role: 'user', content }] }),
      }),
    async admin(method: string, path: string, body?: object) {
      const response = await fetch(`http://127.0.0.1:${ingress.port}/v1/admin/${path}`, {
        method,
        headers: { authorization: `Bearer ${OPERATOR}`, 'content-type': 'application/json' },
        ...(body && { body: JSON.stringify(body) }),
      })
      return (await response.json()) as { data: Record<string, unknown>[]; has_more: boolean; last_id: string | null }
    },
    async [Symbol.asyncDispose]() {
      await stopAll(services, 1_000, silentLog)
      await broker.close()
      await rm(dataDir, { recursive: true, force: true })
    },
  }
}

const UNREADABLE = ['not JSON', '{"id":"job_1"}', '\u0000\u0001\u0002', '[]', 'null', 'x'.repeat(200_000)].map((text) =>
  Buffer.from(text),
)

const JOB = {
  ...{ id: 'job_1', attempt: 0, pool: 'inference', kind: 'generate', tenant: 'p', model: 'echo-1', stream: false },
  ...{ created_at_ms: Date.now(), deadline_ms: Date.now() + 60_000 },
}

for (const { mode, settings } of MODES) {
  describe.skipIf(mode !== 'embedded' && !inject('kafka'))(`unreadable records, ${mode}`, () => {
    it('records that cannot be parsed become dead letters, and do not block later calls', async () => {
      await using service = await startWithBroker(settings())
      const queue = jobsTopic('inference')
      for (const [index, value] of UNREADABLE.entries()) {
        await service.broker.submit(queue, value)
        const answer = await service.call(`call ${index}`)
        expect([answer.status, await answer.text()]).toEqual([200, expect.stringContaining(`call ${index}`)])
      }
      await until(() => service.dead.length >= UNREADABLE.length)
      const asText = (values: readonly Buffer[]) => values.map((value) => value.toString()).sort()
      expect(asText(service.dead)).toEqual(asText(UNREADABLE))
      await until(async () => !(await service.broker.lag(queue)))
    })

    it('dead letters are listed with position and reason, and can be requeued if this version can read them', async () => {
      await using service = await startWithBroker(settings())
      const call = { ...JOB, kind: 'dream', reply: { boot: 'ing_x', shard: 0 } }
      await service.broker.submit(jobsTopic('inference'), Buffer.from('{"secret":1}'))
      await until(() => service.dead.length === 1)
      // Simulates two dead letters of a worker of another version. This version knows the kind of `job_2`, but not the kind of `call`. Only
      // `job_2` can therefore be requeued.
      for (const job of [call, { ...JOB, id: 'job_2' }]) {
        await service.broker.send(DEAD_LETTERS, 0, 'inference jobs.inference/0@9', Buffer.from(JSON.stringify(job)))
      }
      const listed = await service.admin('GET', 'dead-letters?limit=2')
      expect(listed).toMatchObject({
        has_more: true,
        data: [
          { reason: 'understood_here', job_id: 'job_2', project: 'p', kind: 'generate', redrivable: true },
          { reason: 'unknown_kind', job_id: 'job_1', kind: 'dream', redrivable: false },
        ],
      })
      const older = await service.admin('GET', `dead-letters?after=${listed.last_id}&pool=inference`)
      expect(older).toMatchObject({ has_more: false, data: [{ reason: 'not_understood', bytes: 12, job_id: null }] })
      expect(older.data[0]?.position).toMatch(/^jobs\.inference\/\d+@\d+$/)
      expect(JSON.stringify([listed, older])).not.toContain('secret')
      const redriven = (body: object) => service.admin('POST', 'dead-letters/redrive', body)
      expect(await redriven({ dry_run: true })).toMatchObject({ dry_run: true, data: [{ job_id: 'job_2' }] })
      expect(await redriven({ pool: 'code' })).toMatchObject({ data: [] })
      expect(await redriven({ max: 1 })).toMatchObject({ data: [{ job_id: 'job_2' }], has_more: false })
      // The requeued record belongs to no job in the store, so the worker drops the record.
      await until(async () => !(await service.broker.lag(jobsTopic('inference'))))
      expect(service.dead).toHaveLength(3)
      const [mine, unknown] = listed.data.map(({ id }) => id)
      expect(await service.admin('POST', `dead-letters/${mine}/redrive`)).toMatchObject({ job_id: 'job_2' })
      const refused = await service.admin('POST', `dead-letters/${unknown}/redrive`)
      expect(refused).toMatchObject({ error: { message: expect.stringContaining('cannot run again') } })
      expect(await service.admin('DELETE', `dead-letters/${mine}`)).toMatchObject({ id: mine, deleted: true })
      const left = await service.admin('GET', 'dead-letters')
      expect(left.data.map(({ reason }) => reason)).toEqual(['unknown_kind', 'not_understood'])
      expect(await redriven({})).toMatchObject({ data: [] })
      expect(await service.admin('DELETE', 'dead-letters/123456')).toMatchObject({
        error: { message: expect.stringContaining('123456') },
      })
    })

    it('records that cannot be parsed are skipped on the control and reply channels', async () => {
      await using service = await startWithBroker(settings())
      for (const value of UNREADABLE) {
        await service.broker.send(CONTROL, 0, 'ing_x', value)
        for (let shard = 0; shard < REPLY_SHARDS; shard++) await service.broker.send(REPLIES, shard, 'ing_x', value)
      }
      expect((await service.call('still here')).status).toBe(200)
      expect(service.dead).toEqual([])
    })
  })
}
