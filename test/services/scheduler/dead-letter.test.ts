import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, inject, it } from 'vitest'
import { stringify } from 'yaml'
import { startInference } from '#services/inference/inference.ts'
import { startIngress } from '#services/ingress/ingress.ts'
import { parseConfig } from '#shared/config/config.ts'
import { newId } from '#shared/id.ts'
import { CONTROL, DEAD, jobsTopic, REPLIES, REPLY_SHARDS } from '#shared/jobs/topics.ts'
import { openPorts } from '#shared/ports.ts'
import { stopAll } from '#shared/process/lifecycle.ts'
import { silentLog } from '../../support/jobs/jobs.ts'
import { ECHO_MODEL, TEST_KEY, until } from '../../support/stack.ts'

/** Each way to carry jobs: a record that nobody can read must not stop any of them. */
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

/** The whole service, with its broker in the test's hands. */
async function startWithBroker(settings: Record<string, string>) {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-test-'))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models: [ECHO_MODEL] }))
  const env = { PORT: '0', DATA_DIR: dataDir, MODELS_FILE: modelsFile, SLUICE_API_KEY: TEST_KEY, ...settings }
  const ports = await openPorts(parseConfig(env), silentLog, 'test', true, (error) => {
    throw error
  })
  const { broker } = ports
  const dead: Buffer[] = []
  await broker.receive(DEAD, 0, (record) => dead.push(record.value))
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

for (const { mode, settings } of MODES) {
  describe.skipIf(mode !== 'embedded' && !inject('kafka'))(`records that nobody can read, ${mode}`, () => {
    it('go to dead as they are, and the calls behind them are answered', async () => {
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

    it('are passed over on the channels, too', async () => {
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
