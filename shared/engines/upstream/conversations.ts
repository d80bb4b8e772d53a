/*
 * Even distribution of conversations over the servers of a model.
 *
 * The problem: a hash gives some servers more conversations than others. With 24 conversations on four servers, one server gets about 9
 * instead of 6. If the prefix cache of this server is too small for 9, then each call evicts the prompts of other conversations.
 *
 * The ingress derives four keys from the key of a conversation. Each derived key orders the servers differently (`affinity.ts`). The
 * conversation gets the key whose first server has the fewest recent conversations (Azar et al., Balanced Allocations, 1999). The chosen
 * key is part of each call, so workers need no state. The number of remembered conversations is bounded. For an evicted conversation, the
 * ingress chooses a key again.
 *
 * Several ingresses could choose different keys for one conversation, and a second server would then compute the prompt again. In a fleet
 * with several ingresses, every conversation therefore has the first of its four keys.
 */
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { firstServer, type RankedServer, seedOf } from './affinity.ts'
import { addressesOf } from './servers.ts'

const RECENT_MAX = 10_000
const CHOICES = 4

interface CountedServer extends RankedServer {
  conversations: number
}

interface Choice {
  readonly key: string
  readonly server: CountedServer | undefined
}

export class Conversations {
  readonly #ingresses: () => number
  /** Chosen key and server of each recent conversation. The conversation whose last call is oldest comes first. */
  readonly #recent = new Map<string, Choice>()
  readonly #servers = new WeakMap<ModelConfig, readonly CountedServer[]>()

  /** @param ingresses Number of ingresses in the fleet, this one included */
  constructor(ingresses: () => number) {
    this.#ingresses = ingresses
  }

  get size(): number {
    return this.#recent.size
  }

  /** Key of a conversation that selects a server with few recent conversations. Equal for all calls of the conversation. */
  keyOf(model: ModelConfig, key: string): string {
    if (this.#ingresses() > 1) return key
    const id = `${model.id} ${key}`
    const servers = this.#serversOf(model)
    const before = this.#recent.get(id)
    if (before) this.#remove(id, before)
    // A known conversation keeps its key. The server is computed again, because the servers of the model may have changed since the last call.
    const choice = before ? { key: before.key, server: firstServer(before.key, servers) } : choose(key, servers)
    if (choice.server) choice.server.conversations++
    this.#recent.set(id, choice)
    const [oldest] = this.#recent
    if (oldest && this.#recent.size > RECENT_MAX) this.#remove(...oldest)
    return choice.key
  }

  #remove(id: string, { server }: Choice): void {
    this.#recent.delete(id)
    if (server) server.conversations--
  }

  #serversOf(model: ModelConfig): readonly CountedServer[] {
    let servers = this.#servers.get(model)
    if (!servers) {
      const addresses = addressesOf(model.engine as UpstreamConfig)
      servers = addresses.map(({ url, weight }) => ({ seed: seedOf(url), weight, conversations: 0 }))
      this.#servers.set(model, servers)
    }
    return servers
  }
}

function choose(key: string, servers: readonly CountedServer[]): Choice {
  const choices = Array.from({ length: CHOICES }, (_, at) => {
    const own = at === 0 ? key : `${key}${at}`
    return { key: own, server: firstServer(own, servers) }
  })
  return choices.reduce((best, choice) => (loadOf(choice) < loadOf(best) ? choice : best))
}

/** Returns the conversations per unit of weight that the server would have with one more conversation. */
function loadOf({ server }: Choice): number {
  return server ? (server.conversations + 1) / server.weight : Number.POSITIVE_INFINITY
}
