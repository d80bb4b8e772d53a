import { expect, test } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { firstServer, seedOf } from '#shared/engines/upstream/affinity.ts'
import { Conversations } from '#shared/engines/upstream/conversations.ts'

interface Address {
  readonly url: string
  readonly weight: number
}

const addressesOf = (...weights: number[]): Address[] =>
  weights.map((weight, at) => ({ url: `http://10.0.0.${at}:8000/v1`, weight }))
const modelOn = (base_urls: readonly Address[]) => ModelConfig.parse({ id: 'm', engine: { type: 'openai', base_urls } })
const serverOf = (key: string, addresses: readonly Address[]) =>
  firstServer(
    key,
    addresses.map(({ url, weight }) => ({ url, weight, seed: seedOf(url) })),
  )?.url as string
const keysOf = (count: number, seed: string) => Array.from({ length: count }, (_, at) => `${seed}-${at}`)

function countsOf(keys: readonly string[], addresses: readonly Address[]): number[] {
  const servers = keys.map((key) => serverOf(key, addresses))
  return addresses.map(({ url }) => servers.filter((server) => server === url).length)
}

/** Divides the number of conversations of each server by the number that the weights require. Returns the largest of these ratios; 1 is ideal. */
function excessOf(counts: readonly number[], weights: readonly number[]): number {
  const sum = (numbers: readonly number[]) => numbers.reduce((total, number) => total + number, 0)
  return Math.max(...counts.map((count, at) => (count * sum(weights)) / (sum(counts) * (weights[at] ?? 0))))
}

test.each([
  [[1, 1, 1, 1], 24, 1.25],
  [[1, 1, 1, 1], 400, 1.05],
  [[1, 2, 1], 400, 1.05],
  [[1, 1], 10, 1.15],
])(
  'servers with weights %j receive conversations in proportion to the weights, even if only %i conversations exist',
  (weights, count, excessMax) => {
    const addresses = addressesOf(...weights)
    const model = modelOn(addresses)
    let [even, hashed] = [0, 0]
    for (let seed = 1; seed <= 50; seed++) {
      const keys = keysOf(count, `seed-${seed}`)
      const conversations = new Conversations(() => 1)
      const chosen = keys.map((key) => conversations.keyOf(model, key))
      even += excessOf(countsOf(chosen, addresses), weights) / 50
      hashed += excessOf(countsOf(keys, addresses), weights) / 50
    }
    expect(even).toBeLessThan(excessMax)
    expect(hashed).toBeGreaterThan(excessMax)
  },
)

test('the removal of a server from models.yaml moves only the conversations of this server', () => {
  const addresses = addressesOf(1, 1, 1, 1)
  const [lost, ...left] = addresses
  const conversations = new Conversations(() => 1)
  const keys = keysOf(200, 'turns')
  const first = keys.map((key) => conversations.keyOf(modelOn(addresses), key))
  const model = modelOn(left)
  expect(keys.map((key) => conversations.keyOf(model, key))).toEqual(first)
  for (const key of first) {
    const before = serverOf(key, addresses)
    if (before !== lost?.url) expect(serverOf(key, left), key).toBe(before)
  }
  expect(keys.map((key) => conversations.keyOf(modelOn(addresses), key))).toEqual(first)
})

test('conversations of one model never evict conversations of another model', () => {
  const addresses = addressesOf(1, 1)
  const conversations = new Conversations(() => 1)
  const model = modelOn(addresses)
  const other = { ...model, id: 'other' }
  const servers = ['a', 'b'].map((key) => serverOf(conversations.keyOf(model, key), addresses))
  expect(new Set(servers).size).toBe(2)
  expect(conversations.keyOf(other, 'a')).toBe('a')
  // Another model has 10,000 conversations. Each of them may evict only a conversation of that model, so `b` must be kept.
  for (const key of keysOf(10_000, 'other')) conversations.keyOf(other, key)
  expect(conversations.keyOf(model, 'b')).toBe('b')
})

test('50,000 calls with different session ids store at most 10,000 conversations', () => {
  const addresses = addressesOf(1, 1, 1, 1)
  const model = modelOn(addresses)
  const conversations = new Conversations(() => 1)
  const last: string[] = []
  for (let at = 0; at < 50_000; at++) {
    const key = conversations.keyOf(model, `session-${at}`)
    if (at >= 49_000) last.push(key)
  }
  expect(conversations.size).toBe(10_000)
  expect(excessOf(countsOf(last, addresses), [1, 1, 1, 1])).toBeLessThan(1.1)
})

test('with several ingresses, the key of a conversation is unchanged, so that all ingresses choose the same server', () => {
  const conversations = new Conversations(() => 2)
  for (const key of keysOf(50, 'fleet')) expect(conversations.keyOf(modelOn(addressesOf(1, 1)), key)).toBe(key)
  expect(conversations.size).toBe(0)
})
