import { mkdir, mkdtempDisposable, readdir, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, describe, expect, inject, it } from 'vitest'
import { createKafkaJs } from '#shared/broker/kafka/classic/client.ts'
import { newId } from '#shared/lib/id.ts'
import { embedderModel, startEmbedder } from './support/embeddings/embeddings.ts'
import {
  EndpointWalk,
  walkAdmin,
  walkBatches,
  walkJobs,
  walkModels,
  walkResponses,
  walkText,
} from './support/endpoint-walk.ts'
import { openPostgresDatabase } from './support/jobs/stores.ts'
import { openFleet } from './support/processes/fleet.ts'
import { startS3 } from './support/processes/s3.ts'
import { startUpstream } from './support/processes/upstream.ts'
import { SANDBOX_DIR, SANDBOX_MISSING } from './support/sandbox/sandbox.ts'
import { ECHO_MODEL } from './support/stack.ts'

const [kafka, postgres] = [inject('kafka'), inject('postgres')]
const s3 = kafka && postgres ? await startS3() : undefined
afterAll(async () => await s3?.[Symbol.asyncDispose]())

describe.skipIf(!s3)('a fleet that uses S3 instead of a common directory', { timeout: 240_000 }, () => {
  it('serves large bodies on every endpoint even if consecutive calls reach different ingresses', async () => {
    // The directory is opened first, so that it is removed last, after the processes that write to it have ended.
    await using temporary = await mkdtempDisposable(join(tmpdir(), 'sluice-s3-'))
    const directory = temporary.path
    const corpus = join(directory, 'corpus')
    await mkdir(corpus)
    const text = `# Herons\n\nHerons build their nests in tall trees near water.\n\n${'Herons eat fish. '.repeat(6_000)}`
    await writeFile(join(corpus, 'herons.md'), text)
    await using embedder = await startEmbedder()
    await using upstream = await startUpstream(async ({ path }, answer) => {
      if (path === '/hook') return answer.text('no', 'text/plain', 500)
      if (path !== '/v1/audio/speech')
        return answer.json({ text: 'Hello world.', usage: { type: 'duration', seconds: 1 } })
      answer.open('audio/mpeg')
      await answer.bytes('x'.repeat(200_000))
      answer.end()
    })
    const engine = { type: 'openai', base_url: `${upstream.url}/v1` }
    await using database = await openPostgresDatabase(postgres ?? '')
    await using fleet = await openFleet(kafka ?? '', [
      ECHO_MODEL,
      embedderModel(embedder, { id: 'embed-1' }),
      { id: 'speech-1', pool: 'transcription', engine, transcription: { translates: true } },
      { id: 'voice-1', task: 'speech', engine },
      { id: 'deep-research', pool: 'research', engine: { type: 'research' } },
    ])
    const prefix = `${newId('t', 8)}.`
    const start = async (role: Parameters<typeof fleet.start>[0], name: string = role, more = {}) =>
      await fleet.start(role, {
        ...{ DATABASE_URL: database.url, DATABASE_CONNECTIONS: '3', KAFKA_PREFIX: prefix, ...s3?.settings },
        ...{
          RESEARCH_CORPUS: corpus,
          WEBHOOK_ALLOW_PRIVATE: 'true',
          FIRST_KEY_ADMIN: 'true',
          DATA_DIR: join(directory, name),
          ...more,
        },
      })
    const ingresses = await Promise.all([start('ingress', 'ingress-1'), start('ingress', 'ingress-2')])
    const hasSandbox = SANDBOX_MISSING === undefined
    const roles = ['inference', 'embeddings', 'transcription', 'research', 'scheduler'] as const
    await Promise.all([
      ...roles.map((role) => start(role)),
      ...(hasSandbox ? [start('code', 'code', { SANDBOX: 'zygote', DATA_DIR: dirname(SANDBOX_DIR) })] : []),
    ])

    const walk = new EndpointWalk(ingresses.map(({ url }) => url))
    await Promise.all([walkText(walk), walkResponses(walk), walkModels(walk, hasSandbox), walkBatches(walk)])
    const job = await walkJobs(walk, `${upstream.url}/hook`)
    await addDeadLetters(prefix, job)
    await walkAdmin(walk, job)
    const withoutSandbox = hasSandbox ? [] : ['POST /v1/tools/code']
    expect(await walk.missing(), 'endpoints without a step in test/support/endpoint-walk.ts').toEqual(withoutSandbox)

    for (const role of await readdir(directory)) {
      const files = await readdir(join(directory, role)).catch((): string[] => [])
      expect(files.includes('blobs'), `${role} has a directory of blobs`).toBe(false)
    }
    expect(s3?.requests.some((request) => request.startsWith('PUT'))).toBe(true)
  })
})

/** Writes two dead letters: records of a durable job that a worker of another version could not read. */
async function addDeadLetters(prefix: string, id: string): Promise<void> {
  const call = { attempt: 0, pool: 'inference', kind: 'generate', tenant: 'p', model: 'echo-1', stream: false }
  const value = JSON.stringify({ id, ...call, created_at_ms: Date.now(), deadline_ms: Date.now() + 60_000 })
  const none = { prefix: '', topics: [], clientId: 'test', onProblem: () => undefined }
  const producer = createKafkaJs({ client: 'classic', brokers: (kafka ?? '').split(','), ...none }).producer()
  await producer.connect()
  const messages = [8, 9].map((offset) => ({ key: `inference jobs.inference/0@${offset}`, value }))
  await producer.send({ topic: `${prefix}dead`, messages })
  await producer.disconnect()
}
