/*
 * Tests the setting REMOTE_IMAGES, with which upstreams fetch the URLs in a request. A URL is refused if its host is a private IP address, or a
 * name with such an address. Otherwise, a caller could make the upstream call hosts of its own network.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { GenerateRequest } from '#schemas/kinds/generate.ts'
import { requirePublicUrls } from '#services/inference/remote-urls.ts'
import { type ScriptedUpstream, startUpstream } from '../../support/processes/upstream.ts'
import { type Stack, startStack, until } from '../../support/stack.ts'

let upstream: ScriptedUpstream
let stack: Stack

beforeAll(async () => {
  upstream = await startUpstream((call, answer) =>
    answer.json(
      call.path.endsWith('/chat/completions')
        ? { choices: [{ index: 0, message: { role: 'assistant', content: 'seen' }, finish_reason: 'stop' }] }
        : { type: 'message', content: [{ type: 'text', text: 'seen' }], stop_reason: 'end_turn', usage: {} },
    ),
  )
  const capabilities = { images: true, files: true }
  const models = [
    { id: 'o', engine: { type: 'openai', base_url: `${upstream.url}/v1` }, capabilities },
    { id: 'a', engine: { type: 'anthropic', base_url: upstream.url }, capabilities },
  ]
  stack = await startStack({ models, settings: { REMOTE_IMAGES: 'true' } })
})
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await upstream?.[Symbol.asyncDispose]()
})

const user = (...content: object[]) => ({ max_tokens: 9, messages: [{ role: 'user', content }] })
const source = (url: string) => ({ type: 'url', url })
/** For each field that may contain a URL: a request with this URL in the field. */
const PLACES: Record<string, (url: string) => [string, object]> = {
  'an image of chat': (url) => [
    '/v1/chat/completions',
    { model: 'o', ...user({ type: 'image_url', image_url: { url } }) },
  ],
  'an image of messages': (url) => ['/v1/messages', { model: 'a', ...user({ type: 'image', source: source(url) }) }],
  'a document of messages': (url) => [
    '/v1/messages',
    { model: 'a', ...user({ type: 'document', source: source(url) }) },
  ],
  'an image in a document': (url) => {
    const content = [{ type: 'image', source: source(url) }]
    return ['/v1/messages', { model: 'a', ...user({ type: 'document', source: { type: 'content', content } }) }]
  },
  'an image in a count': (url) => [
    '/v1/messages/count_tokens',
    { model: 'a', messages: user({ type: 'image', source: source(url) }).messages },
  ],
}
const PRIVATE = [
  'https://169.254.169.254/latest/meta-data',
  'https://127.0.0.1/x.png',
  'https://10.0.0.1/x.png',
  'https://0x7f000001/x.png',
  'https://[::1]/x.png',
  'https://[::ffff:169.254.169.254]/x.png',
  'https://metadata.google.internal/x.png',
  'https://localhost/x.png',
  'https://vllm/x.png',
]

describe.each(Object.entries(PLACES))('the URL of %s', (_name, bodyOf) => {
  test.each(PRIVATE)('is refused with status 400 if the URL has the private address %s', async (url) => {
    const response = await stack.post(...bodyOf(url))
    expect([response.status, await response.text()]).toEqual([400, expect.stringContaining('public internet')])
  })

  test('is refused with status 400, without an upstream call, if the host resolves to a private address', async () => {
    const before = upstream.calls.length
    const response = await stack.post(...bodyOf('https://images.invalid/x.png'))
    expect([response.status, await response.text()]).toEqual([400, expect.stringContaining('has no public address')])
    expect(upstream.calls.length).toBe(before)
  })
})

test('attached and durable calls forward the URL of an image to the upstream if the address is public', async () => {
  const url = 'https://8.8.8.8/x.png'
  const before = upstream.calls.length
  const [path, body] = (PLACES['an image of chat'] as (url: string) => [string, object])(url)
  expect((await stack.post(path, body)).status).toBe(200)
  expect((await stack.post(path, body, { headers: { prefer: 'respond-async' } })).status).toBe(202)
  await until(() => upstream.calls.length === before + 2)
  for (const call of upstream.calls.slice(before)) expect(JSON.stringify(call.body)).toContain(url)
})

describe('the check of the addresses of a host', () => {
  const requestWith = (...urls: string[]) =>
    GenerateRequest.parse({
      dialect: 'openai',
      model: 'o',
      stream: false,
      turns: [{ role: 'user', parts: urls.map((url) => ({ type: 'image', url })) }],
    })
  const leadingTo = (...addresses: string[]) => {
    return async () => addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }))
  }
  const check = (addresses: string[], signal = new AbortController().signal) =>
    requirePublicUrls(requestWith('https://images.example/x.png'), signal, leadingTo(...addresses))

  test.each([[['169.254.169.254']], [['8.8.8.8', '10.0.0.1']], [['::ffff:127.0.0.1']], [['fd00:ec2::254']], [[]]])(
    'refuses the addresses %j',
    async (addresses) => {
      await expect(check(addresses)).rejects.toMatchObject({ code: 'invalid_value' })
    },
  )

  test('accepts addresses that are all public', async () => {
    await check(['8.8.8.8', '2606:4700::1111'])
  })

  test('ends when the signal of the call is aborted during name resolution', async () => {
    const leave = new AbortController()
    const checked = requirePublicUrls(requestWith('https://a.example/'), leave.signal, () => new Promise(() => {}))
    leave.abort(new Error('disconnected'))
    await expect(checked).rejects.toThrow('disconnected')
  })

  test('refuses a request with more than 32 hosts', async () => {
    const urls = Array.from({ length: 33 }, (_, i) => `https://host-${i}.example/x.png`)
    const checked = requirePublicUrls(requestWith(...urls), new AbortController().signal, leadingTo('8.8.8.8'))
    await expect(checked).rejects.toThrow('at most 32')
  })
})
