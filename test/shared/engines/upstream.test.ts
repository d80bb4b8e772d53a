import type { AddressInfo } from 'node:net'
import { createServer } from 'node:net'
import { expect, test } from 'vitest'
import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import { ask, collect, type Dialect, engineOn, failure, KEY, options, textOf } from '../../support/engine-calls.ts'
import { type Answer, type Script, startUpstream } from '../../support/processes/upstream.ts'

const DIALECTS: Dialect[] = ['openai', 'anthropic']

/** Returns the frames of a complete, valid stream. Each piece is one text delta. */
function framesOf(dialect: Dialect, ...pieces: string[]): string[] {
  const frame = (data: { type?: string }) =>
    `${data.type ? `event: ${data.type}\n` : ''}data: ${JSON.stringify(data)}\n\n`
  if (dialect === 'openai') {
    return [
      frame(chunk({ role: 'assistant', content: '' })),
      ...pieces.map((content) => frame(chunk({ content }))),
      frame(chunk({}, 'stop')),
      frame({
        ...chunk({}),
        choices: [],
        usage: { prompt_tokens: 7, completion_tokens: 3, total_tokens: 10 },
      } as object),
      'data: [DONE]\n\n',
    ]
  }
  return [
    frame({ type: 'message_start', message: { usage: { input_tokens: 7, output_tokens: 1 } } } as object),
    frame({ type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } } as object),
    frame({ type: 'ping' }),
    ...pieces.map((text) =>
      frame({ type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text } } as object),
    ),
    frame({ type: 'content_block_stop', index: 0 } as object),
    frame({ type: 'message_delta', delta: { stop_reason: 'end_turn' }, usage: { output_tokens: 3 } } as object),
    frame({ type: 'message_stop' }),
  ]
}

function chunk(delta: object, finish_reason: string | null = null, more: object = {}): object {
  return {
    object: 'chat.completion.chunk',
    system_fingerprint: 'fp_1',
    choices: [{ index: 0, delta, finish_reason, ...more }],
  }
}

/** Script that streams these pieces and ends normally. */
function streaming(dialect: Dialect, ...pieces: string[]): Script {
  return async (_call, answer) => {
    answer.open()
    for (const frame of framesOf(dialect, ...pieces)) await answer.bytes(frame)
    answer.end()
  }
}

/** Script that streams the first frames, including some text, and then fails. */
function startedThen(dialect: Dialect, then: (answer: Answer) => void | Promise<void>): Script {
  return async (_call, answer) => {
    answer.open()
    await answer.bytes(
      framesOf(dialect, 'Hel')
        .slice(0, dialect === 'openai' ? 2 : 4)
        .join(''),
    )
    await then(answer)
  }
}

const stall: Script = () => {}

function whole(dialect: Dialect, text: string): object {
  if (dialect === 'anthropic') {
    return {
      type: 'message',
      content: [{ type: 'text', text }],
      stop_reason: 'end_turn',
      usage: { input_tokens: 7, output_tokens: 3 },
    }
  }
  const message = { role: 'assistant', content: text }
  return {
    system_fingerprint: 'fp_1',
    choices: [{ index: 0, message, finish_reason: 'stop' }],
    usage: { prompt_tokens: 7, completion_tokens: 3 },
  }
}

const END = [
  { type: 'finish', choice: 0, reason: 'stop' },
  { type: 'usage', usage: { input_tokens: 7, output_tokens: 3 } },
]

for (const dialect of DIALECTS) {
  const started =
    dialect === 'openai'
      ? { type: 'start', model: 'm1', input_tokens: 3, fingerprint: 'fp_1' }
      : { type: 'start', model: 'm1', input_tokens: 7 }

  test(`${dialect} upstream: a stream becomes start, deltas, finish and usage`, async () => {
    await using upstream = await startUpstream(streaming(dialect, 'Hel', 'lo'))
    await using engine = engineOn(dialect, upstream.url)
    expect(await collect(engine)).toEqual([
      started,
      { type: 'text', choice: 0, text: 'Hel' },
      { type: 'text', choice: 0, text: 'lo' },
      ...END,
    ])
  })

  test(`${dialect} upstream: a whole response yields events equal to those of a stream`, async () => {
    await using upstream = await startUpstream((_call, answer) => answer.json(whole(dialect, 'Hello')))
    await using engine = engineOn(dialect, upstream.url)
    const expected = [started, { type: 'text', choice: 0, text: 'Hello' }, ...END]
    expect(await collect(engine, ask({ stream: false }))).toEqual(expected)
    expect(upstream.calls[0]?.body.stream).toBe(false)
  })

  test(`${dialect} upstream: plain JSON in response to a streamed call is accepted`, async () => {
    await using upstream = await startUpstream((_call, answer) => answer.json(whole(dialect, 'Hello')))
    await using engine = engineOn(dialect, upstream.url)
    expect(textOf(await collect(engine))).toBe('Hello')
  })

  test(`${dialect} upstream: a stream in response to a call without stream is accepted`, async () => {
    await using upstream = await startUpstream(streaming(dialect, 'Hel', 'lo'))
    await using engine = engineOn(dialect, upstream.url)
    expect(textOf(await collect(engine, ask({ stream: false })))).toBe('Hello')
  })

  test(`${dialect} upstream: a stream that arrives byte by byte yields whole characters`, async () => {
    const bytes = Buffer.from(framesOf(dialect, 'grüße ', '日本 ', '🎉', '\ud83c', '\udf89').join(''))
    await using upstream = await startUpstream(async (_call, answer) => {
      answer.open()
      for (const byte of bytes) await answer.bytes(Uint8Array.of(byte))
      answer.end()
    })
    await using engine = engineOn(dialect, upstream.url)
    const events = await collect(engine)
    expect(textOf(events)).toBe('grüße 日本 🎉🎉')
    for (const event of events) if (event.type === 'text') expect(event.text.isWellFormed()).toBe(true)
  })

  test(`${dialect} upstream: CRLF, comments and unknown fields in a stream are ignored`, async () => {
    const text = framesOf(dialect, 'Hello').join(': keep-alive\n\nretry: 5\nnote: x\n\n').replaceAll('\n', '\r\n')
    await using upstream = await startUpstream((_call, answer) => answer.text(text, 'text/event-stream'))
    await using engine = engineOn(dialect, upstream.url)
    expect(textOf(await collect(engine))).toBe('Hello')
  })

  test(`${dialect} upstream: a call has the key, traceparent and configured headers`, async () => {
    await using upstream = await startUpstream(streaming(dialect, 'x'))
    await using engine = engineOn(dialect, upstream.url, { headers: { 'X-Team': 'blue' } })
    await collect(engine)
    const [call] = upstream.calls
    const own =
      dialect === 'openai'
        ? { authorization: `Bearer ${KEY}`, 'idempotency-key': 'job_1:1' }
        : { 'x-api-key': KEY, 'anthropic-version': '2023-06-01' }
    expect(call?.headers).toMatchObject({ ...own, 'x-team': 'blue', traceparent: options().traceparent })
    expect(call?.path).toBe(dialect === 'openai' ? '/v1/chat/completions' : '/v1/messages')
  })

  test(`${dialect} upstream: sequential calls reuse sockets`, async () => {
    await using upstream = await startUpstream(streaming(dialect, 'x'))
    await using engine = engineOn(dialect, upstream.url)
    for (let call = 0; call < 10; call++) await collect(engine)
    // The engine reuses sockets. A call may open another socket if it starts before the end of the previous stream has reached the client, so the
    // exact number varies.
    expect(upstream.connections).toBeLessThan(5)
  })

  test(`${dialect} upstream: a stream that ends without its last event fails with upstream_error`, async () => {
    await using upstream = await startUpstream(startedThen(dialect, (answer) => answer.end()))
    await using engine = engineOn(dialect, upstream.url)
    const error = await failure(engine)
    expect(error.code).toBe('upstream_error')
    expect(error.message).toContain('ended its response before it was complete')
  })

  test(`${dialect} upstream: a stream cut between frames fails with upstream_error`, async () => {
    await using upstream = await startUpstream(startedThen(dialect, (answer) => answer.cut()))
    await using engine = engineOn(dialect, upstream.url)
    expect((await failure(engine)).code).toBe('upstream_error')
  })

  test(`${dialect} upstream: a stream cut inside a frame fails with upstream_error`, async () => {
    const half = startedThen(dialect, async (answer) => {
      await answer.bytes('data: {"choices":[{"index":0,"del')
      answer.end()
    })
    await using upstream = await startUpstream(half)
    await using engine = engineOn(dialect, upstream.url)
    expect((await failure(engine)).code).toBe('upstream_error')
  })

  test.each([
    ['invalid JSON', '{"choices": oops}'],
    ['an incomplete list', '[1,2'],
    [
      'an unknown structure',
      dialect === 'openai' ? '{"choices":[null]}' : '{"type":"content_block_start","content_block":7}',
    ],
  ])(`${dialect} upstream: a frame with %s fails with upstream_error`, async (_what, data) => {
    await using upstream = await startUpstream(
      startedThen(dialect, (answer) => {
        answer.frame(data)
        answer.end()
      }),
    )
    await using engine = engineOn(dialect, upstream.url)
    expect((await failure(engine)).code).toBe('upstream_error')
  })

  test(`${dialect} upstream: an endless frame fails the call and closes the connection`, async () => {
    await using upstream = await startUpstream(
      startedThen(dialect, async (answer) => {
        const block = 'x'.repeat(1024 * 1024)
        await answer.bytes('data: "')
        for (let mebibytes = 0; mebibytes < 20; mebibytes++) void answer.bytes(block)
      }),
    )
    await using engine = engineOn(dialect, upstream.url)
    expect((await failure(engine)).message).toContain('a frame of more than')
    await upstream.calls[0]?.closed
  })

  test(`${dialect} upstream: an HTML page with status 200 fails with upstream_error`, async () => {
    await using upstream = await startUpstream((_call, answer) => answer.text('<html>Welcome</html>', 'text/html'))
    await using engine = engineOn(dialect, upstream.url)
    expect(await failure(engine)).toMatchObject({ code: 'upstream_error' })
    expect(await failure(engine, ask({ stream: false }))).toMatchObject({ code: 'upstream_error' })
  })

  test(`${dialect} upstream: an error body with status 200 fails with the code of the error`, async () => {
    const error = { message: 'Too big', type: 'invalid_request_error', param: 'messages', code: null }
    await using upstream = await startUpstream((_call, answer) => answer.json({ error }))
    await using engine = engineOn(dialect, upstream.url)
    expect(await failure(engine)).toMatchObject({ code: 'invalid_request', message: 'Too big', param: 'messages' })
  })

  test(`${dialect} upstream: an error event in the middle of a stream fails with its code`, async () => {
    await using upstream = await startUpstream(
      startedThen(dialect, (answer) => {
        answer.frame({ type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } }, 'error')
        answer.end()
      }),
    )
    await using engine = engineOn(dialect, upstream.url)
    expect(await failure(engine)).toMatchObject({ code: 'overloaded' })
  })

  test.each([
    [400, {}, 'invalid_request', undefined],
    [422, {}, 'invalid_request', undefined],
    [413, {}, 'request_too_large', undefined],
    [401, {}, 'upstream_refused', undefined],
    [403, {}, 'upstream_refused', undefined],
    [404, {}, 'upstream_refused', undefined],
    [302, { location: 'http://127.0.0.1:1/' }, 'upstream_refused', undefined],
    [408, {}, 'overloaded', undefined],
    [409, { 'retry-after': '2' }, 'overloaded', 2_000],
    [429, { 'retry-after': '1.5' }, 'overloaded', 1_500],
    [429, { 'retry-after': '7', 'retry-after-ms': '250' }, 'overloaded', 250],
    [429, { 'retry-after': '86400' }, 'overloaded', 60_000],
    [500, {}, 'upstream_error', undefined],
    [502, {}, 'upstream_error', undefined],
    [503, { 'retry-after': '3' }, 'overloaded', 3_000],
    [529, {}, 'overloaded', undefined],
  ])(
    `${dialect} upstream: status %i with %j fails with the error code %s`,
    async (status, headers, code, retryAfterMs) => {
      const error = { message: `because of ${KEY}`, type: 'some_error', param: 'temperature', code: null }
      await using upstream = await startUpstream((_call, answer) => answer.json({ error }, status, headers))
      await using engine = engineOn(dialect, upstream.url)
      const thrown = await failure(engine)
      expect(thrown).toMatchObject({ code, retryAfterMs })
      expect(thrown.param).toBe([400, 413, 422].includes(status) ? 'temperature' : null)
      const showsWords = [400, 413, 422, 503, 529].includes(status)
      expect(thrown.message).toContain(showsWords ? 'because of [hidden]' : "model 'm1'")
      expect(thrown.message).not.toContain(KEY)
      const isAboutRequest = [400, 413, 422].includes(status)
      expect(thrown.upstreamMessage).toBe(isAboutRequest ? undefined : 'because of [hidden]')
    },
  )

  test(`${dialect} upstream: Retry-After as a date is converted to a delay`, async () => {
    const date = new Date(Date.now() + 20_000).toUTCString()
    await using upstream = await startUpstream((_call, answer) => answer.json({}, 429, { 'retry-after': date }))
    await using engine = engineOn(dialect, upstream.url)
    const { retryAfterMs = 0 } = await failure(engine)
    expect(retryAfterMs).toBeGreaterThan(10_000)
    expect(retryAfterMs).toBeLessThanOrEqual(20_000)
  })

  test.each([
    "This model's maximum context length is 4096 tokens. However, you requested 5000.",
    'prompt is too long: 208310 tokens > 200000 maximum',
    'the request exceeds the available context size, try increasing it',
  ])(
    `${dialect} upstream: an error response with the message "%s" fails with context_length_exceeded`,
    async (message) => {
      await using upstream = await startUpstream((_call, answer) => answer.json({ error: { message } }, 400))
      await using engine = engineOn(dialect, upstream.url)
      expect(await failure(engine)).toMatchObject({ code: 'context_length_exceeded', message, param: 'messages' })
    },
  )

  test(`${dialect} upstream: an unreachable server fails with the retryable upstream_error`, async () => {
    const port = await closedPort()
    await using engine = engineOn(dialect, `http://127.0.0.1:${port}`)
    expect(await failure(engine)).toMatchObject({ code: 'upstream_error' })
  })

  test(`${dialect} upstream: a response without a first byte within first_token_ms times out, and its socket is closed`, async () => {
    await using upstream = await startUpstream(stall)
    await using engine = engineOn(dialect, upstream.url, { timeouts: { first_token_ms: 100 } })
    expect(await failure(engine)).toMatchObject({ code: 'upstream_timeout' })
    await upstream.calls[0]?.closed
  })

  test(`${dialect} upstream: a response with headers, but without a body within first_token_ms, times out`, async () => {
    await using upstream = await startUpstream((_call, answer) => answer.open())
    await using engine = engineOn(dialect, upstream.url, { timeouts: { first_token_ms: 100 } })
    expect(await failure(engine)).toMatchObject({ code: 'upstream_timeout' })
    await upstream.calls[0]?.closed
  })

  test(`${dialect} upstream: a stream without a token for between_tokens_ms times out, and its socket is closed`, async () => {
    await using upstream = await startUpstream(startedThen(dialect, () => {}))
    await using engine = engineOn(dialect, upstream.url, { timeouts: { between_tokens_ms: 100 } })
    expect(await failure(engine)).toMatchObject({ code: 'upstream_timeout' })
    await upstream.calls[0]?.closed
  })

  test(`${dialect} upstream: an endless stream fails with upstream_timeout after total_ms`, async () => {
    await using upstream = await startUpstream(
      startedThen(dialect, async (answer) => {
        const beat = setInterval(() => void answer.bytes(': still here\n\n'), 10)
        setTimeout(() => clearInterval(beat), 2_000).unref()
      }),
    )
    await using engine = engineOn(dialect, upstream.url, { timeouts: { total_ms: 200, between_tokens_ms: 150 } })
    const error = await failure(engine)
    expect(error.code).toBe('upstream_timeout')
    expect(error.message).toContain('200 ms')
    await upstream.calls[0]?.closed
  })

  test(`${dialect} upstream: a whole response may exceed first_token_ms, but not total_ms`, async () => {
    await using upstream = await startUpstream((_call, answer) => {
      setTimeout(() => answer.json(whole(dialect, 'late')), 200)
    }, stall)
    const timeouts = { first_token_ms: 20, between_tokens_ms: 20, total_ms: 1_000 }
    await using engine = engineOn(dialect, upstream.url, { timeouts })
    expect(textOf(await collect(engine, ask({ stream: false })))).toBe('late')
    expect(await failure(engine, ask({ stream: false }))).toMatchObject({ code: 'upstream_timeout' })
    await upstream.calls[1]?.closed
  })

  test.each([
    ['a streamed call before its head', true, stall],
    ['a whole call before its head', false, stall],
    ['a streamed call after its head', true, ((_call, answer) => answer.open()) as Script],
    ['a streamed call between tokens', true, startedThen(dialect, () => {})],
    [
      'a whole call in the middle of its body',
      false,
      ((_call, answer) => {
        answer.open('application/json')
        return answer.bytes('{"choices":')
      }) as Script,
    ],
  ])(`${dialect} upstream: aborting %s closes the socket`, async (_what, stream, script) => {
    await using upstream = await startUpstream(script)
    await using engine = engineOn(dialect, upstream.url)
    const controller = new AbortController()
    const reason = new Error('the client disconnected')
    const thrown = failure(engine, ask({ stream }), controller.signal)
    await until(() => upstream.calls.length === 1)
    controller.abort(reason)
    expect(await thrown).toBe(reason)
    await upstream.calls[0]?.closed
    await until(() => upstream.connections === 0)
  })

  test(`${dialect} upstream: a call whose signal is already aborted is not sent`, async () => {
    await using upstream = await startUpstream(stall)
    await using engine = engineOn(dialect, upstream.url)
    await failure(engine, ask(), AbortSignal.abort())
    expect(upstream.calls).toHaveLength(0)
  })

  test(`${dialect} upstream: the socket is closed if the caller abandons the response`, async () => {
    await using upstream = await startUpstream(startedThen(dialect, () => {}))
    await using engine = engineOn(dialect, upstream.url)
    for await (const event of engine.generate(ask(), options())) if (event.type === 'text') break
    await upstream.calls[0]?.closed
    await until(() => upstream.connections === 0)
  })

  test(`${dialect} upstream: a slow reader pauses the upstream and receives the complete stream`, async () => {
    const piece = 'x'.repeat(64 * 1024)
    let sent = 0
    await using upstream = await startUpstream(async (_call, answer) => {
      answer.open()
      for (const frame of framesOf(dialect, ...Array.from({ length: 256 }, () => piece))) {
        await answer.bytes(frame)
        sent += frame.length
      }
      answer.end()
    })
    await using engine = engineOn(dialect, upstream.url, { timeouts: { between_tokens_ms: 1_000 } })
    let got = 0
    for await (const event of engine.generate(ask(), options())) {
      if (event.type !== 'text') continue
      // The reader pauses for longer than the timeout for a silent upstream. The timeout must not fire, because the reader causes the
      // silence.
      if (got === 0) await settled(() => sent, 1_200)
      if (got === 0) expect(sent).toBeLessThan(12 * 1024 * 1024)
      got += event.text.length
    }
    expect(got).toBe(256 * piece.length)
  })

  test(`${dialect} upstream: a response is valid if the connection broke after its last byte`, async () => {
    await using upstream = await startUpstream(async (_call, answer) => {
      answer.open()
      const [first = '', ...rest] = framesOf(dialect, 'Hello')
      await answer.bytes(first)
      await answer.bytes(rest.join(''))
      answer.cut()
    })
    await using engine = engineOn(dialect, upstream.url)
    const events: GenerateEvent[] = []
    for await (const event of engine.generate(ask(), options())) {
      events.push(event)
      // The test requests the second event only after the upstream has closed the connection. No byte of the stream was read before.
      if (event.type === 'start') await until(() => upstream.calls.length === 1 && upstream.connections === 0)
    }
    expect(events.slice(1)).toEqual([{ type: 'text', choice: 0, text: 'Hello' }, ...END])
  })

  test(`${dialect} upstream: closing the engine fails its running calls with upstream_error`, async () => {
    await using upstream = await startUpstream(startedThen(dialect, () => {}))
    await using engine = engineOn(dialect, upstream.url)
    const running = failure(engine)
    await until(() => upstream.calls.length === 1)
    await engine.close()
    expect(await running).toMatchObject({ code: 'upstream_error' })
    await upstream.calls[0]?.closed
  })

  test(`${dialect} upstream: missing usage is estimated and marked as estimated`, async () => {
    const silent = framesOf(dialect, 'Hello ', 'there').map((frame) =>
      frame.replace(/"usage":\{[^}]*\}/, '"usage":null'),
    )
    await using upstream = await startUpstream((_call, answer) => answer.text(silent.join(''), 'text/event-stream'))
    await using engine = engineOn(dialect, upstream.url)
    const usage = (await collect(engine)).at(-1)
    expect(usage).toEqual({ type: 'usage', usage: { input_tokens: 3, output_tokens: 2, estimated: true } })
  })

  test(`${dialect} upstream: the circuit breaker opens after two failures, and closes after a successful trial call`, async () => {
    await using upstream = await startUpstream((_call, answer) => answer.json({}, 500))
    await using engine = engineOn(dialect, upstream.url, { breaker: { failures: 2, reset_ms: 150 } })
    for (let call = 0; call < 2; call++) expect(await failure(engine)).toMatchObject({ code: 'upstream_error' })
    const refused = await failure(engine)
    expect(refused).toMatchObject({ code: 'upstream_error', message: PAUSED })
    expect(refused.retryAfterMs).toBeGreaterThan(0)
    expect(refused.retryAfterMs).toBeLessThanOrEqual(150)
    expect(upstream.calls).toHaveLength(2)
    upstream.script(streaming(dialect, 'back'))
    await until(async () => (await collect(engine).catch(() => [])).length > 0)
    expect(textOf(await collect(engine))).toBe('back')
  })

  test(`${dialect} upstream: the circuit breaker refuses calls during a trial call, and stays open if the trial call fails`, async () => {
    await using upstream = await startUpstream((_call, answer) => answer.json({}, 500), stall)
    await using engine = engineOn(dialect, upstream.url, { breaker: { failures: 1, reset_ms: 50 } })
    await failure(engine)
    const controller = new AbortController()
    const trial = until(async () => (await failure(engine, ask(), controller.signal)).message === 'cancelled')
    await until(() => upstream.calls.length === 2)
    expect(await failure(engine)).toMatchObject({ code: 'upstream_error', message: PAUSED })
    controller.abort(new Error('cancelled'))
    await trial
    expect(await failure(engine)).toMatchObject({ code: 'upstream_error', message: PAUSED })
    expect(upstream.calls).toHaveLength(2)
  })

  test(`${dialect} upstream: responses with status 400 never open the circuit breaker`, async () => {
    await using upstream = await startUpstream((_call, answer) => answer.json({}, 400))
    await using engine = engineOn(dialect, upstream.url, { breaker: { failures: 1 } })
    for (let call = 0; call < 3; call++) expect(await failure(engine)).toMatchObject({ code: 'invalid_request' })
    expect(upstream.calls).toHaveLength(3)
  })

  test(`${dialect} upstream: 1,100 calls beyond the concurrency limit wait for a slot until they are aborted`, async () => {
    await using upstream = await startUpstream(stall, streaming(dialect, 'next'))
    await using engine = engineOn(dialect, upstream.url, { concurrency: 1, timeouts: { connect_ms: 100 } })
    const [first, others] = [new AbortController(), new AbortController()]
    const running = failure(engine, ask(), first.signal)
    await until(() => upstream.calls.length === 1)
    const waiting = Array.from({ length: 1_100 }, () => failure(engine, ask(), others.signal))
    const last = collect(engine)
    // The calls wait for a permit for longer than the connect timeout. This wait must not count as connect time.
    await new Promise((resolve) => setTimeout(resolve, 300))
    expect(upstream.calls).toHaveLength(1)
    others.abort(new Error('disconnected'))
    for (const error of await Promise.all(waiting)) expect(error.message).toBe('disconnected')
    first.abort(new Error('done'))
    await running
    expect(textOf(await last)).toBe('next')
  })

  test(`${dialect} upstream: each kind of failure releases the slot of its call`, async () => {
    await using upstream = await startUpstream(
      (_call, answer) => answer.json({}, 400),
      (_call, answer) => answer.cut(),
      startedThen(dialect, (answer) => answer.cut()),
      (_call, answer) => answer.text('<html>', 'text/html'),
      streaming(dialect, 'good'),
    )
    await using engine = engineOn(dialect, upstream.url, { concurrency: 1, timeouts: { connect_ms: 2_000 } })
    for (let call = 0; call < 4; call++) expect((await failure(engine)).code).not.toBe('overloaded')
    expect(textOf(await collect(engine))).toBe('good')
  })
}

/** Message of the calls that an open circuit breaker refuses. */
const PAUSED = expect.stringContaining('keeps failing, so calls are paused')

async function closedPort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

/** Waits until the condition holds. The timeout is reached only if something hangs. */
async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = Date.now() + 10_000
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error('the condition was never met')
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}

/** Waits until a number has not grown for `forMs` milliseconds. */
async function settled(read: () => number, forMs: number): Promise<void> {
  let last = -1
  await until(async () => {
    const before = last
    last = read()
    await new Promise((resolve) => setTimeout(resolve, forMs))
    return before === last
  })
}
