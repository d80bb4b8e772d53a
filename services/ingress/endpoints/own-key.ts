import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { effectiveLimits } from '#shared/keys/limits.ts'
import { projectIdOf } from '#shared/keys/project.ts'

/** GET /v1/key: identity, rights and limits of the calling key. Allowed for every valid key. */
export async function readOwnKey({ config, keys }: IngressContext, { key, reply }: Call): Promise<void> {
  const { id, name = null, scopes = ['calls'], endpoints = null, models = null, expires_at = null } = key
  const limits = effectiveLimits(key, config, (project) => keys.limitsOf(project))
  const head = { id, object: 'api_key', name, project: projectIdOf(key) }
  await reply.whole({ ...head, scopes, endpoints, models, limits, expires_at })
}
