import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import OpenAI, { toFile } from 'openai'
import { afterAll, describe, expect, inject, it } from 'vitest'
import { openPostgresDatabase } from './support/jobs/stores.ts'
import { openFleet } from './support/processes/fleet.ts'
import { startS3 } from './support/processes/s3.ts'
import { CODE } from './support/sandbox/code-calls.ts'
import { SANDBOX_DIR, SANDBOX_MISSING } from './support/sandbox/sandbox.ts'
import { TEST_KEY, until } from './support/stack.ts'

const [kafka, postgres] = [inject('kafka'), inject('postgres')]
const s3 = kafka && postgres ? await startS3() : undefined
afterAll(async () => await s3?.[Symbol.asyncDispose]())

/** Larger than the 64 KiB that a record carries. */
const LARGE = 'large text '.repeat(20_000)

describe.skipIf(!s3)('a fleet over S3 without a common directory', { timeout: 240_000 }, () => {
  it('serves large bodies, files, batches and plots', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'sluice-s3-'))
    await using database = await openPostgresDatabase(postgres ?? '')
    await using fleet = await openFleet(kafka ?? '')
    const shared = { DATABASE_URL: database.url, ...s3?.settings }
    const [ingress] = await Promise.all([
      fleet.start('ingress', { ...shared, DATA_DIR: join(directory, 'ingress') }),
      fleet.start('inference', { ...shared, DATA_DIR: join(directory, 'inference') }),
      fleet.start('scheduler', { ...shared, DATA_DIR: join(directory, 'scheduler') }),
    ])
    const client = new OpenAI({ baseURL: `${ingress.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })

    const messages = [{ role: 'user' as const, content: LARGE }]
    const answer = await client.chat.completions.create({ model: 'echo-1', messages })
    expect(answer.choices[0]?.message.content).toBe(LARGE)

    const job = { endpoint: '/v1/chat/completions', body: { model: 'echo-1', messages } }
    const created = (await (await fleet.post(ingress, '/v1/jobs', job)).json()) as { id: string }
    const read = async () => await client.get<{ status: string; result?: unknown }>(`/jobs/${created.id}`)
    const ended = await until(async () => {
      const found = await read()
      return found.status === 'completed' && found
    })
    expect(JSON.stringify(ended).length).toBeGreaterThan(LARGE.length)

    const line = (id: string) => ({
      custom_id: id,
      method: 'POST',
      url: '/v1/chat/completions',
      body: { model: 'echo-1', messages },
    })
    const text = ['a', 'b'].map((id) => JSON.stringify(line(id))).join('\n')
    const file = await client.files.create({ purpose: 'batch', file: await toFile(Buffer.from(text), 'batch.jsonl') })
    expect(await (await client.files.content(file.id)).text()).toBe(text)
    const batch = await client.batches.create({
      input_file_id: file.id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
    })
    const output = await until(async () => (await client.batches.retrieve(batch.id)).output_file_id, {
      withinMs: 120_000,
    })
    expect((await (await client.files.content(output)).text()).split('\n').filter(Boolean)).toHaveLength(2)

    if (SANDBOX_MISSING === undefined) {
      await fleet.start('code', { ...shared, SANDBOX: 'zygote', DATA_DIR: dirname(SANDBOX_DIR) })
      const code = `import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig("plot.png")\nprint("x" * ${LARGE.length})`
      const run = (await (await fleet.post(ingress, CODE, { code, lang: 'python' })).json()) as { plots: unknown[] }
      expect(run.plots).toHaveLength(1)
    }

    for (const role of await readdir(directory)) {
      const files = await readdir(join(directory, role)).catch((): string[] => [])
      expect(files.includes('blobs'), `${role} has a directory of blobs`).toBe(false)
    }
    expect(s3?.requests.some((request) => request.startsWith('PUT'))).toBe(true)
    await rm(directory, { recursive: true, force: true })
  })
})
