import { createHmac } from 'node:crypto'
import type { ModelConfig } from '#schemas/models.ts'

type Environment = Readonly<Record<string, string | undefined>>
type Model = Pick<ModelConfig, 'engine'>

export function keyOf(model: Model, env: Environment): string | undefined {
  return secretOf(model, 'api_key_env', env)
}

/** Returns the name of the first environment variable that the model needs but that is not set. */
export function missingKeyOf(model: Model, env: Environment): string | undefined {
  return (['api_key_env', 'cache_salt_env'] as const)
    .filter((field) => secretOf(model, field, env) === undefined)
    .flatMap((field) => nameOf(model, field) ?? [])[0]
}

/**
 * Value of `cache_salt` for the calls of a project. vLLM adds the salt to the hashes of its prefix cache. A
 * project can then not detect by timing which prompts other projects have sent. Undefined if the model sends no salt.
 *
 * @param owner Project of the call
 */
export function cacheSaltOf(model: Model, env: Environment, owner: string): string | undefined {
  const secret = secretOf(model, 'cache_salt_env', env)
  return secret === undefined ? undefined : createHmac('sha256', secret).update(owner).digest('base64url')
}

type SecretField = 'api_key_env' | 'cache_salt_env'

function nameOf({ engine }: Model, field: SecretField): string | undefined {
  return field in engine ? (engine as Partial<Record<SecretField, string>>)[field] : undefined
}

function secretOf(model: Model, field: SecretField, env: Environment): string | undefined {
  const name = nameOf(model, field)
  return name === undefined ? undefined : env[name] || undefined
}
