import type { ModelConfig } from '#schemas/models.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { addressesOf } from '#shared/engines/upstream/servers.ts'

interface Tokens {
  readonly input: number
  readonly cached: number
}

const NO_TOKENS: Tokens = { input: 0, cached: 0 }

/**
 * GET /v1/admin/models: each model with the prompt tokens that its servers received, and the cached tokens among them.
 * Counts are summed over all live workers.
 */
export async function listModelStates({ models, jobs }: IngressContext, call: Call): Promise<void> {
  const byModel = new Map<string, Map<number, Tokens>>()
  for (const { capacity } of jobs.presence.peers.values()) {
    for (const { model, server, input, cached } of capacity?.promptTokens ?? []) {
      const servers = byModel.get(model) ?? new Map<number, Tokens>()
      byModel.set(model, servers)
      const sum = servers.get(server) ?? NO_TOKENS
      servers.set(server, { input: sum.input + input, cached: sum.cached + cached })
    }
  }
  const data = models.models.map((model) => stateOf(model, byModel.get(model.id) ?? new Map()))
  await call.reply.whole({ object: 'list', data, has_more: false })
}

function stateOf({ id, pool, affinity, engine }: ModelConfig, tokens: ReadonlyMap<number, Tokens>) {
  const addresses = engine.type === 'openai' || engine.type === 'anthropic' ? addressesOf(engine) : []
  const servers = addresses.map(({ url, weight }, server) => {
    const counted = cacheOf([tokens.get(server) ?? NO_TOKENS])
    return { server, host: new URL(url).host, weight, ...counted }
  })
  return { id, object: 'model.state', pool, affinity, ...cacheOf([...tokens.values()]), servers }
}

function cacheOf(all: readonly Tokens[]) {
  const input = all.reduce((sum, tokens) => sum + tokens.input, 0)
  const cached = all.reduce((sum, tokens) => sum + tokens.cached, 0)
  return { input_tokens: input, cached_tokens: cached, cached_share: cached > 0 ? cached / input : null }
}
