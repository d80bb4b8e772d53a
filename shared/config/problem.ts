import { z } from 'zod'
import { similarNameOf } from '#shared/lib/similar-name.ts'

/*
 * This file writes the error messages for invalid settings. Each message names the path, the expected values and the given value, which zod's own
 * messages omit.
 */

const SHOWN_MAX = 80
/**
 * Names of fields whose values are never shown, even if invalid. A user may have entered a key in a field that expects the name of an environment
 * variable.
 */
const SECRET = /headers|key|secret|password/i
const TYPO_MAX = 2

type Issue = z.core.$ZodIssue
type JsonSchema = z.core.JSONSchema.BaseSchema

/**
 * Returns one problem in one line, such as `models[0].engine.type: expected one of openai, echo, got 'opneai'`.
 *
 * @param input The whole validated value
 * @param isSecret True to omit the value from the text
 */
export function problemText(issue: Issue, input: unknown, isSecret = false): string {
  const value = valueAt(input, issue.path)
  const mayBeShown = !isSecret && !issue.path.some((step) => SECRET.test(String(step)))
  const isShown = mayBeShown && value !== undefined && issue.code !== 'unrecognized_keys'
  const name = z.core.toDotPath(issue.path)
  return `${name === '' ? '' : `${name}: `}${expectation(issue)}${isShown ? `, got ${shown(value)}` : ''}`
}

export function problemTexts(error: z.ZodError, input: unknown, schema: z.ZodType): string[] {
  return error.issues.map((issue) => {
    const text = problemText(issue, input)
    if (issue.code !== 'unrecognized_keys') return text
    const known = fieldsAt(z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' }), issue.path, input)
    return known.length === 0 ? text : `${text}${meant(issue.keys, known)}. Valid fields: ${known.join(', ')}`
  })
}

function expectation(issue: Issue): string {
  switch (issue.code) {
    case 'invalid_type':
      return issue.input === undefined && issue.message.includes('undefined')
        ? 'is missing'
        : `expected ${kind(issue.expected)}`
    case 'invalid_value':
      return `expected ${issue.values.length > 1 ? 'one of ' : ''}${issue.values.join(', ')}`
    case 'too_small':
      return issue.origin === 'string' ? tooShort(Number(issue.minimum)) : `must be ${issue.minimum} or more`
    case 'too_big':
      return `must be ${issue.maximum} or less`
    case 'unrecognized_keys':
      return `unknown field ${issue.keys.map(shown).join(', ')}`
    case 'invalid_format':
      return issue.format === 'url' ? 'expected a URL such as http://host:port' : issue.message
    default:
      return issue.message
        .replace(/^Invalid discriminator value\. Expected/, 'expected one of')
        .replaceAll(/'(\w+)' ?\|? ?/g, '$1, ')
        .replace(/, $/, '')
  }
}

function tooShort(minimum: number): string {
  return minimum <= 1 ? 'must not be empty' : `must have ${minimum} characters or more`
}

function kind(expected: string): string {
  if (expected === 'int') return 'a whole number'
  return `${/^[aeiou]/.test(expected) ? 'an' : 'a'} ${expected === 'record' ? 'object' : expected}`
}

function valueAt(input: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>((value, key) => (value as Record<PropertyKey, unknown> | undefined)?.[key], input)
}

function shown(value: unknown): string {
  if (typeof value === 'string') return `'${value.replace(/\/\/[^/@\s]*@/g, '//***@').slice(0, SHOWN_MAX)}'`
  return (JSON.stringify(value) ?? String(value)).slice(0, SHOWN_MAX)
}

/**
 * Returns the names of the fields that the schema defines for the object at a path. If the schema has alternatives, then the `type` of the value
 * selects one.
 */
function fieldsAt(schema: JsonSchema, path: readonly PropertyKey[], value: unknown): string[] {
  const own = chosen(schema, value)
  const [key, ...rest] = path
  if (key === undefined) return Object.keys(own.properties ?? {})
  const inner = typeof key === 'number' ? own.items : own.properties?.[String(key)]
  if (typeof inner !== 'object' || Array.isArray(inner)) return []
  return fieldsAt(inner, rest, (value as Record<PropertyKey, unknown>)[key])
}

function chosen(schema: JsonSchema, value: unknown): JsonSchema {
  const options = (schema.anyOf ?? schema.oneOf ?? []) as JsonSchema[]
  const { type } = (value ?? {}) as { type?: unknown }
  const isOf = ({ properties }: JsonSchema) => {
    const own = properties?.type as JsonSchema | undefined
    return own?.const === type || own?.enum?.some((each) => each === type)
  }
  return options.find(isOf) ?? schema
}

function meant(keys: readonly string[], known: readonly string[]): string {
  const [near] = keys.flatMap((key) => similarNameOf(key, known).filter(({ distance }) => distance <= TYPO_MAX))
  return near === undefined ? '' : ` (did you mean ${near.name}?)`
}
