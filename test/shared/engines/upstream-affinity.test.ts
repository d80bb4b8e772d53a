import { expect, test } from 'vitest'
import { GenerateRequest } from '#schemas/kinds/generate.ts'
import { ModelConfig } from '#schemas/models.ts'
import type { ChatEngine } from '#shared/engines/engine.ts'
import { openOpenAiEngine } from '#shared/engines/openai/chat.ts'
import {
  affinityKeyOf,
  affinityModelOf,
  KeysInFlight,
  preferredServer,
  seedOf,
} from '#shared/engines/upstream/affinity.ts'
import { ask, collect, options, textOf } from '../../support/engine-calls.ts'
import { type Script, type ScriptedUpstream, startUpstream } from '../../support/processes/upstream.ts'
import { until } from '../../support/stack.ts'

interface Fake {
  readonly seed: number
  readonly weight: number
  readonly limit: { inFlight: number; hasFreePermit: boolean }
}

const serverAt = (url: string, weight = 1): Fake => ({
  seed: seedOf(url),
  weight,
  limit: { inFlight: 0, hasFreePermit: true },
})
const serversOf = (...weights: number[]) => weights.map((weight, at) => serverAt(`http://10.0.0.${at}:8000/v1`, weight))
const keys = Array.from({ length: 40_000 }, (_, at) => `key-${at}`)

test.each([
  [1, 1, 1, 1],
  [1, 2, 3],
  [0.5, 4],
])(
  'upstream servers with weights %j receive conversation keys in proportion to the weights, within 5 %%',
  (...weights) => {
    const servers = serversOf(...weights)
    const total = weights.reduce((sum, weight) => sum + weight)
    for (const server of servers) {
      const share = keys.filter((key) => preferredServer(key, servers) === server).length / keys.length
      expect(Math.abs(share / (server.weight / total) - 1), `share ${share}`).toBeLessThan(0.05)
    }
  },
)

test('the loss of an upstream server moves only the conversation keys of this server', () => {
  const servers = serversOf(1, 1, 2, 1)
  const [lost, ...left] = servers
  const taken = new Map<Fake | undefined, number>()
  for (const key of keys) {
    const before = preferredServer(key, servers)
    const after = preferredServer(key, left)
    if (before !== lost) expect(after, key).toBe(before)
    else taken.set(after, (taken.get(after) ?? 0) + 1)
    expect(preferredServer(key, [...left, lost as Fake]), key).toBe(before)
  }
  expect(taken.size).toBe(left.length)
})

test('a call whose preferred server is overloaded goes to the second server of the conversation key', () => {
  const servers = serversOf(1, 1, 1, 1)
  for (const key of keys.slice(0, 1_000)) {
    const first = preferredServer(key, servers) as Fake
    const second = preferredServer(
      key,
      servers.filter((server) => server !== first),
    )
    first.limit.inFlight = 20
    expect(preferredServer(key, servers), key).toBe(second)
    first.limit.inFlight = 0
    first.limit.hasFreePermit = false
    expect(preferredServer(key, servers), key).toBe(second)
    first.limit.hasFreePermit = true
  }
})

test('an equal load on all upstream servers moves no conversation key', () => {
  const servers = serversOf(1, 1, 1, 1)
  for (const key of keys.slice(0, 200)) {
    const idle = preferredServer(key, servers)
    for (const { limit } of servers) limit.inFlight = 7
    expect(preferredServer(key, servers), key).toBe(idle)
    for (const { limit } of servers) Object.assign(limit, { inFlight: 0, hasFreePermit: false })
    expect(preferredServer(key, servers)).toBeUndefined()
    for (const { limit } of servers) limit.hasFreePermit = true
  }
})

test('a conversation key counts as shared until one second after the last concurrent calls with the key', () => {
  const inFlight = new KeysInFlight()
  const callTwice = (key: string, nowMs: number) => {
    for (const _ of [1, 2]) inFlight.add(key)
    expect(inFlight.isShared(key, 1, nowMs), key).toBe(true)
    for (const _ of [1, 2]) inFlight.remove(key)
  }
  callTwice('hot', 0)
  expect(inFlight.isShared('hot', 1, 999)).toBe(true)
  expect(inFlight.isShared('hot', 1, 1_001)).toBe(false)
  inFlight.add('conversation')
  expect(inFlight.isShared('conversation', 1, 0)).toBe(false)
  // With two workers, the other worker is assumed to run equally many calls with this key. Together, these are two calls, so the key counts as shared.
  expect(inFlight.isShared('conversation', 2, 0)).toBe(true)
  callTwice('first', 2_000)
  for (const key of keys.slice(0, 1_000)) callTwice(key, 2_000)
  expect(inFlight.isShared('first', 1, 2_000)).toBe(false)
  expect(inFlight.isShared('key-999', 1, 2_000)).toBe(true)
})

const system = { role: 'system', parts: [{ type: 'text', text: 'Be brief.' }] }
const user = (text: string) => ({ role: 'user', parts: [{ type: 'text', text }] })
const answer = (text: string) => ({ role: 'assistant', parts: [{ type: 'text', text }] })
const requestOf = (fields: object) =>
  GenerateRequest.parse({ dialect: 'openai', model: 'm1', turns: [system, user('hi')], stream: false, ...fields })
const keyOf = (fields: object, headers: Record<string, string> = {}, project = 'p1', id?: string) =>
  affinityKeyOf(requestOf(fields), { project, headers, id })

test('all turns of a conversation have one key, and prompts with different starts have different keys', () => {
  const first = keyOf({})
  expect(first).toMatch(/^[\w-]{22}$/)
  expect(keyOf({ turns: [system, user('hi'), answer('ho'), user('and?')] })).toBe(first)
  const other = [
    keyOf({ turns: [system, user('hey')] }),
    keyOf({ turns: [user('hi')] }),
    keyOf({ model: 'm2' }),
    keyOf({ tools: [{ name: 'f', parameters: {} }] }),
    keyOf({}, {}, 'p2'),
  ]
  expect(new Set([first, ...other]).size).toBe(6)
})

test('the conversation key is derived from prompt_cache_key, else a session header, else the conversation id', () => {
  const headers = { 'x-claude-code-session-id': 's' }
  const extra = { prompt_cache_key: 'k' }
  const turns = [user('something else')]
  expect(keyOf({ extra, turns }, headers)).toBe(keyOf({ extra }))
  expect(keyOf({ turns }, headers, 'p1', 'conv_1')).toBe(keyOf({}, headers))
  expect(keyOf({ turns }, {}, 'p1', 'conv_1')).toBe(keyOf({}, {}, 'p1', 'conv_1'))
  // Equal session ids of two projects lead to different affinity keys.
  expect(keyOf({}, headers, 'p2')).not.toBe(keyOf({}, headers))
  // A cache key and a session id lead to different affinity keys, even if their texts are equal.
  expect(keyOf({ extra: { prompt_cache_key: 's' } })).not.toBe(keyOf({}, headers))
})

test('only the first 4,096 characters of a long prompt_cache_key count for the conversation key', () => {
  const long = 'x'.repeat(1 << 20)
  expect(keyOf({}, { 'x-session-id': long })).toBe(keyOf({}))
  expect(keyOf({ extra: { prompt_cache_key: long } })).toBe(
    keyOf({ extra: { prompt_cache_key: long.slice(0, 4_096) } }),
  )
  const imageOf = (end: string) => [{ type: 'image', url: `data:image/png;base64,${'A'.repeat(40_000)}${end}` }]
  const [first, second] = ['B', 'C'].map((end) => keyOf({ turns: [system, { role: 'user', parts: imageOf(end) }] }))
  expect(first).toMatch(/^[\w-]{22}$/)
  expect(first).toBe(second)
  expect(keyOf({ completion: { echo: false } })).toBeUndefined()
})

test('a conversation key is computed only if the model or its fallback has several servers and affinity', () => {
  const model = (fields: object, base_urls = ['http://a/v1', 'http://b/v1']) =>
    ModelConfig.parse({ id: 'm', engine: { type: 'openai', base_urls }, ...fields })
  const [several, off, single] = [model({}), model({ affinity: 'off' }), model({ fallbacks: ['n'] }, ['http://a/v1'])]
  expect(affinityModelOf(several, () => undefined)).toBe(several)
  expect(affinityModelOf(off, () => undefined)).toBeUndefined()
  expect(affinityModelOf(single, () => off)).toBeUndefined()
  expect(affinityModelOf(single, () => several)).toBe(several)
})

const answering: Script = (_call, reply) => {
  const message = { role: 'assistant', content: 'ok' }
  const usage = { prompt_tokens: 7, completion_tokens: 3 }
  reply.json({ choices: [{ index: 0, message, finish_reason: 'stop' }], usage })
}
const failing: Script = (_call, reply) => reply.json({ error: { message: 'no' } }, 500)

function engineOn(servers: readonly ScriptedUpstream[], model: object = {}, engine: object = {}) {
  const base_urls = servers.map(({ url }) => `${url}/v1`)
  const config = ModelConfig.parse({ id: 'm1', engine: { type: 'openai', base_urls, ...engine }, ...model })
  const opened = openOpenAiEngine(config, {})
  return Object.assign(opened, { [Symbol.asyncDispose]: () => opened.close() })
}
const askOf = (affinity: string) => ask({ stream: false, affinity })
const homeOf = (servers: readonly ScriptedUpstream[], key: string) => {
  const all = servers.map((server) => ({ ...serverAt(`${server.url}/v1`), server }))
  return preferredServer(key, all)?.server as ScriptedUpstream
}

test('the calls of a conversation go to one upstream server, unless affinity is off', async () => {
  await using a = await startUpstream(answering)
  await using b = await startUpstream(answering)
  await using engine = engineOn([a, b])
  const home = homeOf([a, b], 'one')
  for (let call = 0; call < 6; call++) await collect(engine, askOf('one'))
  expect(home.calls).toHaveLength(6)
  await using off = engineOn([a, b], { affinity: 'off' })
  for (let call = 0; call < 6; call++) await collect(off, askOf('one'))
  expect([a, b].map(({ calls }) => calls.length).toSorted()).toEqual([3, 9])
})

test('many concurrent calls with the same prompt_cache_key are distributed over the upstream servers', async () => {
  await using a = await startUpstream(() => {})
  await using b = await startUpstream(() => {})
  await using c = await startUpstream(() => {})
  await using engine = engineOn([a, b, c])
  const leaving = new AbortController()
  const calls = Array.from({ length: 30 }, () => collect(engine, askOf('hot'), leaving.signal).catch(() => {}))
  await until(() => a.calls.length + b.calls.length + c.calls.length === 30)
  for (const server of [a, b, c]) expect(server.calls.length).toBeLessThanOrEqual(13)
  leaving.abort()
  await Promise.all(calls)
})

test('conversations leave an upstream server after two failures, and return when the server has recovered', async () => {
  await using a = await startUpstream(answering)
  await using b = await startUpstream(answering)
  await using engine = engineOn([a, b], {}, { breaker: { failures: 2, reset_ms: 3_000 } })
  const home = homeOf([a, b], 'one')
  const other = home === a ? b : a
  home.script(failing)
  for (let call = 0; call < 20; call++) expect(textOf(await collect(engine, askOf('one')))).toBe('ok')
  expect(home.calls).toHaveLength(2)
  expect(other.calls).toHaveLength(20)
  home.script(answering)
  await until(async () => {
    await collect(engine, askOf('one'))
    return home.calls.length > 2
  })
  const before = other.calls.length
  for (let call = 0; call < 5; call++) await collect(engine, askOf('one'))
  expect(other.calls.length).toBe(before)
})

test('a model with cache_salt_env sends the upstream a cache salt that differs by project', async () => {
  await using server = await startUpstream(answering)
  const base = { type: 'openai', base_url: `${server.url}/v1` }
  const open = (engine: object, pass: string[] = []) =>
    openOpenAiEngine(ModelConfig.parse({ id: 'm1', engine: { ...base, ...engine }, pass }), { SALT: 'secret' })
  const saltOf = async (engine: ChatEngine, tenant: string | undefined, extra = {}) => {
    for await (const _ of engine.generate(ask({ stream: false, extra }), { ...options(), tenant })) void _
    return server.calls.at(-1)?.body.cache_salt
  }
  const salted = open({ cache_salt_env: 'SALT' })
  const first = await saltOf(salted, 'p1')
  expect(first).toMatch(/^[\w-]{43}$/)
  expect(await saltOf(salted, 'p1', { cache_salt: 'mine' })).toBe(first)
  expect(await saltOf(salted, 'p2')).not.toBe(first)
  expect(await saltOf(open({}), 'p1')).toBeUndefined()
  await expect(saltOf(open({ cache_salt_env: 'UNSET' }), 'p1')).rejects.toThrow('UNSET is not set')
  const anthropic = { id: 'm', engine: { type: 'anthropic', base_url: server.url, cache_salt_env: 'SALT' } }
  expect(() => ModelConfig.parse(anthropic)).toThrow(/cache_salt_env requires/)
})
