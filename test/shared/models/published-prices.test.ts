/** Tests the setting `price: published` of models.yaml. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { Price } from '#schemas/price.ts'
import { loadModels } from '#shared/models/models.ts'
import list from '#shared/models/published-prices.json' with { type: 'json' }

const UPSTREAM = 'engine: { type: openai, base_url: http://127.0.0.1:1/v1'

function load(...models: string[]) {
  const directory = mkdtempSync(join(tmpdir(), 'sluice-prices-'))
  onTestFinished(() => rmSync(directory, { recursive: true }))
  const file = join(directory, 'models.yaml')
  writeFileSync(file, `models:\n${models.map((model) => `  - ${model}\n`).join('')}`)
  return loadModels(file)
}

it('the published price of a model is found by its upstream name, or else by its id', () => {
  const models = load(
    `{ id: gpt-4o, ${UPSTREAM} }, price: published }`,
    `{ id: fast, ${UPSTREAM}, model: gpt-4o-mini }, price: published }`,
    `{ id: own, ${UPSTREAM} } }`,
  )
  expect(models.find('gpt-4o')?.price).toEqual(Price.parse(list.prices['gpt-4o']))
  expect(models.find('fast')?.price).toMatchObject({ input_per_million: 0.15, output_per_million: 0.6 })
  expect(models.find('own')?.price.input_per_million).toBe(0)
  expect(models.hasPrices).toBe(true)
  expect(load(`{ id: own, ${UPSTREAM} } }`).hasPrices).toBe(false)
})

it('a model without a published price is refused with similar names and the date of the list', () => {
  expect(() => load(`{ id: gpt-4o-mimi, ${UPSTREAM} }, price: published }`)).toThrow(
    expect.objectContaining({
      problems: [
        expect.stringMatching(/price: the price list of \d{4}-\d\d-\d\d has no model 'gpt-4o-mimi'.*gpt-4o-mini/),
      ],
    }),
  )
})

it('the list of published prices contains only valid prices', () => {
  for (const [name, price] of Object.entries(list.prices)) expect(Price.safeParse(price).error, name).toBeUndefined()
})
