import { readFileSync } from 'node:fs'
import { parse } from 'yaml'
import type { z } from 'zod'
import { type ModelConfig, ModelsFile } from '#schemas/models.ts'
import { ConfigError } from './config.ts'

/** The models of the service, by id and alias. */
export class ModelCatalogue {
  readonly models: readonly ModelConfig[]
  readonly #byName = new Map<string, ModelConfig>()

  /** @throws ConfigError When ids or aliases repeat, or a fallback does not exist. */
  constructor(models: readonly ModelConfig[]) {
    this.models = models
    const problems: string[] = []
    for (const model of models) {
      for (const name of [model.id, ...model.aliases]) {
        if (this.#byName.has(name)) problems.push(`models: the name ${name} is used twice`)
        this.#byName.set(name, model)
      }
    }
    for (const model of models) {
      for (const id of model.fallbacks) {
        if (!this.#byName.has(id)) problems.push(`models: ${model.id} falls back to ${id}, which does not exist`)
      }
    }
    if (problems.length > 0) throw new ConfigError(problems)
  }

  /** A model by its id or one of its aliases. */
  find(name: string): ModelConfig | undefined {
    return this.#byName.get(name)
  }
}

/** Reads models.yaml. @throws ConfigError naming the file and every problem in it */
export function loadModels(path: string): ModelCatalogue {
  let content: unknown
  try {
    content = parse(readFileSync(path, 'utf8'))
  } catch (error) {
    // Below its first line the parser quotes the file, which may hold secrets.
    const [why] = (error instanceof Error ? error.message : String(error)).split('\n')
    throw new ConfigError([`MODELS_FILE: ${path}: ${why}`])
  }
  const parsed = ModelsFile.safeParse(content)
  if (!parsed.success)
    throw new ConfigError(parsed.error.issues.map((issue) => `MODELS_FILE: ${path}: ${problemOf(issue, content)}`))
  return new ModelCatalogue(parsed.data.models)
}

/** Fields whose values are not shown, not even where they are wrong: a key itself may stand where its variable belongs. */
const SECRET = /headers|key|secret|password/i
const SHOWN_MAX = 80

/** What is wrong with a field, where it stands, and what stands there. */
function problemOf({ path, message }: z.core.$ZodIssue, content: unknown): string {
  const place = path.map((step) => (typeof step === 'number' ? `[${step}]` : `.${String(step)}`)).join('')
  const value = path.reduce<unknown>((at, step) => (at as Record<PropertyKey, unknown> | undefined)?.[step], content)
  const isShown =
    ['string', 'number', 'boolean'].includes(typeof value) && !path.some((step) => SECRET.test(String(step)))
  const problem = `${place.slice(1)}: ${message}`
  return isShown ? `${problem}, got ${shownOf(value)}` : problem
}

/** A value on one line, without the password of a URL. */
function shownOf(value: unknown): string {
  return JSON.stringify(value)
    .replace(/\/\/[^/@\s]*@/g, '//***@')
    .slice(0, SHOWN_MAX)
}
