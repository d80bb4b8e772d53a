/*
 * Affinity: the calls of a conversation go to one server of the model, whose prefix cache has the start of their prompt.
 *
 * The problem: placement by load sends each turn to another server, which computes the whole prompt again. With four servers, every second
 * cached prompt token was lost.
 *
 * 1. The ingress computes the key of the conversation once ({@link affinityKeyOf}). The key is part of the request, so a retry has the same
 *    key.
 * 2. Weighted rendezvous hashing (Thaler and Ravishankar 1998) gives each key an order of the servers. All workers compute the same order
 *    without a store. If a server is removed, then only its own keys move, each to the second server of its order.
 * 3. The load of each server is bounded, similar to consistent hashing with bounded loads (Mirrokni et al. 2018). A call above the bound of
 *    a server goes to the next server of its order. If every server is above its bound, then the least loaded server gets the call.
 * 4. A single ingress distributes conversations evenly over the first servers of their orders (`conversations.ts`).
 *
 * The bound is 1.25 times the mean of the calls in flight, or 1 to 3 standard deviations above the mean if that is more. With the factor
 * 1.25 alone, servers with few calls would exceed the bound by chance. For calls that arrive at random, the deviation is the square root of
 * their mean. Under the root, 1 is added to the mean, so that a mean near 0 also permits a deviation. The number of deviations depends on
 * the key. A loaded server therefore always moves the same keys, whose prompts are then cached on the next server.
 *
 * If a key has several calls in flight, then several callers share the key, for example because all users send one prompt. Calls with such
 * a key are placed by load alone.
 *
 * Example: 4 servers with 10, 4, 5 and 4 calls in flight. With the new call, the mean is 6 and the deviation √(6 + 1), about 2.6. A key
 * with 1.5 deviations leaves the first server, because 11 calls are more than 6 + 1.5 × 2.6. A key with 2 deviations stays.
 */

import { createHash } from 'node:crypto'
import type { GenerateRequest, Turn } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { hashOf } from '#shared/lib/id.ts'

const LOAD_BOUND = 1.25
const TOLERATED_DEVIATIONS = { min: 1, max: 3 }
/**
 * Minimum concurrent calls with one affinity key, over all workers, at which the key counts as shared by several callers. Calls with a shared key are
 * placed by load alone.
 */
const SHARED_KEY_CALLS = 2
const SHARED_KEY_MS = 1_000
const SHARED_KEYS_MAX = 1_000

/** Headers with the id of a session, most specific first. */
const SESSION_HEADERS = ['x-session-id', 'x-claude-code-session-id', 'session-id', 'x-session-affinity'] as const
/** Maximum characters of a session id. A longer header is ignored, and a longer `prompt_cache_key` is cut. */
const SESSION_CHARS_MAX = 4_096
/** Maximum characters of a prompt that are hashed. Hashing them takes about 0.1 ms. */
const HASHED_CHARS_MAX = 32 * 1024
const KEY_CHARS = 22

interface Conversation {
  readonly project: string
  readonly headers: Readonly<Record<string, unknown>>
  /** Id of the stored conversation that the request continues, if any. */
  readonly id?: string | undefined
}

/**
 * Returns the first model with several servers and `affinity: auto`, among the requested model and its fallbacks. The affinity key of the call
 * selects one of the servers of this model. If there is no such model, then the result is undefined, and the call needs no key.
 *
 * @param find Returns the model with an id
 */
export function affinityModelOf(
  model: ModelConfig,
  find: (id: string) => ModelConfig | undefined,
): ModelConfig | undefined {
  return [model, ...model.fallbacks.map(find)].find(
    (each) => each?.affinity === 'auto' && 'base_urls' in each.engine && (each.engine.base_urls?.length ?? 0) > 1,
  )
}

/**
 * Key of the conversation of a request, with 22 characters: a hash of the project and of the first of these values that the request has.
 *
 * 1. `prompt_cache_key` of the request.
 * 2. A session header: `x-session-id`, `x-claude-code-session-id`, `session-id`, `x-session-affinity`.
 * 3. The id of the stored conversation.
 * 4. The start of the prompt: model, system prompt, names of the tools, first user turn. These parts are equal in all turns of a
 *    conversation, also in a chain of `previous_response_id`. Only the first 32,768 characters are hashed.
 *
 * Returns undefined for a raw completion without a key or header, because nothing marks the start of its conversation.
 */
export function affinityKeyOf(request: GenerateRequest, { project, headers, id }: Conversation): string | undefined {
  const session = sessionOf(request, headers) ?? id
  if (session === undefined && request.completion) return undefined
  const hash = createHash('sha256').update(`${project}\n`)
  if (session !== undefined) hash.update(session)
  else for (const text of startOf(request)) hash.update(text)
  return hash.digest('base64url').slice(0, KEY_CHARS)
}

function sessionOf({ extra }: GenerateRequest, headers: Conversation['headers']): string | undefined {
  const key = extra?.prompt_cache_key
  if (typeof key === 'string' && key !== '') return `key ${key.slice(0, SESSION_CHARS_MAX)}`
  for (const name of SESSION_HEADERS) {
    const value = headers[name]
    if (typeof value === 'string' && value !== '' && value.length <= SESSION_CHARS_MAX) return `session ${value}`
  }
  return undefined
}

function* startOf({ model, turns, tools }: GenerateRequest): Generator<string> {
  let left = HASHED_CHARS_MAX
  const first = turns.findIndex(({ role }) => role === 'user')
  for (const text of [`start ${model}`, ...tools.map(({ name }) => name), ...textsOf(turns.slice(0, first + 1))]) {
    yield `\n${text.length} `
    yield text.slice(0, left)
    left -= text.length
    if (left <= 0) return
  }
}

function textsOf(turns: readonly Turn[]): string[] {
  return turns.flatMap(({ parts }) =>
    parts.map((part) => {
      if ('text' in part && part.text !== undefined) return part.text
      if (part.type === 'image') return part.url
      return 'data' in part ? part.data : part.type
    }),
  )
}

/** Affinity key of a call to a model. Undefined if calls of the model are placed by load alone. */
export function affinityOf({ affinity }: GenerateRequest, model: Pick<ModelConfig, 'affinity'>): string | undefined {
  return model.affinity === 'auto' ? affinity : undefined
}

/** Number that represents a server in the hash. Depends only on the URL, so that adding or removing a server moves few keys to another server. */
export function seedOf(url: string): number {
  return mix(hashOf(url))
}

/**
 * Detects keys that callers share. A single worker may have moments without a call of a shared key. The key therefore stays shared for a second after
 * its last concurrent calls. Memory is bounded by the calls in flight and by {@link SHARED_KEYS_MAX}.
 */
export class KeysInFlight {
  readonly #calls = new Map<string, number>()
  /** Times until which keys count as shared, oldest first. */
  readonly #sharedUntilMs = new Map<string, number>()

  /** @param workers Workers that share the servers. Each is assumed to have as many calls with the key as this worker */
  isShared(key: string, workers: number, nowMs = performance.now()): boolean {
    if ((this.#calls.get(key) ?? 0) * workers < SHARED_KEY_CALLS) return (this.#sharedUntilMs.get(key) ?? 0) > nowMs
    this.#sharedUntilMs.delete(key)
    this.#sharedUntilMs.set(key, nowMs + SHARED_KEY_MS)
    for (const [oldest, untilMs] of this.#sharedUntilMs) {
      if (untilMs > nowMs && this.#sharedUntilMs.size <= SHARED_KEYS_MAX) break
      this.#sharedUntilMs.delete(oldest)
    }
    return true
  }

  add(key: string): void {
    this.#calls.set(key, (this.#calls.get(key) ?? 0) + 1)
  }

  remove(key: string): void {
    const left = (this.#calls.get(key) ?? 0) - 1
    if (left > 0) this.#calls.set(key, left)
    else this.#calls.delete(key)
  }
}

export interface RankedServer {
  readonly seed: number
  readonly weight: number
}

interface Candidate extends RankedServer {
  readonly limit: { readonly inFlight: number; readonly hasFreePermit: boolean }
}

/**
 * The first server in the order of the key that has a free permit and is below its load bound. Undefined if there is none.
 *
 * @param working Servers that receive calls at the moment
 */
export function preferredServer<Own extends Candidate>(key: string, working: readonly Own[]): Own | undefined {
  const { min, max } = TOLERATED_DEVIATIONS
  const deviations = min + (max - min) * unitOf(mix(~hashOf(key)))
  let [calls, weights] = [1, 0]
  for (const { limit, weight } of working) {
    calls += limit.inFlight
    weights += weight
  }
  const isBelowBound = ({ limit, weight }: Own) => {
    const mean = (calls * weight) / weights
    // An idle server accepts the calls of its keys, even if its weight is so small that a single call exceeds its
    // bound.
    if (limit.inFlight === 0) return true
    return limit.inFlight + 1 <= Math.max(LOAD_BOUND * mean, mean + deviations * Math.sqrt(mean + 1))
  }
  return firstServer(
    key,
    working.filter((server) => server.limit.hasFreePermit && isBelowBound(server)),
  )
}

/** Server with the highest score for the key (rendezvous hashing). Undefined if there are no servers. */
export function firstServer<Own extends RankedServer>(key: string, servers: readonly Own[]): Own | undefined {
  const hash = mix(hashOf(key))
  let best: Own | undefined
  let bestScore = 0
  for (const server of servers) {
    const score = server.weight / -Math.log(unitOf(mix(hash ^ server.seed)))
    if (score <= bestScore) continue
    best = server
    bestScore = score
  }
  return best
}

/** Finalizer of MurmurHash3: each bit of the input changes about half of the bits of the result. */
function mix(value: number): number {
  let hash = value
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return (hash ^ (hash >>> 16)) >>> 0
}

/** Maps a 32-bit hash to a number between 0 and 1, both excluded. */
function unitOf(hash: number): number {
  return (hash + 0.5) / 2 ** 32
}
