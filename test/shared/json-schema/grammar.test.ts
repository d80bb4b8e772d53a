import { Ajv2020 } from 'ajv/dist/2020.js'
import { describe, expect, test } from 'vitest'
import { writeSchemaGrammar } from '#shared/engines/llama/grammar/grammar.ts'
import { FORMATS } from '#shared/engines/llama/grammar/strings.ts'
import type { Schema } from '#shared/json-schema/json-schema.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { Sentences } from '../../support/gbnf.ts'
import { properties } from '../../support/hostile-schemas.ts'
import { cpuMs } from '../../support/loop-hold.ts'

const SENTENCES = 120
/** Name of the keyword `then`. The constant avoids a lint error: an object with a literal key `then` looks like a promise. */
const THEN = 'then'
const text = { type: 'string' }
const integer = { type: 'integer' }
const object = (fields: object, required: string[] = []) => ({ type: 'object', properties: fields, required })
/** The pattern that zod generates for z.email(). */
const ZOD_EMAIL =
  "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"

/**
 * Keywords of JSON Schema draft 2020-12. `enforced`: schemas whose grammar must generate only valid values. `refused`: schemas that must be refused,
 * with the path in the error. `isNote`: the keyword describes values without restricting them.
 */
const KEYWORDS: Readonly<Record<string, { enforced?: Schema[]; refused?: [Schema, string][]; isNote?: true }>> = {
  $schema: { isNote: true },
  $id: { isNote: true },
  $anchor: { isNote: true },
  $dynamicAnchor: { isNote: true },
  $vocabulary: { isNote: true },
  $comment: { isNote: true },
  $defs: { isNote: true },
  $ref: {
    enforced: [
      { ...object({ a: { $ref: '#/$defs/s', maxLength: 4 } }, ['a']), $defs: { s: { type: 'string', minLength: 3 } } },
      object({ v: integer, next: { anyOf: [{ $ref: '#' }, { type: 'null' }] } }, ['v', 'next']),
    ],
    refused: [
      [object({ a: { $ref: '#/$defs/none' } }), '.properties.a.$ref'],
      [object({ a: { $ref: 'https://example.com/schema' } }), '.properties.a.$ref'],
      [{ anyOf: [{ $ref: '#/$defs/a' }], $defs: { a: { $ref: '#/nowhere' } } }, '.$defs.a.$ref'],
      [{ $ref: '#/$defs/a', $defs: { a: 7 } }, '.$defs.a'],
    ],
  },
  $dynamicRef: { refused: [[{ items: { $dynamicRef: '#x' } }, '.items.$dynamicRef']] },
  allOf: {
    enforced: [
      {
        allOf: [
          { type: 'number', minimum: 5 },
          { minimum: 3, maximum: 9 },
        ],
      },
      { allOf: [{ ...object({ a: text }), additionalProperties: false }, object({ b: text })] },
      { type: 'object', allOf: [object({ a: { minLength: 2 } }, ['a']), object({ a: { maxLength: 3, ...text } })] },
      { ...text, allOf: [{ pattern: '^a' }, { pattern: 'z$' }] },
      { allOf: [{ enum: [1, 2, 3] }, { enum: [3, 2] }] },
      { allOf: [{ type: ['number', 'string'] }, { type: ['integer', 'null'] }] },
    ],
    refused: [
      [{ allOf: [{ const: 1 }, { const: 2 }] }, ''],
      [{ allOf: [{ patternProperties: { a: integer } }] }, '.allOf[0].patternProperties'],
    ],
  },
  anyOf: {
    enforced: [
      { anyOf: [text, integer], minimum: 5, minLength: 3 },
      { ...text, enum: ['a', 'b', 'cc'], anyOf: [{ minLength: 2 }, { const: 'a' }] },
      { anyOf: [{ const: 1 }, { const: 2 }], oneOf: [{ const: 2 }, { const: 3 }] },
      { anyOf: [false, integer] },
    ],
    refused: [[{ anyOf: [] }, '']],
  },
  oneOf: {
    enforced: [
      { oneOf: [object({ t: { const: 'x' }, v: integer }, ['t']), object({ t: { const: 'y' } }, ['t'])] },
      { ...object({ base: integer }), oneOf: [object({ a: {} }, ['a']), object({ b: {} }, ['b'])] },
      { oneOf: [text, { type: 'null' }, { type: 'integer', maximum: 3 }, { type: 'number', exclusiveMinimum: 3 }] },
    ],
    refused: [
      [{ oneOf: [integer, { type: 'number' }] }, '.oneOf'],
      [{ ...object({ a: {}, b: {} }), oneOf: [{ required: ['a'] }, { required: ['b'] }] }, '.oneOf'],
      [{ oneOf: [object({ a: {} }), object({ b: {} })] }, '.oneOf'],
      [{ oneOf: Array.from({ length: 300 }, (_, at) => object({ [`p${at}`]: {} }, [`p${at}`])) }, ''],
    ],
  },
  not: { refused: [[object({ a: { not: text } }), '.properties.a.not']] },
  if: { enforced: [{ ...integer, if: { minimum: 3 } }], refused: [[{ if: integer, else: text }, '.if']] },
  [THEN]: { enforced: [{ ...integer, [THEN]: text }], refused: [[{ if: integer, [THEN]: { minimum: 1 } }, '.if']] },
  else: { enforced: [{ ...integer, else: text }] },
  dependentSchemas: { refused: [[{ dependentSchemas: { a: integer } }, '.dependentSchemas']] },
  prefixItems: {
    enforced: [
      { prefixItems: [integer, { type: 'null' }], items: { type: 'boolean' }, minItems: 4, maxItems: 5 },
      { prefixItems: [integer, { type: 'null' }], maxItems: 1 },
      { prefixItems: [integer, false, text] },
    ],
    refused: [[{ allOf: [{ prefixItems: [integer] }] }, '.allOf[0].prefixItems']],
  },
  items: {
    enforced: [
      { items: integer, minItems: 1 },
      { type: 'array', items: false },
    ],
  },
  contains: { refused: [[{ type: 'array', contains: integer }, '.contains']] },
  properties: {
    enforced: [object({ a: false, b: true }, ['b'])],
    refused: [[object({ a: false }, ['a']), '.properties.a']],
  },
  patternProperties: {
    enforced: [
      { patternProperties: { '^S_': text }, additionalProperties: false },
      { ...object({ S_1: { minLength: 2 } }, ['S_1']), patternProperties: { '^S_': text } },
    ],
    refused: [
      [{ patternProperties: { '(': text } }, '.patternProperties.('],
      [{ patternProperties: { a: text, b: integer } }, '.patternProperties'],
    ],
  },
  additionalProperties: {
    enforced: [
      { type: 'object', additionalProperties: integer },
      { type: 'object', required: ['x', 'y'], properties: { y: text }, additionalProperties: integer },
    ],
    refused: [[{ type: 'object', required: ['x'], additionalProperties: false }, '.properties.x']],
  },
  propertyNames: {
    enforced: [
      { type: 'object', propertyNames: { pattern: '^[a-z]{3}$' }, additionalProperties: integer },
      { ...object({ abc: integer, d: integer }), propertyNames: { minLength: 2 } },
    ],
    refused: [[{ propertyNames: { anyOf: [text] } }, '.propertyNames.anyOf']],
  },
  unevaluatedItems: { enforced: [{ type: 'array', unevaluatedItems: integer }] },
  unevaluatedProperties: {
    enforced: [{ ...object({ a: integer }), allOf: [object({ b: text })], unevaluatedProperties: false }],
    refused: [[{ allOf: [{ unevaluatedProperties: false }] }, '.allOf[0].unevaluatedProperties']],
  },
  type: { enforced: [{ type: ['integer', 'null'] }], refused: [[{ type: 'date' }, '.type']] },
  enum: {
    enforced: [
      { type: ['string', 'null'], enum: ['a', 1, null] },
      { ...integer, minimum: 3, enum: [1, 5, 7.5] },
    ],
    refused: [
      [{ enum: [] }, ''],
      [object({ a: { ...text, enum: [1] } }, ['a']), '.properties.a'],
    ],
  },
  const: { enforced: [{ const: 3, enum: [3, 4] }, { const: { a: [1] } }], refused: [[{ ...text, const: 1 }, '']] },
  multipleOf: {
    enforced: [
      { ...integer, multipleOf: 5, minimum: 3 },
      { type: 'number', multipleOf: 0.25, minimum: 0, maximum: 9 },
      { ...integer, multipleOf: 7, minimum: -20, maximum: 100 },
      { ...integer, multipleOf: 100, minimum: -12_345, maximum: 98_765 },
      { type: 'number', multipleOf: 0.01 },
    ],
    refused: [[object({ a: { ...integer, multipleOf: 7 } }, ['a']), '.properties.a']],
  },
  maximum: { enforced: [{ type: 'number', minimum: 0.2, maximum: 0.8 }, { maximum: 0 }] },
  exclusiveMaximum: { enforced: [{ type: 'number', exclusiveMinimum: -0.8, exclusiveMaximum: -0.2 }] },
  minimum: { enforced: [{ type: 'number', minimum: 0.5, maximum: 3.5 }], refused: [[{ minimum: 2, maximum: 1 }, '']] },
  exclusiveMinimum: { enforced: [{ ...integer, exclusiveMinimum: 41, exclusiveMaximum: 43 }] },
  maxLength: { enforced: [{ ...text, minLength: 300, maxLength: 700 }, { maxLength: 0 }] },
  minLength: { enforced: [{ minLength: 3 }], refused: [[{ ...text, minLength: 5, maxLength: 4 }, '']] },
  pattern: {
    enforced: [
      ...['^\\d{3}-\\d{4}$', 'abc', 'a|b$', '^(\\d+|[a-f]{2})\\s?\\S$', '^[^"\\\\]{3}$', '"\\\\n?', '^$', ''],
      ...['^[\\u4e00-\\u9fff]{2}$', '^\\/[a-z]+\\/$', '^(a|b)?(?:c|d){2,3}?$', '^(?<hex>#?[a-f0-9]{6})$', '^[\\w.-]+$'],
      ...['^(?=.*\\d)(?=.*[a-z])(?=.*[A-Z]).{8,}$', '^(?!admin$)[a-z]{5}$', '^\\u{1F600}$', '^[^]$', '^x{0}y$'],
    ].map((pattern) => ({ ...text, pattern })),
    refused: [
      ...['\\bword', '(a)\\1', '(?<=a)b', '(?<!a)b', '\\p{L}', '(?i:a)', '(?=^a)b', '(', 'a**', '[b-a]', 'a{2000}'].map(
        (pattern): [Schema, string] => [object({ a: { ...text, pattern } }), '.properties.a.pattern'],
      ),
      [object({ a: { ...text, pattern: '^(a|b)*a(a|b){12}$' } }), '.properties.a'],
      [object({ a: { ...text, pattern: '^a$', minLength: 2 } }, ['a']), '.properties.a'],
    ],
  },
  format: {
    enforced: [
      ...[...FORMATS.keys()].map((format) => ({ ...text, format })),
      { ...text, format: 'date', pattern: '^2026-1' },
      { ...text, format: 'email', pattern: ZOD_EMAIL, maxLength: 254 },
      { ...integer, format: 'int64' },
    ],
    refused: [[{ ...text, format: 'uuid', maxLength: 9 }, '']],
  },
  minItems: { enforced: [{ items: { type: 'boolean' }, minItems: 2 }], refused: [[{ minItems: 1_001 }, '.minItems']] },
  maxItems: { enforced: [{ items: { type: 'boolean' }, minItems: 2, maxItems: 5_000 }, { maxItems: 0 }] },
  uniqueItems: {
    enforced: [
      { type: 'array', uniqueItems: true, maxItems: 1 },
      { type: 'array', uniqueItems: false },
    ],
    refused: [[object({ a: { items: text, uniqueItems: true } }), '.properties.a.uniqueItems']],
  },
  maxContains: { enforced: [{ type: 'array', maxContains: 0 }] },
  minContains: { enforced: [{ type: 'array', minContains: 3 }] },
  maxProperties: { enforced: [{ type: 'object', additionalProperties: integer, minProperties: 1, maxProperties: 3 }] },
  minProperties: {
    enforced: [object({ a: {}, b: {}, c: {} }, ['c'])].map((schema) => ({
      ...schema,
      minProperties: 2,
      maxProperties: 2,
    })),
    refused: [
      [{ type: 'object', minProperties: 2 }, '.minProperties'],
      [{ ...object({ a: {} }), minProperties: 2 }, '.minProperties'],
    ],
  },
  required: { enforced: [object({ a: integer, b: integer }, ['b', 'c'])] },
  dependentRequired: {
    enforced: [{ ...object({ a: integer, b: integer }, ['a']), dependentRequired: { a: ['b'] } }],
    refused: [[{ ...object({ a: {}, b: {} }), dependentRequired: { a: ['b'] } }, '.dependentRequired.a']],
  },
  contentEncoding: { isNote: true },
  contentMediaType: { isNote: true },
  contentSchema: { isNote: true },
  title: { isNote: true },
  description: { isNote: true },
  default: { isNote: true },
  deprecated: { isNote: true },
  readOnly: { isNote: true },
  writeOnly: { isNote: true },
  examples: { isNote: true },
}

const ajv = () => new Ajv2020({ strict: false, logger: false, multipleOfPrecision: 4, validateFormats: false })
const ENFORCED = Object.entries(KEYWORDS).flatMap(([keyword, { enforced = [] }]) =>
  enforced.map((schema): [string, string, Schema] => [keyword, JSON.stringify(schema), schema]),
)
const REFUSED = Object.entries(KEYWORDS).flatMap(([keyword, { refused = [] }]) =>
  refused.map(([schema, path]): [string, string, Schema, string] => [
    keyword,
    JSON.stringify(schema).slice(0, 150),
    schema,
    path,
  ]),
)

describe('the grammar of a JSON schema', () => {
  test('supports or refuses every keyword of draft 2020-12', () => {
    const metaschemas = ['core', 'applicator', 'unevaluated', 'validation', 'meta-data', 'format-annotation', 'content']
    const known = metaschemas.flatMap((name) => {
      const { schema } = ajv().getSchema(`https://json-schema.org/draft/2020-12/meta/${name}`) ?? {}
      return Object.keys((schema as { properties: object }).properties)
    })
    expect(known.length).toBeGreaterThan(50)
    expect(new Set(Object.keys(KEYWORDS))).toEqual(new Set(known))
  })

  test.each(ENFORCED)('generates only valid values for the keyword %s in %s', (_, _text, schema) => {
    const validate = ajv().compile(schema)
    const sentences = new Sentences(writeSchemaGrammar(schema, 'schema'), randomOf(1))
    for (let index = 0; index < SENTENCES; index++) {
      const value = JSON.parse(sentences.next())
      if (!validate(value)) expect([value, validate.errors]).toEqual([value, null])
    }
  })

  test.each(REFUSED)('is refused with the path of the keyword %s in %s', (_, _text, schema, path) => {
    const refusal = refusalOf(schema)
    expect(refusal).toMatchObject({ code: 'invalid_value', param: `schema${path}` })
    if (path !== '') expect(refusal.message).toContain(`'${path.slice(1)}' `)
  })

  test('omits keywords that it cannot enforce if the tool is not strict', () => {
    for (const [, , schema] of REFUSED.filter(([keyword]) => keyword !== 'minItems')) {
      try {
        writeSchemaGrammar(schema, 'tools', { isStrict: false })
      } catch (error) {
        expect([schema, (error as Error).message]).toEqual([schema, expect.stringContaining('without an end')])
      }
    }
    const loose = object(
      { a: { ...text, pattern: '\\bx', minLength: 2, maxLength: 3 }, b: { not: text, ...integer } },
      ['a', 'b'],
    )
    const sentences = new Sentences(writeSchemaGrammar(loose, 'tools', { isStrict: false }), randomOf(2))
    const value = JSON.parse(sentences.next())
    expect([...value.a].length).toBeOneOf([2, 3])
    expect(value.b).toBeTypeOf('number')
  })

  test.each<[string, Schema]>([
    ['2,000 patterns', object(properties(2_000, (at) => ({ ...text, pattern: `^(a|b)*a(a|b){${at % 40}}c${at}$` })))],
    ['2,000 string lengths', object(properties(2_000, (at) => ({ ...text, format: 'email', maxLength: at + 10 })))],
    ['nested repetition counts', { ...text, pattern: `^${'('.repeat(9)}a${'{1,1000})'.repeat(9)}$` }],
    [
      '200 unions of 60 objects',
      object(
        properties(200, () => ({ oneOf: Array.from({ length: 60 }, (_, at) => object({ t: { const: at } }, ['t'])) })),
      ),
    ],
    ['an enum value of 5 MB next to a pattern', { ...text, pattern: 'b$', enum: ['a'.repeat(5_000_000)] }],
    ['a pattern of 1,000 characters', { ...text, pattern: 'a?'.repeat(500) }],
  ])('is generated or refused in less than 3 s of CPU time: %s', (_, schema) => {
    for (const isStrict of [true, false]) {
      const startedMs = cpuMs()
      try {
        writeSchemaGrammar(schema, 'schema', { isStrict })
      } catch (error) {
        expect(error).toMatchObject({ code: 'invalid_value' })
      }
      // The maximum is far below the converter's timeout of 10 s, because the CPU time may double on a busy machine. Without limits on schemas, these
      // cases take minutes.
      expect(cpuMs() - startedMs).toBeLessThan(3_000)
    }
  })
})

function refusalOf(schema: Schema): ServiceError {
  try {
    writeSchemaGrammar(schema, 'schema')
  } catch (error) {
    if (error instanceof ServiceError) return error
    throw error
  }
  throw new Error(`No refusal of ${JSON.stringify(schema)}`)
}

/** Returns a generator of random numbers from 0 to 1. Equal seeds give equal sequences. */
function randomOf(seed: number): () => number {
  let state = seed
  return () => {
    state = (state * 1_103_515_245 + 12_345) & 0x7fff_ffff
    return state / 0x80_00_00_00
  }
}
