import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { GrammarConverter } from '#shared/engines/llama/grammar/converter.ts'
import { writeSchemaGrammar } from '#shared/engines/llama/grammar/grammar.ts'
import { HOSTILE_SCHEMAS } from '../../support/hostile-schemas.ts'
import { longestHold } from '../../support/loop-hold.ts'

/**
 * Maximum time in ms for which the event loop may be blocked: twice the limit of the product. If the conversion ran in the main thread, then some
 * of these schemas would block it for 500 ms.
 */
const HOLD_MS_MAX = 100
const { signal } = new AbortController()

let converter: GrammarConverter
beforeEach(() => {
  converter = new GrammarConverter()
})
afterEach(async () => await converter.close())

describe('the thread that converts JSON schemas to grammars', () => {
  test('returns a grammar or invalid_value for each hostile schema without blocking the event loop', async () => {
    const holdMs = await longestHold(async () => {
      for (const [name, schema] of HOSTILE_SCHEMAS) {
        const converted = await converter.convert(schema, 'tools', {}, signal).catch((error: unknown) => error)
        expect(converted, `result for the schema ${name}`).toSatisfy(
          (it) => typeof it === 'string' || it.code === 'invalid_value',
        )
      }
    })
    expect(holdMs).toBeLessThan(HOLD_MS_MAX)
  })

  test('returns the same grammar or error as a conversion in the main thread', async () => {
    const schema = { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] }
    expect(await converter.convert(schema, 'schema', {}, signal)).toBe(writeSchemaGrammar(schema, 'schema'))
    const refused = converter.convert({ properties: { a: { not: {} } } }, 'schema', {}, signal)
    await expect(refused).rejects.toMatchObject({ code: 'invalid_value', param: 'schema.properties.a.not' })
    await expect(
      converter.convert({ properties: { a: { not: {} } } }, 'x', { isStrict: false }, signal),
    ).resolves.toMatch(/^root ::=/m)
  })

  test.each([
    ['values', { enum: Array(200_000).fill(1) }],
    ['characters', { description: 'x'.repeat(2 * 1024 * 1024) }],
  ])('refuses a schema with too many %s before copying it to the thread', async (_, schema) => {
    await expect(converter.convert(schema, 'schema', {}, signal)).rejects.toMatchObject({
      code: 'invalid_value',
      message: 'This model cannot follow the JSON schema: it is too large.',
    })
  })

  test('refuses conversions with overloaded once it is closed', async () => {
    await converter.close()
    await expect(converter.convert({}, 'schema', {}, signal)).rejects.toMatchObject({ code: 'overloaded' })
  })
})
