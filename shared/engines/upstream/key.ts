import type { ModelConfig } from '#schemas/models.ts'

/** Variables of an environment, by name. */
type Environment = Readonly<Record<string, string | undefined>>

/** The key that a model's `api_key_env` names; undefined when it names none, or one that is not set. */
export function keyOf({ engine }: Pick<ModelConfig, 'engine'>, env: Environment): string | undefined {
  const name = 'api_key_env' in engine ? engine.api_key_env : undefined
  return name === undefined ? undefined : env[name] || undefined
}

/** The variable that a model's `api_key_env` names and that is not set; undefined when nothing is missing. */
export function missingKeyOf(model: Pick<ModelConfig, 'engine'>, env: Environment): string | undefined {
  const name = 'api_key_env' in model.engine ? model.engine.api_key_env : undefined
  return name !== undefined && keyOf(model, env) === undefined ? name : undefined
}
