import { describe, expect, test } from 'vitest'
import { GenerateRequest } from '#schemas/kinds/generate.ts'
import { requireNativeUrls } from '#services/ingress/calls/endpoint.ts'
import { longestHold } from '../../support/loop-hold.ts'

/** Returns a request with a native item, which only an upstream of the same API understands. */
function requestWith(value: Record<string, unknown>): GenerateRequest {
  const part = { type: 'native', dialect: 'responses', value, isItem: true }
  return GenerateRequest.parse({
    dialect: 'responses',
    model: 'm1',
    turns: [{ role: 'assistant', parts: [part] }],
    stream: false,
  })
}

const METADATA = '169.254.169.254/latest'

describe('URLs in items that are forwarded unchanged to the upstream', () => {
  test.each<[string, Record<string, unknown>]>([
    ['a private URL', { server_url: `https://${METADATA}` }],
    ['a private host without a scheme', { url: METADATA }],
    ['a private URL with one slash after the scheme', { url: `http:/${METADATA}` }],
    ['a file URL without a slash', { url: 'file:etc/passwd.txt' }],
    ['a file URL', { url: 'file:/etc/passwd' }],
    ['a private URL in a camel-case field', { fileUri: `https://${METADATA}` }],
    ['a private URL in a list', { image_urls: ['https://example.com/a.png', `https://${METADATA}`] }],
    ['a private URL as a screenshot', { output: { type: 'computer_screenshot', image_url: `https://${METADATA}` } }],
    ['a private image URL in a tool output', { output: [{ type: 'input_image', image_url: `https://${METADATA}` }] }],
    ['a URL of 9,000 characters', { url: `https://example.com/${'x'.repeat(9_000)}` }],
    [
      '3,000 different URLs',
      { tools: Array.from({ length: 3_000 }, (_, at) => ({ url: `https://example.com/${at}` })) },
    ],
  ])('are refused if the item has %s', async (_, value) => {
    await expect(requireNativeUrls(requestWith(value), true)).rejects.toMatchObject({ code: 'invalid_value' })
  })

  test.each<[string, Record<string, unknown>]>([
    ['a public host', { server_url: 'https://example.com/mcp' }],
    ['a host with a port and without a scheme', { endpoint: 'example.com:8443/mcp' }],
    [
      'a private URL as a search result',
      { results: [{ url: 'http://localhost/a' }], action: { url: 'http://localhost/a' } },
    ],
    ['a private URL as an output of a code tool', { outputs: [{ type: 'image', url: 'http://localhost/a' }] }],
    ['an equal public host 100,000 times', { pages: Array.from({ length: 100_000 }, () => ({ url: 'example.com' })) }],
  ])('are accepted if the item has %s', async (_, value) => {
    await requireNativeUrls(requestWith(value), true)
  })

  test('are refused in images of a tool output if remote images are not allowed', async () => {
    const output = { type: 'computer_screenshot', image_url: 'https://example.com/a.png' }
    const check = requireNativeUrls(requestWith({ output }), false)
    await expect(check).rejects.toMatchObject({ code: 'unsupported_value' })
  })

  test.each<[string, Record<string, unknown>]>([
    ['a URL of 28 MB', { url: 'x'.repeat(28_000_000) }],
    ['190,000 URLs', { pages: Array.from({ length: 190_000 }, (_, at) => ({ url: `a${at}.example.com` })) }],
  ])('are checked without blocking the event loop if the item has %s', async (_, value) => {
    const request = requestWith(value)
    const holdMs = await longestHold(() => requireNativeUrls(request, true).catch(() => {}))
    expect(holdMs).toBeLessThan(60)
  })
})
