/*
 * Tests of the tools file_search and web_search in the Responses API. The service performs these searches itself, in local documents and
 * over HTTP (docs/guides/responses.md, Hosted tools).
 */

import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI from 'openai'
import type { ResponseCreateParamsNonStreaming, ResponseStreamEvent } from 'openai/resources/responses/responses'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { type Outside, startOutside } from '../../../support/research/outside.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY } from '../../../support/stack.ts'

const RESEARCH = { id: 'deep-research', pool: 'research', engine: { type: 'research' } }
const WEB = { type: 'web_search' as const }
const FILES = { type: 'file_search' as const, vector_store_ids: ['local'] }

let stack: Stack
let outside: Outside
let folder: string
let client: OpenAI
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sluice-search-'))
  await writeFile(join(folder, 'herons.md'), '# Herons\n\nHerons build their nests in tall trees near water.\n')
  await writeFile(join(folder, 'owls.md'), '# Owls\n\nOwls hunt mice at night.\n')
  outside = await startOutside()
  const settings = { RESEARCH_CORPUS: folder, SEARXNG_URL: outside.url, RESEARCH_ALLOW_PRIVATE: 'true' }
  stack = await startStack({ models: [ECHO_MODEL, RESEARCH], settings })
  client = new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0, timeout: 120_000 })
})
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await outside?.[Symbol.asyncDispose]()
  await rm(folder, { recursive: true, force: true })
})

function script(tool: string, query: string): string {
  return `!echo call=${tool} rounds=1 args=${JSON.stringify(JSON.stringify({ query }))}`
}

function ask(input: string, more: Partial<ResponseCreateParamsNonStreaming>) {
  return client.responses.create({ model: 'echo-1', input, ...more })
}

it('the file_search tool searches the documents, and the model continues with the results', async () => {
  const input = script('file_search', 'heron nests')
  const response = await ask(input, { tools: [FILES], include: ['file_search_call.results'] })
  expect(response).toMatchObject({ status: 'completed', tools: [FILES] })
  expect(response.output[0]).toMatchObject({
    ...{ type: 'file_search_call', status: 'completed', queries: ['heron nests'] },
    results: [{ filename: 'herons.md', text: expect.stringContaining('tall trees near water') }],
  })
  expect(response.output_text).toContain('tall trees near water')
  const quiet = await ask(input, { tools: [FILES], previous_response_id: response.id })
  expect(quiet.output).toMatchObject([{ type: 'file_search_call', results: null }, { type: 'message' }])
  expect((await client.responses.retrieve(quiet.id)).output).toEqual(quiet.output)
})

it('the web_search tool can be requested by each of its names, and reads the web pages that it finds', async () => {
  const input = script('web_search', 'How do herons at Tarn1 build their nests?')
  const response = await ask(input, {
    tools: [{ type: 'web_search_preview' }],
    include: ['web_search_call.action.sources'],
  })
  expect(response).toMatchObject({ status: 'completed', tools: [{ type: 'web_search_preview' }] })
  expect(response.output[0]).toMatchObject({
    ...{ type: 'web_search_call', status: 'completed' },
    action: { type: 'search', sources: [{ type: 'url', url: expect.stringContaining(outside.url) }, {}, {}] },
  })
  expect([...outside.countsOf('Tarn1').keys()].some((what) => what.startsWith('page'))).toBe(true)
  expect(response.output_text).toContain('Herons at Tarn1')
  const { output } = await ask(input, { tools: [WEB] })
  expect(output[0]).toMatchObject({ type: 'web_search_call', action: { type: 'search' } })
  expect(output[0]).not.toHaveProperty('action.sources')
  expect(output[0]).not.toHaveProperty('results')
})

it('the web_search tool sends typed events of its search', async () => {
  const input = script('web_search', 'How do herons at Tarn2 build their nests?')
  const events: ResponseStreamEvent[] = []
  for await (const event of await client.responses.create({ model: 'echo-1', input, tools: [WEB], stream: true })) {
    events.push(event)
  }
  const types = events.map(({ type }) => type.replace('response.', ''))
  expect(types.slice(0, 7)).toEqual([
    ...['created', 'in_progress', 'output_item.added', 'web_search_call.in_progress', 'web_search_call.searching'],
    ...['web_search_call.completed', 'output_item.done'],
  ])
  expect(types.at(-1)).toBe('completed')
})

it('a response with file_search streams the text of the model, and stores the same text', async () => {
  const input = `${script('file_search', 'heron nests')} tokens=40 delay_ms=40`
  const events: ResponseStreamEvent[] = []
  const asked = { model: 'echo-1', input, tools: [FILES], stream: true as const, background: true }
  for await (const event of await client.responses.create(asked)) {
    events.push(event)
  }
  const deltas = (at: number) =>
    events.flatMap((event) => (event.type === 'response.output_text.delta' && event.output_index === at ? [event] : []))
  const end = events.at(-1)
  const output = end?.type === 'response.completed' ? end.response.output : []
  expect(output.map(({ type }) => type)).toEqual(['message', 'file_search_call', 'message'])
  for (const at of [0, 2]) {
    expect(deltas(at).length).toBeGreaterThan(2)
    const text = deltas(at)
      .map(({ delta }) => delta)
      .join('')
    expect(output[at]).toMatchObject({ status: 'completed', content: [{ text }] })
  }
  const numbers = events.map(({ sequence_number }) => sequence_number)
  expect(numbers).toEqual([...new Set(numbers)].sort((a, b) => a - b))
  const id = end?.type === 'response.completed' ? end.response.id : ''
  const again: ResponseStreamEvent[] = []
  for await (const event of await client.responses.retrieve(id, { stream: true })) again.push(event)
  expect(again).toEqual(events)

  const { data } = (await client.get(`/jobs?limit=10`)) as { data: { endpoint: string }[] }
  expect(data.every(({ endpoint }) => endpoint !== '/v1/responses/search')).toBe(true)
  const job = (await client.get(`/jobs/${id.replace('resp_', 'job_')}`)) as { children: object[] }
  expect(job.children).toMatchObject([{ endpoint: '/v1/deep-research' }])
})

it('the search tools report an empty query to the model, and refuse an unknown vector store', async () => {
  const failed = await ask('!echo call=web_search rounds=1 args={}', { tools: [WEB] })
  expect(failed.output).toMatchObject([{ type: 'web_search_call', status: 'failed' }, { type: 'message' }])
  expect(failed.output_text).toContain('Error')
  const other = await stack.post('/v1/responses', {
    ...{ model: 'echo-1', input: 'hi' },
    tools: [{ ...FILES, vector_store_ids: ['vs_1'] }],
  })
  expect([other.status, await other.text()]).toEqual([400, expect.stringContaining('tools[0].vector_store_ids')])
})
