import { describe, expect, inject, it } from 'vitest'
import { type ScriptedUpstream, startUpstream } from './support/processes/upstream.ts'
import { type Stack, type StackOptions, startStack, until } from './support/stack.ts'

/** Two ways to run the whole service: with the embedded broker, or over a real Kafka. */
const MODES: { mode: string; options: () => StackOptions }[] = [
  { mode: 'embedded', options: () => ({}) },
  { mode: 'Kafka', options: () => ({ kafka: inject('kafka') ?? undefined }) },
]

const say = (content: string, more: object = {}) => ({
  model: 'echo-1',
  messages: [{ role: 'user', content }],
  ...more,
})

for (const { mode, options } of MODES) {
  describe.skipIf(mode === 'Kafka' && !inject('kafka'))(`the complete service, ${mode}`, () => {
    it('the service responds to a chat completion with the text and headers', async () => {
      await using stack = await startStack(options())
      const response = await stack.post('/v1/chat/completions', say('hello over there'))
      expect(response.status).toBe(200)
      expect(response.headers.get('x-request-id')).toMatch(/^req_.{24}$/)
      expect(response.headers.get('request-id')).toBe(response.headers.get('x-request-id'))
      expect(await response.json()).toMatchObject({
        object: 'chat.completion',
        model: 'echo-1',
        choices: [{ message: { role: 'assistant', content: 'hello over there' }, finish_reason: 'stop' }],
        usage: { prompt_tokens: expect.any(Number), completion_tokens: 3 },
      })
    })

    it('the service streams a chat completion and ends it with [DONE]', async () => {
      await using stack = await startStack(options())
      const response = await stack.post('/v1/chat/completions', say('one two three', { stream: true }))
      const text = await response.text()
      expect(response.headers.get('content-type')).toBe('text/event-stream; charset=utf-8')
      expect(chatText(text)).toBe('one two three')
      expect(text.endsWith('data: [DONE]\n\n')).toBe(true)
    })

    it('the service responds to a message, with and without streaming', async () => {
      await using stack = await startStack(options())
      const body = say('hello', { max_tokens: 100 })
      const whole = await stack.post('/v1/messages', body)
      expect(await whole.json()).toMatchObject({ type: 'message', content: [{ type: 'text', text: 'hello' }] })
      const stream = await (await stack.post('/v1/messages', { ...body, stream: true })).text()
      expect(stream).toContain('event: message_stop')
    })

    it('the service returns the log probabilities of each token of a long text', async () => {
      await using stack = await startStack(options())
      const body = say('!echo tokens=600', { logprobs: true, top_logprobs: 20 })
      const response = await stack.post('/v1/chat/completions', body)
      const { choices } = (await response.json()) as { choices: { logprobs: { content: unknown[] } }[] }
      expect(choices[0]?.logprobs.content).toHaveLength(600)
    })

    it('the service counts the tokens of a message', async () => {
      await using stack = await startStack(options())
      const response = await stack.post('/v1/messages/count_tokens', say('one two three'))
      expect(await response.json()).toEqual({ input_tokens: expect.any(Number) })
    })

    it('the service retries a call whose engine failed before any output', async () => {
      await using stack = await startStack(options())
      const response = await stack.post('/v1/chat/completions', say('!echo fail=upstream_error failures=1\nback again'))
      expect(response.status).toBe(200)
      expect(await response.json()).toMatchObject({ choices: [{ message: { content: 'back again' } }] })
    })

    it('the service returns an HTTP error for a stream that fails before its first token', async () => {
      await using stack = await startStack(options())
      const response = await stack.post('/v1/chat/completions', say('!echo fail=upstream_refused', { stream: true }))
      expect(response.status).toBe(502)
      expect(await response.json()).toMatchObject({ error: { type: 'server_error', code: 'upstream_refused' } })
    })

    it('the service ends a stream that fails after its first token with an error frame and without [DONE]', async () => {
      await using stack = await startStack(options())
      const script = '!echo fail=upstream_error after=2\none two three four'
      const text = await (await stack.post('/v1/chat/completions', say(script, { stream: true }))).text()
      expect(text).toContain('data: {"error":{"message":')
      expect(text).not.toContain('[DONE]')
    })

    it('the service accepts a request body of 3 MB, which exceeds the size of a Kafka record', async () => {
      await using stack = await startStack(options())
      const words = 'word '.repeat(600_000)
      const response = await stack.post('/v1/chat/completions', say(words, { max_tokens: 5 }))
      expect(response.status).toBe(200)
      expect(await response.json()).toMatchObject({ choices: [{ finish_reason: 'length' }] })
    })

    it('the service sends every word to a client that reads slowly', async () => {
      await using stack = await startStack(options())
      const response = await stack.post('/v1/chat/completions', say('!echo tokens=60000', { stream: true }))
      let text = ''
      const decoder = new TextDecoder()
      for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
        text += decoder.decode(chunk, { stream: true })
        if (text.length < 2_000_000) await new Promise((resolve) => setTimeout(resolve, 2))
      }
      expect(text.endsWith('data: [DONE]\n\n')).toBe(true)
      expect(chatText(text).split(' ')).toHaveLength(60_000)
    })

    for (const stream of [false, true]) {
      it(`the service closes the upstream request when the client disconnects, ${stream ? 'streamed' : 'whole'}`, async () => {
        await using upstream = await startUpstream((_call, answer) => {
          if (!stream) return
          answer.open()
          answer.frame({ choices: [{ index: 0, delta: { role: 'assistant', content: 'first' }, finish_reason: null }] })
        })
        await using stack = await startUpstreamStack(options(), upstream)
        const leave = new AbortController()
        const body = { model: 'up', messages: [{ role: 'user', content: 'x' }], stream }
        const call = stack.post('/v1/chat/completions', body, { signal: leave.signal })
        call.catch(() => {})
        if (stream) await (await call).body?.getReader().read()
        const seen = await until(() => upstream.calls[0])
        const leftAt = Date.now()
        leave.abort()
        expect((await seen.closed) - leftAt).toBeLessThan(1_000)
        await until(() => upstream.connections === 0)
      })
    }

    it('the service does not run a queued call whose client has disconnected', async () => {
      await using upstream = await startUpstream(() => {})
      await using stack = await startUpstreamStack(options(), upstream, { INFERENCE_SLOTS: '1' })
      const [first, second] = [new AbortController(), new AbortController()]
      const body = { model: 'up', messages: [{ role: 'user', content: 'x' }] }
      stack.post('/v1/chat/completions', body, { signal: first.signal }).catch(() => {})
      await until(() => upstream.calls[0])
      stack.post('/v1/chat/completions', body, { signal: second.signal }).catch(() => {})
      await until(async () => (await metric(stack, 'sluice_attached_jobs{pool="inference",state="queued"}')) === 1)
      second.abort()
      await until(async () => (await metric(stack, 'sluice_attached_jobs{pool="inference",state="queued"}')) === 0)
      first.abort()
      await until(async () => (await metric(stack, 'sluice_pool_running{pool="inference"}')) === 0)
      await (await stack.get('/v1/models')).text()
      expect(upstream.calls).toHaveLength(1)
    })
  })
}

function startUpstreamStack(options: StackOptions, upstream: ScriptedUpstream, settings = {}): Promise<Stack> {
  const models = [{ id: 'up', engine: { type: 'openai', base_url: `${upstream.url}/v1` } }]
  return startStack({ ...options, models, settings })
}

/** The concatenated content of a chat stream. */
function chatText(sse: string): string {
  const frames = sse.split('\n\n').filter((frame) => frame.startsWith('data: {'))
  return frames.map((frame) => JSON.parse(frame.slice('data: '.length)).choices?.[0]?.delta?.content ?? '').join('')
}

async function metric(stack: Stack, name: string): Promise<number | undefined> {
  const text = await (await stack.get('/metrics')).text()
  const line = text.split('\n').find((line) => line.startsWith(name))
  return line === undefined ? undefined : Number(line.slice(name.length))
}
