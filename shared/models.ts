import { readFileSync } from 'node:fs'
import { parse } from 'yaml'
import type { PoolName } from '#schemas/job.ts'
import { type ModelConfig, ModelsFile } from '#schemas/models.ts'
import type { Price } from '#schemas/price.ts'
import { ConfigError } from './config/config.ts'
import { problemTexts } from './config/problem.ts'

/** The models of the service, by id and alias. */
export class ModelCatalogue {
  readonly models: readonly ModelConfig[]
  readonly #byName = new Map<string, ModelConfig>()

  readonly #codePrice: Price | undefined

  /**
   * @param codePrice Of runs of code.
   * @throws ConfigError When ids or aliases repeat, or a fallback does not exist.
   */
  constructor(models: readonly ModelConfig[], codePrice?: Price) {
    this.models = models
    this.#codePrice = codePrice
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
      if (model.engine.type !== 'research') continue
      const { writer, embeddings } = model.engine
      if (writer !== undefined && this.#byName.get(writer)?.pool !== 'inference') {
        problems.push(`models: ${model.id} lets ${writer} write, which is no model that generates text`)
      }
      if (embeddings !== undefined && this.#byName.get(embeddings)?.pool !== 'embeddings') {
        problems.push(`models: ${model.id} ranks by ${embeddings}, which is no model that embeds texts`)
      }
    }
    if (problems.length > 0) throw new ConfigError(problems)
  }

  /** A model by its id or one of its aliases. */
  find(name: string): ModelConfig | undefined {
    return this.#byName.get(name)
  }

  /** What the work of a job costs; undefined for a model that is no longer there. */
  priceOf({ pool, model }: { readonly pool: PoolName; readonly model: string }): Price | undefined {
    return pool === 'code' ? this.#codePrice : this.#byName.get(model)?.price
  }
}

/** Reads models.yaml. @throws ConfigError naming the file and every problem in it */
export function loadModels(path: string): ModelCatalogue {
  let content: unknown
  try {
    content = parse(readFileSync(path, 'utf8'))
  } catch (error) {
    throw new ConfigError([`MODELS_FILE: ${path}: ${unreadable(error)}`])
  }
  const parsed = ModelsFile.safeParse(content)
  if (!parsed.success) {
    const problems = problemTexts(parsed.error, content, ModelsFile)
    throw new ConfigError(problems.map((problem) => `MODELS_FILE: ${path}: ${problem}`))
  }
  return new ModelCatalogue(parsed.data.models, parsed.data.code.price)
}

function unreadable(error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException
  if (code === 'ENOENT') return 'there is no such file. Start in the directory that has models.yaml, or name it'
  // Below its first line the parser quotes the file, which may hold secrets.
  return (message.split('\n')[0] ?? message).replace(/:$/, '')
}
