/*
 * Tests of chains of responses, each of which continues the previous one. The responses share their history: each message is stored once,
 * and outlives the response that wrote it.
 */

import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import OpenAI from 'openai'
import { expect, it } from 'vitest'
import { type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

const KIB = 1024

async function bytesOnDisk(stack: Stack): Promise<number> {
  const directory = join(stack.dataDir, 'blobs')
  const sizes = await Promise.all(
    (await readdir(directory)).map(
      async (name) => (await stat(join(directory, name)).catch(() => undefined))?.size ?? 0,
    ),
  )
  return sizes.reduce((sum, size) => sum + size, 0)
}

/** Number of responses in a chain, and number of characters per message. A message is larger than a row of the store can hold. */
const LENGTH = 50
const CHARS = 72 * KIB
/**
 * Quota of stored bytes, which suffices if each message is stored once. If each response copied its history, then the chain would need 25
 * times the size of the messages.
 */
const QUOTA = 1.5 * LENGTH * CHARS
const filler = (nth: number) => `!echo text=answer-${nth}\n${'x'.repeat(CHARS)}`

it('a chain of 50 responses stores each message once', async () => {
  await using stack = await startStack({ settings: { FILES_BYTES_MAX_PER_PROJECT: String(QUOTA) } })
  const client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })
  const say = async (nth: number, previous_response_id: string | null) =>
    await client.responses.create({
      model: 'echo-1',
      input: filler(nth),
      instructions: `rule ${nth}`,
      previous_response_id,
    })
  const ids: string[] = []
  for (let nth = 0; nth < LENGTH; nth++) {
    ids.push((await say(nth, ids.at(-1) ?? null)).id)
    expect(await bytesOnDisk(stack), 'bytes on disk').toBeLessThanOrEqual(QUOTA)
  }
  expect(await bytesOnDisk(stack), 'bytes on disk').toBeLessThan(1.3 * LENGTH * CHARS)
  const last = ids.at(-1) ?? ''
  const itemsOf = async (id: string) => {
    const { data } = await client.responses.inputItems.list(id, { limit: 100, order: 'asc' })
    return data.map((item) => {
      const [part] = (item as unknown as { content: { text: string }[] }).content
      return part?.text.slice(0, 20)
    })
  }
  const said = Array.from({ length: LENGTH }, (_, i) => [filler(i).slice(0, 20), `answer-${i}`]).flat()
  expect(await itemsOf(last)).toEqual(said.slice(0, -1))

  for (const id of ids.slice(0, -1)) await client.responses.delete(id)
  const next = await say(LENGTH, last)
  expect(next.output_text).toBe(`answer-${LENGTH}`)
  expect((await itemsOf(next.id)).slice(0, 2 * LENGTH)).toEqual(said)
  expect(next.usage?.input_tokens).toBeGreaterThan(100)
  const files = await client.files.list()
  expect(files.data, 'files in the list of the caller').toEqual([])

  await client.responses.delete(last)
  await client.responses.delete(next.id)
  await until(async () => (await bytesOnDisk(stack)) === 0)
})

it('a chain of 30 short responses is stored in fewer than six files', async () => {
  await using stack = await startStack()
  const client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })
  let previous_response_id: string | null = null
  for (let nth = 0; nth < 30; nth++) {
    const input = `!echo text=a${nth}\n${'y'.repeat(6 * KIB)}`
    const made: OpenAI.Responses.Response = await client.responses.create({
      model: 'echo-1',
      input,
      previous_response_id,
    })
    expect(made.output_text.slice(0, 9)).toBe(`a${nth}`)
    previous_response_id = made.id
  }
  const { data } = await client.responses.inputItems.list(previous_response_id ?? '', { limit: 100 })
  expect(data).toHaveLength(59)
  expect((await readdir(join(stack.dataDir, 'blobs'))).filter((name) => name.startsWith('file-')).length).toBeLessThan(
    6,
  )
})
