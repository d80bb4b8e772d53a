/* Tests of POST /v1/audio/speech from the caller's point of view (docs/guides/speech.md), with a simulated speech server. */

import { gzipSync } from 'node:zlib'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

const AUDIO = Buffer.from(Array.from({ length: 200_001 }, (_, at) => (at * 7) % 251))
const MIB = 1024 * 1024

let stack: Stack
let upstream: ScriptedUpstream
let client: OpenAI
let goOn = () => {}
beforeAll(async () => {
  upstream = await startUpstream(async ({ body }, answer) => await speak(String(body.input), answer))
  const engine = { type: 'openai', base_url: `${upstream.url}/v1`, model: 'kokoro-82m' }
  stack = await startStack({ models: [ECHO_MODEL, { id: 'kokoro', aliases: ['tts-1'], task: 'speech', engine }] })
  client = new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
})
afterAll(async () => {
  await stack[Symbol.asyncDispose]()
  await upstream[Symbol.asyncDispose]()
})

async function speak(input: string, answer: Answer): Promise<void> {
  if (input === 'JSON') return answer.json({ no: 'audio' })
  if (input === 'REFUSE') return answer.json({ error: { message: 'Unknown voice', param: 'voice' } }, 400)
  answer.open('audio/mpeg', input.startsWith('GZIP') ? { 'content-encoding': 'gzip' } : {})
  if (input === 'GZIP') {
    await answer.bytes(gzipSync(AUDIO))
    return answer.end()
  }
  if (input === 'EMPTY') return answer.end()
  await answer.bytes(AUDIO.subarray(0, 100_000))
  if (input === 'CUT') return answer.cut()
  if (input === 'LONG') {
    for (let sent = 0; sent < 26; sent++) await Promise.race([answer.bytes(Buffer.alloc(MIB)), pause(5_000)])
    return answer.end()
  }
  if (input === 'WAIT') await new Promise<void>((resolve) => (goOn = resolve))
  if (input === 'STALL') return
  await answer.bytes(AUDIO.subarray(100_000))
  answer.end()
}

const pause = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms))
const ask = (input: string, more: object = {}) =>
  client.audio.speech.create({ model: 'kokoro', voice: 'alloy', input, ...more })
const bytesOf = async (response: { arrayBuffer(): Promise<ArrayBuffer> }) => Buffer.from(await response.arrayBuffer())

describe('speech synthesis', () => {
  test('sends all fields to the speech server, and returns the bytes and content type of the response', async () => {
    const response = await ask('hello', { response_format: 'wav', speed: 1.5, instructions: 'softly' })
    expect(response.headers.get('content-type')).toBe('audio/wav')
    expect((await bytesOf(response)).equals(AUDIO)).toBe(true)
    const fields = { voice: 'alloy', input: 'hello', response_format: 'wav', speed: 1.5, instructions: 'softly' }
    expect(upstream.calls.at(-1)).toMatchObject({ path: '/v1/audio/speech' })
    expect(upstream.calls.at(-1)?.body).toEqual({ model: 'kokoro-82m', ...fields })
  })

  test.each(['GZIP', 'GZIP in name only'])('returns decoded audio if the upstream response is %s', async (input) => {
    const response = await ask(input)
    expect(response.headers.get('content-encoding')).toBeNull()
    expect((await bytesOf(response)).equals(AUDIO)).toBe(true)
  })

  test('streams the audio while the server generates it', async () => {
    const response = await ask('WAIT', { model: 'tts-1' })
    expect(response.headers.get('content-type')).toBe('audio/mpeg')
    const reader = (response.body as ReadableStream<Uint8Array>).getReader()
    const pieces: Uint8Array[] = []
    let length = 0
    const read = async () => {
      const { value } = await reader.read()
      if (value) pieces.push(value)
      length += value?.length ?? 0
      return value !== undefined
    }
    while (length < 100_000) await read()
    expect(length).toBe(100_000)
    goOn()
    while (await read());
    expect(Buffer.concat(pieces).equals(AUDIO)).toBe(true)
  })

  test('returns the audio as events if requested', async () => {
    const text = await (await ask('hello', { stream_format: 'sse' })).text()
    const data = text.split('\n\n').filter((frame) => frame.startsWith('data: {'))
    const events = data.map((frame) => JSON.parse(frame.slice('data: '.length)) as { type: string; audio?: string })
    const done = events.pop()
    expect(events.every(({ type }) => type === 'speech.audio.delta')).toBe(true)
    expect(Buffer.concat(events.map(({ audio = '' }) => Buffer.from(audio, 'base64'))).equals(AUDIO)).toBe(true)
    expect(done).toMatchObject({ type: 'speech.audio.done', usage: { input_tokens: 1, output_tokens: 0 } })
  })

  test('stores the audio in the JSON result if the call is a durable job', async () => {
    const body = { model: 'kokoro', voice: 'alloy', input: 'hello', response_format: 'opus' }
    const kept = await stack.post('/v1/audio/speech', body, { headers: { prefer: 'respond-async, wait=30' } })
    const answer = (await kept.json()) as { audio: string }
    expect(answer).toMatchObject({ object: 'audio.speech', content_type: 'audio/ogg', usage: { total_tokens: 1 } })
    expect(Buffer.from(answer.audio, 'base64').equals(AUDIO)).toBe(true)
  })

  test('cancels the upstream call if the caller disconnects', async () => {
    const response = await ask('STALL')
    await response.body?.cancel()
    await upstream.calls.at(-1)?.closed
  })

  test('adds the tokens of the input to the usage report', async () => {
    const used = async () => {
      const report = (await (await stack.get('/v1/usage?group_by=model')).json()) as {
        data: { group: string; input_tokens: number }[]
      }
      return report.data.find(({ group }) => group === 'kokoro')?.input_tokens
    }
    await bytesOf(await ask('word '.repeat(100)))
    await until(async () => ((await used()) ?? 0) >= 100)
  })
})

describe('failed speech synthesis', () => {
  test.each(['JSON', 'EMPTY'])('returns 502 if the server sends no audio: %s', async (input) => {
    await expect(ask(input)).rejects.toMatchObject({ status: 502, code: 'upstream_error' })
  })

  test('returns 400 if the server refuses the request', async () => {
    await expect(ask('REFUSE')).rejects.toMatchObject({ status: 400 })
  })

  test.each(['CUT', 'LONG'])('closes the connection if the server fails after the first bytes: %s', async (input) => {
    await expect(ask(input).then(bytesOf)).rejects.toThrow()
  })
})

test.each([
  [{ input: '' }, 400, 'input', 'empty_string'],
  [{ input: 'a'.repeat(4_097) }, 400, 'input', 'string_above_max_length'],
  [{ input: undefined }, 400, 'input', 'missing_required_parameter'],
  [{ response_format: 'midi' }, 400, 'response_format', 'invalid_value'],
  [{ speed: 9 }, 400, 'speed', 'decimal_above_max_value'],
  [{ voice: 7 }, 400, 'voice', 'invalid_type'],
  [{ model: 'echo-1' }, 400, 'model', 'model_not_supported'],
  [{ model: 'nothing' }, 404, 'model', 'model_not_found'],
])('an invalid speech request is refused with the name of the parameter: %.60j', async (more, status, param, code) => {
  const response = await stack.post('/v1/audio/speech', { model: 'kokoro', voice: 'alloy', input: 'a', ...more })
  expect([response.status, await response.json()]).toMatchObject([status, { error: { param, code } }])
})

test('a speech request without a speech model gets an error that explains the configuration', async () => {
  await using mute = await startStack()
  const response = await mute.post('/v1/audio/speech', { model: 'tts-1', voice: 'alloy', input: 'a' })
  expect(response.status).toBe(404)
  expect(await response.text()).toContain("model with 'task: speech' to models.yaml")
})
