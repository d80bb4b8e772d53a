import { expect, test } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { openOpenAiEngine } from '#shared/engines/openai/chat.ts'
import { connectionError, failureText, statusError } from '#shared/engines/upstream/error.ts'
import { Breaker } from '#shared/engines/upstream/servers.ts'
import { ask, collect, failure, options, textOf } from '../../support/engine-calls.ts'
import { type Script, type ScriptedUpstream, startUpstream } from '../../support/processes/upstream.ts'
import { until } from '../../support/stack.ts'

function answering(text: string): Script {
  const message = { role: 'assistant', content: text }
  const usage = { prompt_tokens: 7, completion_tokens: 3 }
  return (_call, answer) => answer.json({ choices: [{ index: 0, message, finish_reason: 'stop' }], usage })
}

const failing =
  (status: number, headers: Record<string, string> = {}): Script =>
  (_call, answer) =>
    answer.json({ error: { message: 'no' } }, status, headers)

/** Opens an engine that distributes calls over several servers. */
function engineOn(servers: readonly (ScriptedUpstream | { server: ScriptedUpstream; weight: number })[], engine = {}) {
  const base_urls = servers.map((entry) =>
    'server' in entry ? { url: `${entry.server.url}/v1`, weight: entry.weight } : `${entry.url}/v1`,
  )
  const opened = openOpenAiEngine(ModelConfig.parse({ id: 'm1', engine: { type: 'openai', base_urls, ...engine } }), {})
  return Object.assign(opened, { [Symbol.asyncDispose]: () => opened.close() })
}

const whole = ask({ stream: false })
const counts = (...servers: ScriptedUpstream[]) => servers.map(({ calls }) => calls.length)

test('equally busy upstream servers receive calls round robin', async () => {
  await using a = await startUpstream(answering('a'))
  await using b = await startUpstream(answering('b'))
  await using engine = engineOn([a, b])
  for (let call = 0; call < 6; call++) await collect(engine, whole)
  expect(counts(a, b)).toEqual([3, 3])
})

test('upstream servers receive concurrent calls in proportion to the weights of the servers', async () => {
  await using light = await startUpstream(() => {})
  await using heavy = await startUpstream(() => {})
  await using engine = engineOn([
    { server: light, weight: 1 },
    { server: heavy, weight: 3 },
  ])
  const leaving = new AbortController()
  const calls = Array.from({ length: 8 }, () => collect(engine, whole, leaving.signal).catch(() => {}))
  await until(() => light.calls.length + heavy.calls.length === 8)
  expect(counts(light, heavy)).toEqual([2, 6])
  leaving.abort()
  await Promise.all(calls)
})

test.each([
  ['is unreachable', undefined],
  ['responds with status 429', failing(429)],
  ['responds with status 500', failing(500)],
])('a call to an upstream server that %s is answered by another server', async (_, script) => {
  await using bad = await startUpstream(script ?? (() => {}))
  await using good = await startUpstream(answering('good'))
  await using engine = engineOn([bad, good])
  if (!script) await bad[Symbol.asyncDispose]()
  for (let call = 0; call < 4; call++) expect(textOf(await collect(engine, whole))).toBe('good')
})

test('a call is retried on at most one other upstream server, and not at all after status 400', async () => {
  await using a = await startUpstream(failing(500))
  await using b = await startUpstream(failing(500))
  await using c = await startUpstream(failing(500))
  await using engine = engineOn([a, b, c])
  expect((await failure(engine, whole)).code).toBe('upstream_error')
  expect(counts(a, b, c).reduce((sum, count) => sum + count)).toBe(2)
  for (const server of [a, b, c]) server.script(failing(400))
  expect((await failure(engine, whole)).code).toBe('invalid_request')
  expect(counts(a, b, c).reduce((sum, count) => sum + count)).toBe(3)
})

test('a stream that was cut after its first text is not retried on another upstream server', async () => {
  const cut: Script = async (_call, answer) => {
    answer.open()
    await answer.bytes(`data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: 'Hel' } }] })}\n\n`)
    answer.cut()
  }
  await using a = await startUpstream(cut)
  await using b = await startUpstream(cut)
  await using engine = engineOn([a, b])
  expect((await failure(engine, ask())).code).toBe('upstream_error')
  expect(counts(a, b).toSorted()).toEqual([0, 1])
})

test('an upstream server is skipped after two failures in a row, until the server has recovered', async () => {
  await using bad = await startUpstream(failing(500))
  await using good = await startUpstream(answering('good'))
  await using engine = engineOn([bad, good], { breaker: { failures: 2, reset_ms: 300 } })
  for (let call = 0; call < 12; call++) await collect(engine, whole)
  expect(bad.calls).toHaveLength(2)
  bad.script(answering('healed'))
  await until(async () => textOf(await collect(engine, whole)) === 'healed')
})

test('the error of an open circuit breaker contains no text from an upstream response', async () => {
  const breaker = new Breaker('m1', { failures: 2, resetMs: 60_000 })
  const context = { model: 'm1', sanitize: (text: string) => text, isOwnServer: false }
  const errorOf = (status: number, message: string) =>
    statusError(context, status, {}, JSON.stringify({ error: { message } }))
  const ends = (error: Error) => breaker.run(() => Promise.reject(error)).catch((thrown: Error) => thrown.message)
  const slow = Promise.withResolvers<never>()
  const rejected = breaker.run(() => slow.promise).catch(() => {})
  expect(await ends(errorOf(503, 'no room for the prompt of A'))).toContain('prompt of A')
  await ends(errorOf(503, 'no room for the prompt of B'))
  slow.reject(errorOf(400, 'the prompt of C is invalid'))
  await rejected
  const open = (() => {
    try {
      return breaker.run(() => Promise.resolve())
    } catch (error) {
      return (error as Error).message
    }
  })()
  expect(open).toMatch(
    /^The upstream of model 'm1' keeps failing, so calls are paused until \d\d:\d\d:\d\d UTC\. Last error: HTTP 503\.$/,
  )
  const causes = [
    connectionError('m1', { code: 'ECONNREFUSED' }),
    connectionError('m1', { code: 'UND_ERR_CONNECT_TIMEOUT' }),
  ]
  expect(causes.map(failureText)).toEqual(['connection refused', 'timeout'])
})

test('an upstream server that responds with Retry-After is paused, and another server receives all calls', async () => {
  await using bad = await startUpstream(failing(429, { 'retry-after': '30' }))
  await using good = await startUpstream(answering('good'))
  await using engine = engineOn([bad, good])
  for (let call = 0; call < 12; call++) await collect(engine, whole)
  expect(counts(bad, good)).toEqual([1, 12])
})

test('while the only upstream server is paused, calls fail with overloaded and the remaining Retry-After', async () => {
  await using busy = await startUpstream(failing(429, { 'retry-after': '30' }), answering('again'))
  await using engine = engineOn([busy])
  await failure(engine, whole)
  const refused = await failure(engine, whole)
  expect([refused.code, Math.ceil((refused.retryAfterMs ?? 0) / 1_000)]).toEqual(['overloaded', 30])
  expect(busy.calls).toHaveLength(1)
})

test('an upstream server that responds with status 429 to 8 concurrent calls receives fewer concurrent calls', async () => {
  await using busy = await startUpstream(() => {})
  await using engine = engineOn([busy], { concurrency: 8, breaker: { failures: 100 } })
  const leaving = new AbortController()
  const ask8 = () => Array.from({ length: 8 }, () => collect(engine, whole, leaving.signal).catch(() => {}))
  busy.script(...Array.from({ length: 8 }, () => failing(429)), () => {})
  await Promise.all(ask8())
  const seen = busy.calls.length
  expect(seen).toBe(8)
  const waiting = ask8()
  await until(() => busy.calls.length > seen)
  await new Promise((resolve) => setTimeout(resolve, 50))
  expect(busy.calls.length - seen).toBeLessThan(8)
  leaving.abort()
  await Promise.all(waiting)
})

test.each([
  [{}, /Expected either base_url or base_urls/],
  [{ base_url: 'http://a/v1', base_urls: ['http://b/v1'] }, /Expected either base_url or base_urls/],
  [{ base_urls: [] }, /base_urls/],
  [{ base_urls: [{ url: 'http://a/v1', weight: 0 }] }, /weight/],
])('an upstream configured with %j is refused', (engine, problem) => {
  const parsed = ModelConfig.safeParse({ id: 'm1', engine: { type: 'openai', ...engine } })
  expect(JSON.stringify(parsed.error?.issues)).toMatch(problem)
})

test('a call whose caller disconnects while the call waits for a slot is not sent upstream', async () => {
  await using server = await startUpstream(() => {})
  await using engine = engineOn([server], { concurrency: 1 })
  const [first, second] = [new AbortController(), new AbortController()]
  const run = async (signal: AbortSignal) => {
    for await (const _event of engine.generate(whole, options(signal)));
  }
  const held = run(first.signal).catch(() => {})
  const left = run(second.signal).catch(() => {})
  await until(() => server.calls.length === 1)
  second.abort()
  await left
  server.script(answering('next'))
  first.abort()
  await held
  expect(textOf(await collect(engine, whole))).toBe('next')
})
