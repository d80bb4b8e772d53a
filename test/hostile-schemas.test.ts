import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { fillSchema } from '#shared/engines/echo-fill.ts'
import { writeSchemaGrammar } from '#shared/engines/llama-grammar.ts'
import { ServiceError } from '#shared/error.ts'
import type { Schema } from '#shared/json-schema/json-schema.ts'
import { HOSTILE_SCHEMAS } from './support/hostile-schemas.ts'
import { cpuMs } from './support/loop-hold.ts'

/** Several times what a piece of work may take: the first run of a function is slow. */
const CPU_MS_MAX = 400
/** The budget of one answer (echo-fill.ts), and what JSON adds: names of values, quotes, commas. */
const ANSWER_CHARS_MAX = 2_000_000
const GRAMMAR_CHARS_MAX = 300_000

describe('a hostile schema', () => {
  test.each(HOSTILE_SCHEMAS)('makes a small value or an error at once: %s', (_, schema) => {
    const startedMs = cpuMs()
    expect(answerOf(schema).length).toBeLessThan(ANSWER_CHARS_MAX)
    expect(cpuMs() - startedMs).toBeLessThan(CPU_MS_MAX)
  })

  test.each(HOSTILE_SCHEMAS)('makes a small grammar or an error at once: %s', (_, schema) => {
    const startedMs = cpuMs()
    expect(grammarOf(schema).length).toBeLessThan(GRAMMAR_CHARS_MAX)
    expect(cpuMs() - startedMs).toBeLessThan(CPU_MS_MAX)
  })

  test('of any form does neither engine harm', () => {
    fc.assert(
      fc.property(arbitrarySchema(), (schema) => {
        expect(answerOf(schema).length).toBeLessThan(ANSWER_CHARS_MAX)
        expect(grammarOf(schema).length).toBeLessThan(GRAMMAR_CHARS_MAX)
      }),
      { numRuns: 300 },
    )
  })
})

describe('a value made from a schema', () => {
  test('has all parts of an allOf within an allOf', () => {
    const one = (name: string) => ({ properties: { [name]: { const: name } }, required: [name] })
    const schema = {
      allOf: [{ allOf: [one('a'), one('b')] }, { allOf: [one('c')] }, { $ref: '#/$defs/d' }],
      $defs: { d: one('d') },
    }
    expect(fillSchema(schema)).toEqual({ a: 'a', b: 'b', c: 'c', d: 'd' })
  })

  test('has properties named like those of objects', () => {
    const schema = JSON.parse('{"type":"object","properties":{"__proto__":{"const":1},"constructor":{"const":2}}}')
    expect(JSON.stringify(fillSchema(schema))).toBe('{"__proto__":1,"constructor":2}')
  })
})

describe('the grammar of a schema', () => {
  test('is written for recursion that its first words tell apart', () => {
    const operation = (name: string) => ({
      type: 'object',
      properties: { op: { const: name }, left: { $ref: '#' }, right: { $ref: '#' } },
      required: ['op', 'left', 'right'],
    })
    const schema = { anyOf: [operation('add'), operation('multiply'), { type: 'number' }] }
    expect(grammarOf(schema)).toContain('multiply')
  })

  test.each([
    ['has alternatives that begin alike and all contain themselves', { anyOf: ['x', 'y'].map((name) => twin(name)) }],
    ['leaves more than 1000 ways to go on at one place', { enum: Array.from({ length: 1_001 }, (_, index) => index) }],
    ['contains itself without an end', { anyOf: [{ $ref: '#' }, { type: 'null' }] }],
  ])('is refused for a schema that %s', (problem, schema) => {
    expect(() => writeSchemaGrammar(schema, 'tools')).toThrow(
      expect.objectContaining({
        code: 'invalid_value',
        param: 'tools',
        message: `This model cannot follow the JSON schema: it ${problem}.`,
      }),
    )
  })

  test('writes equal rules once', () => {
    const bounded = { type: 'string', maxLength: 255 }
    const all = Object.fromEntries(Array.from({ length: 500 }, (_, index) => [`p${index}`, bounded]))
    const grammar = grammarOf({ type: 'object', properties: all, required: Object.keys(all) })
    expect(grammar.match(/char\{0,255\}/g)).toHaveLength(1)
  })
})

function twin(name: string) {
  const properties = { a: { $ref: '#' }, [name]: { const: 1 } }
  return { type: 'object', properties, required: ['a', name] }
}

/** The JSON of the value; the message where the schema is refused. */
function answerOf(schema: Schema): string {
  return refusalOr(() => JSON.stringify(fillSchema(schema)) ?? '')
}

function grammarOf(schema: Schema): string {
  return refusalOr(() => writeSchemaGrammar(schema, 'response_format'))
}

function refusalOr(work: () => string): string {
  try {
    return work()
  } catch (error) {
    if (error instanceof ServiceError && error.code === 'invalid_value') return error.message
    throw error
  }
}

/** Objects of the words of JSON Schema, each with a value that need not fit it. */
function arbitrarySchema(): fc.Arbitrary<Schema> {
  const names = fc.constantFrom('a', 'b', '__proto__', 'constructor', 'toString', 'length')
  const numbers = fc.constantFrom(-1, 0, 1, 2.5, 1e308, Number.POSITIVE_INFINITY, 1_000_000)
  const words = fc.constantFrom(
    'object',
    'array',
    'string',
    'integer',
    'number',
    'null',
    'constructor',
    'date',
    '^(a+)+$',
  )
  const pointers = fc.constantFrom(
    '#',
    '#/',
    '#/$defs/a',
    '#/$defs/b',
    '#/properties/a',
    '#/allOf/0',
    '#/%zz',
    '#/$ref',
    'x',
  )
  return fc.letrec<{ schema: Schema; value: unknown }>((tie) => {
    const keyword = fc.constantFrom(
      ...['type', 'const', 'enum', 'default', 'examples', 'properties', 'required', 'additionalProperties', 'items'],
      ...['prefixItems', 'minItems', 'maxItems', 'minProperties', 'minLength', 'maxLength', 'minimum', 'maximum'],
      ...[
        'exclusiveMinimum',
        'exclusiveMaximum',
        'multipleOf',
        'format',
        'pattern',
        'anyOf',
        'oneOf',
        'allOf',
        '$defs',
      ],
    )
    const map = fc.dictionary(names, tie('schema'), { maxKeys: 3 })
    const list = fc.array(fc.oneof(tie('schema'), names), { maxLength: 4 })
    const value = fc.oneof(
      { maxDepth: 4 },
      numbers,
      words,
      fc.boolean(),
      fc.constant(null),
      names,
      list,
      map,
      tie('schema'),
    )
    const reference = fc.record({ $ref: pointers, type: words }, { requiredKeys: [] })
    const plain = fc.dictionary(keyword, value, { maxKeys: 5 })
    return { value, schema: fc.oneof({ maxDepth: 4 }, reference, plain) as fc.Arbitrary<Schema> }
  }).schema
}
