import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { fillSchema } from '#shared/engines/echo/fill.ts'
import { writeSchemaGrammar } from '#shared/engines/llama/grammar/grammar.ts'
import { SchemaBounds } from '#shared/json-schema/bounds.ts'
import type { Schema } from '#shared/json-schema/json-schema.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { HOSTILE_SCHEMAS, properties } from '../../support/hostile-schemas.ts'
import { cpuMs, longestHold } from '../../support/loop-hold.ts'
import { startStack } from '../../support/stack.ts'

/** Maximum CPU time per schema in ms. The value is several times the limit of the product, because the first run of a function is slow. */
const CPU_MS_MAX = 400
/** Maximum length of a generated value: the limit per response (shared/engines/echo/fill.ts), plus the names, quotes and commas of the JSON. */
const ANSWER_CHARS_MAX = 2_000_000
const GRAMMAR_CHARS_MAX = 300_000

describe('a hostile JSON schema', () => {
  test.each(HOSTILE_SCHEMAS)('yields a small value or an error within bounded CPU time: %s', (_, schema) => {
    const startedMs = cpuMs()
    expect(answerOf(schema).length).toBeLessThan(ANSWER_CHARS_MAX)
    expect(cpuMs() - startedMs).toBeLessThan(CPU_MS_MAX)
  })

  test.each(HOSTILE_SCHEMAS)('yields a small grammar or an error within bounded CPU time: %s', (_, schema) => {
    const startedMs = cpuMs()
    expect(grammarOf(schema).length).toBeLessThan(GRAMMAR_CHARS_MAX)
    expect(cpuMs() - startedMs).toBeLessThan(CPU_MS_MAX)
  })

  test('yields a small value and a small grammar, or an error, even if the schema is generated at random', () => {
    fc.assert(
      fc.property(arbitrarySchema(), (schema) => {
        expect(answerOf(schema).length).toBeLessThan(ANSWER_CHARS_MAX)
        expect(grammarOf(schema).length).toBeLessThan(GRAMMAR_CHARS_MAX)
      }),
      { numRuns: 300 },
    )
  })
})

describe('the size limits for the schemas of a request', () => {
  test.each(HOSTILE_SCHEMAS)('are checked within bounded CPU time: %s', (_, schema) => {
    const startedMs = cpuMs()
    refusalOr(() => check(schema))
    expect(cpuMs() - startedMs).toBeLessThan(CPU_MS_MAX)
  })

  test('are checked for schemas generated at random', () => {
    fc.assert(fc.property(arbitrarySchema(), (schema) => void refusalOr(() => check(schema))))
  })

  test.each<[string, Schema, string, RegExp]>([
    [
      'minItems',
      { properties: { a: { minItems: 10_001 } } },
      'schema.properties.a.minItems',
      /<= 10000, but got 10001/,
    ],
    ['minProperties', { items: { minProperties: 20_000_000 } }, 'schema.items.minProperties', /<= 10000/],
    ['minLength', { $defs: { a: { minLength: 1e9 } }, $ref: '#/$defs/a' }, 'schema.$defs.a.minLength', /<= 100000/],
    [
      'the parts of allOf',
      { not: { allOf: Array(2_001).fill({}) } },
      'schema.not.allOf',
      /at most 2000 schemas, but got 2001/,
    ],
    ['endless recursion', { allOf: [{ $ref: '#' }] }, 'schema', /has endless recursion/],
    ['nested counts', nested(3), 'schema.items', /has more than 1000000 nodes after its references are resolved/],
    ['enum values', { enum: Array(100_001).fill(1) }, 'schema', /at most 100000 values in enum/],
  ])('are reported with the path and the limit for %s', (_, schema, param, message) => {
    expect(() => check(schema)).toThrow(
      expect.objectContaining({ code: 'invalid_value', param, message: expect.stringMatching(message) }),
    )
  })

  test('count a referenced schema at each reference, summed over all schemas of the request', () => {
    const repeated = (times: number): Schema => ({
      properties: properties(times, () => ({ $ref: '#/$defs/long' })),
      $defs: { long: { const: 'x'.repeat(10_000) } },
    })
    const bounds = new SchemaBounds()
    bounds.check(repeated(900), 'tools[0]')
    expect(() => bounds.check(repeated(900), 'tools[1]')).toThrow(/more than 16000000 characters/)
  })

  test('allow circular references', () => {
    const kinds = properties(40, (index) => ({
      type: 'object',
      properties: { left: { $ref: '#/$defs/any' }, right: { $ref: '#/$defs/any' }, [`p${index}`]: { type: 'string' } },
    }))
    const any = { anyOf: Object.keys(kinds).map((name) => ({ $ref: `#/$defs/${name}` })) }
    expect(() => check({ $ref: '#/$defs/any', $defs: { any, ...kinds } })).not.toThrow()
  })
})

describe('an API call with a hostile schema', () => {
  test('returns status 200 or 400 in each API without blocking the event loop', async () => {
    await using stack = await startStack()
    const holdMs = await longestHold(async () => {
      for (const [name, schema] of HOSTILE_SCHEMAS) {
        for (const { path, body } of callsWith(schema)) {
          const answer = await stack.post(path, body)
          expect([name, path, [200, 400].includes(answer.status)]).toEqual([name, path, true])
          await answer.body?.cancel()
        }
      }
    })
    expect(holdMs).toBeLessThan(CPU_MS_MAX)
  })

  test('is refused with status 400 and the path of the invalid keyword', async () => {
    await using stack = await startStack()
    const schema = { type: 'array', minItems: 1_000_000_000 }
    const refusals = []
    const calls = callsWith(schema)
    const jobs = calls.slice(0, 1).map(({ path, body }) => ({ path: '/v1/jobs', body: { endpoint: path, body } }))
    for (const { path, body } of [...calls, ...jobs]) {
      const answer = await stack.post(path, body)
      refusals.push([answer.status, JSON.stringify(await answer.json())])
    }
    const paths = ['response_format.json_schema.schema', 'tools[0].function.parameters.properties.a']
    const messagesPaths = ['output_config.format.schema', 'tools.0.input_schema.properties.a']
    const expected = [...paths, ...messagesPaths, ...messagesPaths, `body.${paths[0]}`]
    expect(refusals).toEqual(expected.map((path) => [400, expect.stringContaining(`${path}.minItems`)]))
  })
})

describe('a value generated from a JSON schema', () => {
  test('contains all properties of nested allOf', () => {
    const one = (name: string) => ({ properties: { [name]: { const: name } }, required: [name] })
    const schema = {
      allOf: [{ allOf: [one('a'), one('b')] }, { allOf: [one('c')] }, { $ref: '#/$defs/d' }],
      $defs: { d: one('d') },
    }
    expect(fillSchema(schema)).toEqual({ a: 'a', b: 'b', c: 'c', d: 'd' })
  })

  test('is refused if a type in the schema is unknown', () => {
    const inner = { type: 'object', properties: { a: { type: ['string', 'nul'] } } }
    for (const schema of [{ type: 'objct' }, { type: 7 }, inner]) {
      expect(answerOf(schema), JSON.stringify(schema)).toMatch(
        /^Unknown type .+ in the JSON schema\. Types are: object,/,
      )
      expect(grammarOf(schema)).toContain('must be one of object,')
    }
    expect(answerOf({ type: ['null', 'string'] })).toBe('null')
  })

  test('contains properties named __proto__ and constructor', () => {
    const schema = JSON.parse('{"type":"object","properties":{"__proto__":{"const":1},"constructor":{"const":2}}}')
    expect(JSON.stringify(fillSchema(schema))).toBe('{"__proto__":1,"constructor":2}')
  })
})

describe('the grammar of a JSON schema', () => {
  test('is generated for recursive alternatives with different beginnings', () => {
    const operation = (name: string) => ({
      type: 'object',
      properties: { op: { const: name }, left: { $ref: '#' }, right: { $ref: '#' } },
      required: ['op', 'left', 'right'],
    })
    const schema = { anyOf: [operation('add'), operation('multiply'), { type: 'number' }] }
    expect(grammarOf(schema)).toContain('multiply')
  })

  test.each([
    ['has recursive alternatives with the same beginning', { anyOf: ['x', 'y'].map((name) => twin(name)) }],
    [
      'allows more than 1000 values or alternatives at the same position of the answer',
      { enum: Array.from({ length: 1_001 }, (_, index) => index) },
    ],
    ['contains itself without an end', { anyOf: [{ $ref: '#' }, { type: 'null' }] }],
  ])('is refused if the schema %s', (problem, schema) => {
    expect(() => writeSchemaGrammar(schema, 'tools')).toThrow(
      expect.objectContaining({
        code: 'invalid_value',
        param: 'tools',
        message: `This model cannot follow the JSON schema: it ${problem}.`,
      }),
    )
  })

  test('contains a rule once, even if 500 properties use it', () => {
    const bounded = { type: 'string', maxLength: 255 }
    const all = Object.fromEntries(Array.from({ length: 500 }, (_, index) => [`p${index}`, bounded]))
    const grammar = grammarOf({ type: 'object', properties: all, required: Object.keys(all) })
    expect(grammar.match(/char\{0,255\}/g)).toHaveLength(1)
  })
})

function check(schema: Schema): string {
  new SchemaBounds().check(schema, 'schema')
  return ''
}

/** Schema of nested arrays, each with at least a thousand items. */
function nested(levels: number): Schema {
  return levels === 0 ? { type: 'integer' } : { type: 'array', minItems: 1_000, items: nested(levels - 1) }
}

/** Requests that contain the schema, one for each field in which the API accepts a schema. */
function callsWith(schema: Schema): { path: string; body: object }[] {
  const messages = [{ role: 'user', content: 'Call f.' }]
  const inner = { type: 'object', properties: { a: schema, f: schema }, required: ['a'], ...pick(schema) }
  const call = { model: 'echo-1', messages }
  const format = { type: 'json_schema', json_schema: { name: 'answer', schema } }
  const prompts = [
    { output_config: { format: { type: 'json_schema', schema } } },
    { tools: [{ name: 'f', input_schema: inner }] },
  ]
  const chat = [
    { response_format: format },
    { tools: [{ type: 'function', function: { name: 'f', parameters: inner } }] },
  ]
  return [
    ...chat.map((fields) => ({ path: '/v1/chat/completions', body: { ...call, ...fields, max_tokens: 50 } })),
    ...prompts.map((fields) => ({ path: '/v1/messages', body: { ...call, ...fields, max_tokens: 50 } })),
    ...prompts.map((fields) => ({ path: '/v1/messages/count_tokens', body: { ...call, ...fields } })),
  ]
}

/** Returns the definitions of a schema. Definitions must be at the root, because references begin there. */
function pick({ $defs }: Schema): object {
  return $defs === undefined ? {} : { $defs }
}

function twin(name: string) {
  const properties = { a: { $ref: '#' }, [name]: { const: 1 } }
  return { type: 'object', properties, required: ['a', name] }
}

/** Returns the value that is generated for a schema, as JSON. If the schema is refused, then returns the error message. */
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

/** Generates objects that have keywords of JSON Schema with arbitrary values. */
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
