type Schema = Record<string, unknown>

/** Below this depth optional properties and items are left out; below twice of it references end. */
const DEPTH_MAX = 4
/** Most values made for one schema: keeps a schema that branches into itself from growing without end. */
const VALUES_MAX = 10_000

interface Filling {
  readonly root: Schema
  valuesLeft: number
}

/**
 * Makes a small value that a JSON Schema accepts, the same one each time.
 *
 * Knows const, enum, default, examples, type (also a list), properties, required, items, prefixItems, minItems,
 * length and number bounds, multipleOf, common formats, anyOf, oneOf, allOf, and $ref into the schema itself. Does not
 * know pattern, not, if/then, patternProperties, uniqueItems.
 *
 * @param root The schema; also where `#/…` references point
 * @param name Name of the value; texts are made of it
 */
export function fillSchema(root: Schema, name = 'value'): unknown {
  return fill(root, { root, valuesLeft: VALUES_MAX }, name, 0)
}

function fill(schema: unknown, filling: Filling, name: string, depth: number): unknown {
  if (!isSchema(schema)) return name
  if (filling.valuesLeft-- <= 0) return null
  if (typeof schema.$ref === 'string')
    return depth > 2 * DEPTH_MAX ? null : fill(follow(schema, filling.root), filling, name, depth + 1)
  if ('const' in schema) return schema.const
  if (Array.isArray(schema.enum)) return schema.enum[0]
  if ('default' in schema) return schema.default
  if (Array.isArray(schema.examples) && schema.examples.length > 0) return schema.examples[0]
  const alternatives = [schema.anyOf, schema.oneOf].find(Array.isArray)
  if (alternatives) {
    const { anyOf: _anyOf, oneOf: _oneOf, ...base } = schema
    // Deep down the last alternative is the likelier way out: "null" and leaves are written last.
    return fill(
      merge(base, resolve(alternatives.at(depth < DEPTH_MAX ? 0 : -1), filling.root)),
      filling,
      name,
      depth + 1,
    )
  }
  if (Array.isArray(schema.allOf)) {
    const { allOf, ...base } = schema
    return fill(
      [...allOf].reduce((all, part) => merge(all, resolve(part, filling.root)), base),
      filling,
      name,
      depth + 1,
    )
  }
  return fillType(schema, filling, name, depth)
}

function fillType(schema: Schema, filling: Filling, name: string, depth: number): unknown {
  switch (typeOf(schema)) {
    case 'object':
      return fillObject(schema, filling, depth)
    case 'array':
      return fillArray(schema, filling, name, depth)
    case 'integer':
      return fillNumber(schema, true)
    case 'number':
      return fillNumber(schema, false)
    case 'boolean':
      return true
    case 'null':
      return null
    default:
      return fillString(schema, name)
  }
}

function typeOf(schema: Schema): unknown {
  if (Array.isArray(schema.type)) return schema.type[0]
  if (schema.type !== undefined) return schema.type
  if (schema.properties !== undefined) return 'object'
  return schema.items === undefined && schema.prefixItems === undefined ? 'string' : 'array'
}

function fillObject(schema: Schema, filling: Filling, depth: number): Schema {
  const properties = isSchema(schema.properties) ? schema.properties : {}
  const required = Array.isArray(schema.required) ? schema.required.map(String) : []
  const names = depth < DEPTH_MAX ? new Set([...Object.keys(properties), ...required]) : new Set(required)
  const additional = isSchema(schema.additionalProperties) ? schema.additionalProperties : {}
  for (let i = 1; names.size < Number(schema.minProperties ?? 0); i++) names.add(`key${i}`)
  return Object.fromEntries(
    [...names].map((name) => [name, fill(properties[name] ?? additional, filling, name, depth + 1)]),
  )
}

function fillArray(schema: Schema, filling: Filling, name: string, depth: number): unknown[] {
  const prefix = Array.isArray(schema.prefixItems) ? schema.prefixItems : []
  const usual = depth < DEPTH_MAX && prefix.length === 0 ? 1 : prefix.length
  const count = Math.min(Math.max(usual, Number(schema.minItems ?? 0)), Number(schema.maxItems ?? Infinity))
  return Array.from({ length: count }, (_, i) => fill(prefix[i] ?? schema.items ?? {}, filling, name, depth + 1))
}

function fillNumber(schema: Schema, isInteger: boolean): number {
  const step = Number(schema.multipleOf ?? (isInteger ? 1 : 0))
  const above = Number(schema.exclusiveMinimum ?? -Infinity)
  const below = Number(schema.exclusiveMaximum ?? Infinity)
  const low = Math.max(Number(schema.minimum ?? -Infinity), above)
  const high = Math.min(Number(schema.maximum ?? Infinity), below)
  if (step === 0) {
    if (low > -Infinity && high < Infinity) return (low + high) / 2
    return low > -Infinity ? low + 1 : Math.min(1, high - 1)
  }
  let value = low > -Infinity ? Math.ceil(low / step) * step : Math.min(step, Math.floor(high / step) * step)
  if (value <= above) value += step
  if (value >= below) value -= step
  return value
}

const FORMATS: Record<string, string> = {
  date: '2026-01-02',
  time: '03:04:05Z',
  'date-time': '2026-01-02T03:04:05Z',
  email: 'user@example.com',
  uri: 'https://example.com/',
  uuid: '00000000-0000-4000-8000-000000000000',
  ipv4: '192.0.2.1',
  ipv6: '2001:db8::1',
  hostname: 'example.com',
}

function fillString(schema: Schema, name: string): string {
  const format = FORMATS[String(schema.format)]
  if (format !== undefined) return format
  const long = name.padEnd(Math.min(Number(schema.minLength ?? 0), 100_000), 'x')
  return long.slice(0, Number(schema.maxLength ?? long.length))
}

/** `over` wins; properties and required of both are kept. */
function merge(base: Schema, over: Schema): Schema {
  const merged = { ...base, ...over }
  if (isSchema(base.properties) && isSchema(over.properties))
    merged.properties = { ...base.properties, ...over.properties }
  if (Array.isArray(base.required) && Array.isArray(over.required))
    merged.required = [...base.required, ...over.required]
  return merged
}

function resolve(schema: unknown, root: Schema): Schema {
  if (!isSchema(schema)) return {}
  return typeof schema.$ref === 'string' ? follow(schema, root) : schema
}

/** What a local reference points at (RFC 6901); anything else becomes a schema that accepts all. */
function follow(schema: Schema, root: Schema): Schema {
  const { $ref, ...rest } = schema
  let target: unknown = root
  for (const step of String($ref).split('/').slice(1)) {
    const key = decodeURIComponent(step).replaceAll('~1', '/').replaceAll('~0', '~')
    target = isSchema(target) || Array.isArray(target) ? (target as Schema)[key] : undefined
  }
  return merge(isSchema(target) ? target : {}, rest)
}

function isSchema(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
