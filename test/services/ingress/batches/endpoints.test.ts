/*
 * Tests of batches for every endpoint that supports jobs (docs/guides/batches.md, Lines). Code runs are not included, because they need a
 * sandbox.
 */

import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI from 'openai'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { JOB_ENDPOINTS } from '#services/ingress/endpoints/endpoints.ts'
import { runBatch } from '../../../support/batches.ts'
import { type Embedder, embedderModel, startEmbedder } from '../../../support/embeddings/embeddings.ts'
import { type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { wav } from '../../../support/speech/service.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY } from '../../../support/stack.ts'

let stack: Stack
let client: OpenAI
let embedder: Embedder
let upstream: ScriptedUpstream
let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sluice-batches-'))
  await writeFile(join(folder, 'herons.md'), '# Herons\n\nHerons build their nests in tall trees near water.\n')
  embedder = await startEmbedder()
  upstream = await startUpstream(async ({ path }, answer) => {
    if (path === '/v1/audio/speech') {
      answer.open('audio/mpeg')
      await answer.bytes(Buffer.from('sound'))
      answer.end()
    } else answer.json({ text: 'Hello world.', usage: { type: 'duration', seconds: 1 } })
  })
  const engine = { type: 'openai', base_url: `${upstream.url}/v1` }
  const models = [
    ECHO_MODEL,
    embedderModel(embedder, { id: 'embed-1' }),
    { id: 'speech-1', pool: 'transcription', engine, transcription: { translates: true } },
    { id: 'voice-1', task: 'speech', engine },
    { id: 'deep-research', pool: 'research', engine: { type: 'research' } },
  ]
  stack = await startStack({ models, settings: { RESEARCH_CORPUS: folder } })
  client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: TEST_KEY, maxRetries: 0 })
})
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await embedder?.[Symbol.asyncDispose]()
  await upstream?.[Symbol.asyncDispose]()
  await rm(folder, { recursive: true, force: true })
})

const messages = [{ role: 'user', content: 'hello' }]
const file = `data:audio/wav;base64,${wav(1).toString('base64')}`
/** For each endpoint: a request, and fields that its response must have. */
const ASKED: Readonly<Record<string, readonly [body: object, answer: object | string]>> = {
  '/v1/chat/completions': [{ model: 'echo-1', messages }, { choices: [{ message: { content: 'hello' } }] }],
  '/v1/completions': [{ model: 'echo-1', prompt: 'hello' }, { choices: [{ text: 'hello' }] }],
  '/v1/messages': [{ model: 'echo-1', max_tokens: 9, messages }, { content: [{ type: 'text', text: 'hello' }] }],
  '/v1/messages/count_tokens': [{ model: 'echo-1', messages }, { input_tokens: 1 }],
  '/v1/responses': [
    { model: 'echo-1', input: 'hello' },
    { status: 'completed', output: [{ type: 'message' }] },
  ],
  '/v1/responses/input_tokens': [{ model: 'echo-1', input: 'hello' }, { input_tokens: 1 }],
  '/v1/embeddings': [{ model: 'embed-1', input: 'hello' }, { data: [{ object: 'embedding' }] }],
  '/v1/rerank': [{ model: 'embed-1', query: 'hello', documents: ['a', 'b'] }, { results: [{}, {}] }],
  '/v1/moderations': [{ input: 'hello' }, { results: [{ flagged: false }] }],
  '/v1/audio/transcriptions': [{ model: 'speech-1', file }, { text: 'Hello world.' }],
  '/v1/audio/translations': [{ model: 'speech-1', file, response_format: 'text' }, 'Hello world.'],
  '/v1/audio/speech': [
    { model: 'voice-1', voice: 'alloy', input: 'hello' },
    { object: 'audio.speech', audio: Buffer.from('sound').toString('base64') },
  ],
  '/v1/deep-research': [{ model: 'deep-research', messages: [{ role: 'user', content: 'Where do herons nest?' }] }, {}],
}

it.concurrent.each(Object.entries(ASKED))('a batch runs calls of the endpoint %s', async (endpoint, [body, answer]) => {
  const { batch, output, errors } = await runBatch(client, endpoint, [body, {}])
  expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 2, completed: 1, failed: 1 } })
  expect(output).toMatchObject([{ custom_id: 'r0', response: { status_code: 200 }, error: null }])
  const said = output[0]?.response?.body
  if (typeof answer === 'string') expect(String(said).trim()).toBe(answer)
  else expect(said).toMatchObject(answer)
  expect(errors).toMatchObject([{ custom_id: 'r1', response: { status_code: 400, body: { error: {} } } }])
})

it('the batch tests include every endpoint that accepts jobs, except code', () => {
  const known = JOB_ENDPOINTS.map(({ path }) => path).filter((path) => path !== '/v1/tools/code')
  expect(Object.keys(ASKED).sort()).toEqual(known.toSorted())
})

it('a response of a batch is stored and can be continued by another response', async () => {
  const { output } = await runBatch(client, '/v1/responses', [{ model: 'echo-1', input: 'first' }])
  const id = String(output[0]?.response?.body.id)
  expect(await client.responses.retrieve(id)).toMatchObject({ id, status: 'completed', output_text: 'first' })
  const next = await client.responses.create({ model: 'echo-1', input: 'second', previous_response_id: id })
  expect(next.output_text).toBe('second')
})

it('a batch for the Responses API reports an error for each line with stream or conversation', async () => {
  const { id } = await client.conversations.create()
  const { errors } = await runBatch(client, '/v1/responses', [
    { model: 'echo-1', input: 'hi', stream: true },
    { model: 'echo-1', input: 'hi', conversation: id },
    { model: 'echo-1', input: 'hi', previous_response_id: 'resp_0123456789' },
  ])
  const named = ['stream', 'conversation', 'previous_response_id'].map((param) => ({
    response: { body: { error: { param } } },
  }))
  expect(errors).toMatchObject(named)
})

it('a batch for an endpoint that accepts no jobs is refused with a list of the supported endpoints', async () => {
  const refused = runBatch(client, '/v1/images/generations', [{}])
  await expect(refused).rejects.toMatchObject({ status: 400, param: 'endpoint', message: /\/v1\/deep-research/ })
})
