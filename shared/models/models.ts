import { readFileSync, statSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import { parse } from 'yaml'
import type { PoolName } from '#schemas/job.ts'
import { type ModelConfig, ModelsFile, workOf } from '#schemas/models.ts'
import type { Price } from '#schemas/price.ts'
import { ConfigError } from '#shared/config/config.ts'
import { problemTexts } from '#shared/config/problem.ts'
import { similarNameOf } from '#shared/lib/similar-name.ts'
import { insertPublishedPrices } from './published-prices.ts'

const NEAREST_MAX = 5
const FILE_BYTES_MAX = 4 * 1024 * 1024

export interface Models {
  readonly models: readonly ModelConfig[]
  find(name: string): ModelConfig | undefined
}

/** The model catalogue of the service. Callers must not cache results, because {@link become} replaces the models while the process runs. */
export class ModelCatalogue implements Models {
  /** Models that the workers of this process run: all models of the catalogue, or only those that the setting MODELS lists. */
  readonly served: Models
  readonly #byName = new Map<string, ModelConfig>()
  readonly #listeners = new Set<() => void>()
  #models: readonly ModelConfig[]
  #codePrice: Price | undefined

  /**
   * @param served Names of the models that the workers of this process run. Default: all
   * @param codePrice Price of code runs
   * @throws ConfigError if an id or alias is not unique, or a fallback does not exist
   */
  constructor(models: readonly ModelConfig[], served?: readonly string[], codePrice?: Price) {
    this.#models = models
    this.#codePrice = codePrice
    this.served = served ? servedOf(this, served) : this
    const problems: string[] = []
    for (const model of models) {
      for (const name of [model.id, ...model.aliases]) {
        if (this.#byName.has(name)) problems.push(`models: the name ${name} is used twice`)
        this.#byName.set(name, model)
      }
    }
    for (const model of models) problems.push(...this.#danglingOf(model))
    if (problems.length > 0) throw new ConfigError(problems)
  }

  get models(): readonly ModelConfig[] {
    return this.#models
  }

  find(name: string): ModelConfig | undefined {
    return this.#byName.get(name)
  }

  *#danglingOf({ id, engine, fallbacks }: ModelConfig): Generator<string> {
    const does = (name: string) => {
      const named = this.#byName.get(name)
      return named && workOf(named)
    }
    for (const name of fallbacks) {
      const next = this.#byName.get(name)
      if (!next) yield `models: ${id} falls back to ${name}, which does not exist`
      if (next?.task) yield `models: ${id} falls back to ${name}, which supports only the task ${next.task}`
    }
    if (engine.type !== 'research') return
    const { writer, embeddings } = engine
    if (writer !== undefined && does(writer) !== 'inference') {
      yield `models: ${id} has the writer ${writer}, which is not a model that generates text`
    }
    if (embeddings !== undefined && does(embeddings) !== 'embeddings') {
      yield `models: ${id} has the embeddings model ${embeddings}, which is not an embeddings model`
    }
  }

  /**
   * Replaces the models with those of another catalogue, then calls the listeners. Unchanged models stay the same objects, so their open
   * engines stay in use.
   */
  become(next: ModelCatalogue): void {
    const before = new Map(this.#models.map((model) => [model.id, model]))
    this.#models = next.models.map((model) => {
      const known = before.get(model.id)
      return known && isDeepStrictEqual(known, model) ? known : model
    })
    this.#codePrice = next.#codePrice
    this.#byName.clear()
    for (const model of this.#models) for (const name of [model.id, ...model.aliases]) this.#byName.set(name, model)
    for (const listener of this.#listeners) listener()
  }

  priceOf({ pool, model }: { readonly pool: PoolName; readonly model: string }): Price | undefined {
    return pool === 'code' ? this.#codePrice : this.#byName.get(model)?.price
  }

  /** True if at least one kind of call has a price. Otherwise no budget can have an effect. */
  get hasPrices(): boolean {
    return [this.#codePrice, ...this.#models.map(({ price }) => price)].some(
      (price) => price !== undefined && Object.values(price).some((amount) => amount > 0),
    )
  }

  onChange(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }
}

function servedOf(catalogue: Models, names: readonly string[]): Models {
  const isServed = (model: ModelConfig) => [model.id, ...model.aliases].some((name) => names.includes(name))
  return {
    get models() {
      return catalogue.models.filter(isServed)
    },
    find(name) {
      const model = catalogue.find(name)
      return model && isServed(model) ? model : undefined
    },
  }
}

/**
 * Reads models.yaml.
 *
 * @param served Names of the models that the workers of this process run. Default: all
 * @throws ConfigError with the file and every problem in it, or with the names in MODELS that do not exist
 */
export function loadModels(path: string, served?: readonly string[]): ModelCatalogue {
  const { models, code } = readModels(path)
  const catalogue = new ModelCatalogue(models, served, code.price)
  const names = catalogue.models.flatMap(({ id, aliases }) => [id, ...aliases])
  const problems = (served ?? []).flatMap((name) => {
    if (catalogue.find(name)) return []
    const nearest = similarNameOf(name, names).slice(0, NEAREST_MAX)
    return [
      `MODELS: there is no model '${name}' in ${path}. Similar models: ${nearest.map(({ name }) => name).join(', ')}`,
    ]
  })
  if (problems.length > 0) throw new ConfigError(problems)
  return catalogue
}

/**
 * Parses a models file.
 *
 * @throws ConfigError with the file and every problem in it
 */
export function readModels(path: string): ModelsFile {
  let content: unknown
  try {
    content = parse(textOf(path))
  } catch (error) {
    throw new ConfigError([`MODELS_FILE: ${path}: ${unreadable(error)}`])
  }
  const unknown = insertPublishedPrices(content)
  if (unknown.length > 0) throw new ConfigError(unknown.map((problem) => `MODELS_FILE: ${path}: ${problem}`))
  const parsed = ModelsFile.safeParse(content)
  if (!parsed.success) {
    const problems = problemTexts(parsed.error, content, ModelsFile)
    throw new ConfigError(problems.map((problem) => `MODELS_FILE: ${path}: ${problem}`))
  }
  return parsed.data
}

/** Returns the text of a regular file. Reading a pipe or a device could block forever, so both are refused. */
function textOf(path: string): string {
  const found = statSync(path)
  if (!found.isFile()) throw new Error('expected a regular file')
  if (found.size > FILE_BYTES_MAX) throw new Error(`expected at most ${FILE_BYTES_MAX} bytes, got ${found.size}`)
  return readFileSync(path, 'utf8')
}

function unreadable(error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException
  if (code === 'ENOENT') return 'there is no such file. Start in the directory that has models.yaml, or name it'
  // Only the first line of the parser's message is shown. The other lines quote the file, which may contain secrets.
  return (message.split('\n')[0] ?? message).replace(/:$/, '')
}
