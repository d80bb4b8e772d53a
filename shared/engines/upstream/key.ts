import type { ModelConfig } from '#schemas/models.ts'

type Environment = Readonly<Record<string, string | undefined>>

export function keyOf({ engine }: Pick<ModelConfig, 'engine'>, env: Environment): string | undefined {
  const name = 'api_key_env' in engine ? engine.api_key_env : undefined
  return name === undefined ? undefined : env[name] || undefined
}

export function missingKeyOf(model: Pick<ModelConfig, 'engine'>, env: Environment): string | undefined {
  const name = 'api_key_env' in model.engine ? model.engine.api_key_env : undefined
  return name !== undefined && keyOf(model, env) === undefined ? name : undefined
}
