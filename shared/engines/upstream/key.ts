import type { ModelConfig } from '#schemas/models.ts'

type Environment = Readonly<Record<string, string | undefined>>

/** The key in the variable that a model's `api_key_env` names; undefined if there is no such name or the variable is not set. */
export function keyOf({ engine }: Pick<ModelConfig, 'engine'>, env: Environment): string | undefined {
  const name = 'api_key_env' in engine ? engine.api_key_env : undefined
  return name === undefined ? undefined : env[name] || undefined
}

/** The variable that a model's `api_key_env` names, if it is not set; undefined if nothing is missing. */
export function missingKeyOf(model: Pick<ModelConfig, 'engine'>, env: Environment): string | undefined {
  const name = 'api_key_env' in model.engine ? model.engine.api_key_env : undefined
  return name !== undefined && keyOf(model, env) === undefined ? name : undefined
}
