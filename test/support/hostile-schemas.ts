/** Returns the value of the keyword `properties` of a JSON Schema: `count` properties named p0, p1 and so on, with the schemas from `schema`. */
export function properties(count: number, schema: (index: number) => unknown): Record<string, unknown> {
  return Object.fromEntries(Array.from({ length: count }, (_, index) => [`p${index}`, schema(index)]))
}

/** Returns a schema with nested alternatives that begin alike, so that each of the `levels` doubles the number of possible parse paths. */
function ambiguous(levels: number): Record<string, unknown> {
  const next = (index: number, name: string) => ({
    type: 'object',
    properties: { a: { $ref: `#/$defs/p${index + 1}` }, [name]: { const: 1 } },
    required: ['a', name],
  })
  const level = (index: number) =>
    index === levels ? { const: 1 } : { anyOf: [next(index, 'x'), next(index, 'y'), { type: 'null' }] }
  return { $ref: '#/$defs/p0', $defs: properties(levels + 1, level) }
}

/** `__proto__` and similar names as own properties, as JSON allows. */
const PROTOTYPE_NAMES = JSON.parse(
  '{"__proto__":{"type":"integer"},"constructor":{"type":"null"},"toString":{"type":"boolean"}}',
) as Record<string, unknown>

/** Schemas that expand far beyond their size, or that are contradictory. The service must survive each one. */
export const HOSTILE_SCHEMAS: readonly (readonly [string, Record<string, unknown>])[] = [
  ['a billion items', { type: 'array', minItems: 1_000_000_000 }],
  ['a billion items of any type', { type: 'array', minItems: 1_000_000_000, items: true }],
  ['twenty million properties', { type: 'object', minProperties: 20_000_000 }],
  ['infinitely many properties', { type: 'object', minProperties: Number.POSITIVE_INFINITY }],
  ['a billion characters', { type: 'string', minLength: 1_000_000_000 }],
  ['arrays of arrays of items', nest(6, (items) => ({ type: 'array', minItems: 1_000, items }))],
  ['an allOf of 8,000 parts', { allOf: Object.entries(properties(8_000, () => ({}))).map(part) }],
  [
    '2,000 references to a text of 100,000 characters',
    {
      type: 'object',
      properties: properties(2_000, () => ({ $ref: '#/$defs/long', type: 'string' })),
      $defs: { long: { enum: ['x'.repeat(100_000)] } },
    },
  ],
  ['an enum of 50,000 values', { enum: Object.keys(properties(50_000, () => 1)) }],
  [
    '3,000 alternatives over 2,000 properties',
    { properties: properties(2_000, () => ({})), anyOf: Array.from({ length: 3_000 }, () => ({ properties: {} })) },
  ],
  ['30 levels of alternatives with a common prefix', ambiguous(30)],
  ['40 levels of doubled references', doubling(40)],
  ['a chain of 5,000 references', chain(5_000)],
  ['an allOf that refers to the root', { allOf: [{ $ref: '#' }] }],
  ['an anyOf that refers to the root', { anyOf: [{ $ref: '#' }, { type: 'string' }] }],
  ['a reference to the root', { $ref: '#' }],
  [
    'two definitions that refer to each other',
    { $ref: '#/$defs/a', $defs: { a: { $ref: '#/$defs/b' }, b: { $ref: '#/$defs/a' } } },
  ],
  [
    'a required property that refers to the root',
    { type: 'object', properties: { a: { $ref: '#' } }, required: ['a'] },
  ],
  [
    'two alternatives that refer to the root in a common property',
    {
      anyOf: ['x', 'y'].map((name) => ({
        type: 'object',
        properties: { a: { $ref: '#' }, [name]: { const: 1 } },
        required: ['a', name],
      })),
    },
  ],
  ['a reference that is not a JSON pointer', { $ref: '#/%zz' }],
  ['a reference to a missing definition', { $ref: '#/$defs/nothing' }],
  ['a reference to a prototype', { $ref: '#/constructor/prototype' }],
  ['a format named like a member of Object.prototype', { type: 'string', format: 'constructor' }],
  ['properties named like members of Object.prototype', { type: 'object', properties: PROTOTYPE_NAMES }],
  [
    'required names of members of Object.prototype',
    { type: 'object', required: ['__proto__', 'toString', 'hasOwnProperty'] },
  ],
  ['strings in place of numbers', { type: 'array', minItems: 'many', maxItems: {}, items: { minLength: [] } }],
  ['lists and numbers in place of schemas', { properties: [], items: 7, anyOf: [null, 3], allOf: [[]] }],
  [
    'negative limits and a negative multipleOf',
    { type: 'array', minItems: -3, items: { type: 'integer', multipleOf: -0.5 } },
  ],
  ['a pattern with exponential backtracking', { type: 'string', pattern: '^(a+)+$', minLength: 100 }],
]

function part([name, schema]: [string, unknown]): unknown {
  return { properties: { [name]: schema }, required: [name] }
}

function nest(levels: number, wrap: (inner: unknown) => unknown): Record<string, unknown> {
  let schema: unknown = { type: 'integer' }
  for (let level = 0; level < levels; level++) schema = wrap(schema)
  return schema as Record<string, unknown>
}

function doubling(levels: number): Record<string, unknown> {
  const level = (index: number) => ({
    type: 'object',
    properties: { a: { $ref: `#/$defs/p${index + 1}` }, b: { $ref: `#/$defs/p${index + 1}` } },
    required: ['a', 'b'],
  })
  return { $ref: '#/$defs/p0', $defs: properties(levels, level) }
}

function chain(length: number): Record<string, unknown> {
  return { $ref: '#/$defs/p0', $defs: properties(length, (index) => ({ $ref: `#/$defs/p${index + 1}` })) }
}
