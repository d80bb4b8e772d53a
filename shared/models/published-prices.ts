import { similarNameOf } from '#shared/lib/similar-name.ts'
import list from './published-prices.json' with { type: 'json' }

/*
 * In models.yaml, `price: published` stands for the price that the provider of the model publishes. The list of these prices has a date and a source,
 * and is part of a release, so a price changes only with an upgrade. The price of a model is found under its name at the upstream (`engine.model`),
 * or under its id if that name is missing.
 */

const PUBLISHED = 'published'
const PRICES = new Map<string, object>(Object.entries(list.prices))
const SIMILAR_MAX = 3

/**
 * Replaces `price: published` of each model by the published amounts.
 *
 * @param content Parsed content of models.yaml, before its validation
 * @returns Error messages about models for which no price is published
 */
export function insertPublishedPrices(content: unknown): string[] {
  const models = (content as { models?: unknown } | null)?.models
  if (!Array.isArray(models)) return []
  return models.flatMap((model: RawModel | null) => {
    if (model?.price !== PUBLISHED) return []
    const name = String(model.engine?.model ?? model.id)
    const price = PRICES.get(name)
    if (!price) return [problemOf(name)]
    model.price = price
    return []
  })
}

interface RawModel {
  readonly id?: unknown
  readonly engine?: { readonly model?: unknown } | null
  price?: unknown
}

function problemOf(name: string): string {
  const similar = similarNameOf(name, [...PRICES.keys()]).slice(0, SIMILAR_MAX)
  const names = similar.map((one) => one.name).join(', ')
  return `price: the price list of ${list.date} has no model '${name}'. Set the amounts, or the name of the model at the upstream. Similar names: ${names}`
}
