import { describe, expect, test } from 'vitest'
import { GenerateRequest } from '#schemas/generate.ts'
import { requireNativeUrls } from '#services/ingress/endpoints/upstream-fields.ts'
import { longestHold } from '../../support/loop-hold.ts'

/** A request with an item that only its upstream supports. */
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

describe('URLs in items that are forwarded unchanged', () => {
  test.each<[string, Record<string, unknown>]>([
    ['a URL', { server_url: `https://${METADATA}` }],
    ['a host without a scheme', { url: METADATA }],
    ['one slash after the scheme', { url: `http:/${METADATA}` }],
    ['no slash after the scheme', { url: 'file:etc/passwd.txt' }],
    ['a file', { url: 'file:/etc/passwd' }],
    ['a name in camel case', { fileUri: `https://${METADATA}` }],
    ['a list', { image_urls: ['https://example.com/a.png', `https://${METADATA}`] }],
    ['the screen of a computer', { output: { type: 'computer_screenshot', image_url: `https://${METADATA}` } }],
    ['an image in the output of a tool', { output: [{ type: 'input_image', image_url: `https://${METADATA}` }] }],
    ['a URL of 9,000 characters', { url: `https://example.com/${'x'.repeat(9_000)}` }],
    ['3,000 URLs', { tools: Array.from({ length: 3_000 }, (_, at) => ({ url: `https://example.com/${at}` })) }],
  ])('are refused: %s', async (_, value) => {
    await expect(requireNativeUrls(requestWith(value), true)).rejects.toMatchObject({ code: 'invalid_value' })
  })

  test.each<[string, Record<string, unknown>]>([
    ['a public host', { server_url: 'https://example.com/mcp' }],
    ['a host with a port and without a scheme', { endpoint: 'example.com:8443/mcp' }],
    ['a page that was quoted', { results: [{ url: 'http://localhost/a' }], action: { url: 'http://localhost/a' } }],
    ['a page in the output of a tool', { outputs: [{ type: 'image', url: 'http://localhost/a' }] }],
    ['the same page 100,000 times', { pages: Array.from({ length: 100_000 }, () => ({ url: 'example.com' })) }],
  ])('are accepted: %s', async (_, value) => {
    await requireNativeUrls(requestWith(value), true)
  })

  test('are refused in images if remote ones are not allowed, also in the output of a tool', async () => {
    const output = { type: 'computer_screenshot', image_url: 'https://example.com/a.png' }
    const check = requireNativeUrls(requestWith({ output }), false)
    await expect(check).rejects.toMatchObject({ code: 'unsupported_value' })
  })

  test.each<[string, Record<string, unknown>]>([
    ['one of 28 MB', { url: 'x'.repeat(28_000_000) }],
    ['190,000 of them', { pages: Array.from({ length: 190_000 }, (_, at) => ({ url: `a${at}.example.com` })) }],
  ])('do not hold the event loop: %s', async (_, value) => {
    const request = requestWith(value)
    const holdMs = await longestHold(() => requireNativeUrls(request, true).catch(() => {}))
    expect(holdMs).toBeLessThan(60)
  })
})
