import type OpenAI from 'openai'
import { toFile } from 'openai'
import type { BatchCreateParams } from 'openai/resources/batches'
import { until } from './stack.ts'

/** A line of a result file of a batch. */
export interface ResultLine {
  readonly custom_id: string
  readonly response: { readonly status_code: number; readonly body: Record<string, unknown> } | null
  readonly error: { readonly code: string; readonly message: string } | null
}

/** A batch that has ended, and the lines of its two files. */
export interface EndedBatch {
  readonly batch: OpenAI.Batch
  readonly output: readonly ResultLine[]
  readonly errors: readonly ResultLine[]
}

/** Uploads the given lines as a file, without changes or checks, and creates a batch whose requests are these lines. */
export async function createBatch(
  client: OpenAI,
  endpoint: string,
  lines: readonly string[],
  more: object = {},
): Promise<OpenAI.Batch> {
  const file = await toFile(Buffer.from(lines.map((line) => `${line}\n`).join('')), 'in.jsonl')
  const { id } = await client.files.create({ file, purpose: 'batch' })
  const asked = { input_file_id: id, endpoint, completion_window: '24h', ...more } as BatchCreateParams
  return await client.batches.create(asked)
}

/** Runs the request bodies as one batch with the custom ids `r0`, `r1` and so on, waits for its end, and returns the results. */
export async function runBatch(client: OpenAI, endpoint: string, bodies: readonly object[]): Promise<EndedBatch> {
  const lines = bodies.map((body, i) => JSON.stringify({ custom_id: `r${i}`, method: 'POST', url: endpoint, body }))
  return await endOf(client, await createBatch(client, endpoint, lines))
}

/** Waits until a batch has ended, and reads its files. */
export async function endOf(client: OpenAI, { id }: OpenAI.Batch): Promise<EndedBatch> {
  const batch = await until(
    async () => {
      const looked = await client.batches.retrieve(id)
      return ['completed', 'failed', 'expired', 'cancelled'].includes(looked.status) ? looked : undefined
    },
    { withinMs: 120_000 },
  )
  const [output, errors] = await Promise.all(
    [batch.output_file_id, batch.error_file_id].map(async (file) => {
      const text = file ? await (await client.files.content(file)).text() : ''
      return text.split('\n').flatMap((line) => (line === '' ? [] : [JSON.parse(line) as ResultLine]))
    }),
  )
  return { batch, output: output ?? [], errors: errors ?? [] }
}
