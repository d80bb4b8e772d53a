import { type EmbedInput, INPUTS_MAX } from '#schemas/embeddings.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * Inputs of a call (docs/reference/compatibility.md, Embedding requests): one text, several texts, one token list, or
 * several token lists. The type of the first element decides which.
 *
 * Checked by hand instead of by a schema, because a call may contain 300,000 tokens.
 *
 * @param field Name of the field, such as `input`
 * @throws ServiceError a 400 with the path of the first problem, such as `input[3]`
 */
export function readInputs(input: unknown, field: string): EmbedInput[] {
  if (input === undefined || input === null) {
    throw refuse('missing_required_parameter', field, `Missing required parameter: '${field}'.`)
  }
  if (typeof input === 'string') return [text(input, field)]
  if (!Array.isArray(input)) throw wrongType(field, 'a string or an array', input)
  if (input.length === 0) throw empty('array', field)
  if (typeof input[0] === 'number') return [tokens(input, field)]
  if (input.length > INPUTS_MAX) {
    const message = `Invalid '${field}': array too long. Expected an array with maximum length ${INPUTS_MAX}, but got an array with length ${input.length} instead.`
    throw refuse('array_above_max_length', field, message)
  }
  return Array.isArray(input[0])
    ? input.map((item, index) => tokens(item, `${field}[${index}]`))
    : input.map((item, index) => text(item, `${field}[${index}]`))
}

function text(value: unknown, path: string): string {
  if (typeof value !== 'string') throw wrongType(path, 'a string', value)
  if (value === '') throw empty('string', path)
  return value
}

function tokens(value: unknown, path: string): number[] {
  if (!Array.isArray(value)) throw wrongType(path, 'an array of tokens', value)
  if (value.length === 0) throw empty('array', path)
  for (let i = 0; i < value.length; i++) {
    const id: unknown = value[i]
    if (!Number.isInteger(id)) throw wrongType(`${path}[${i}]`, 'an integer', id)
    if ((id as number) < 0) {
      const message = `Invalid '${path}[${i}]': integer below minimum value. Expected a value >= 0, but got ${id} instead.`
      throw refuse('integer_below_min_value', `${path}[${i}]`, message)
    }
    // Whether a token exists is checked by the worker, because only the worker has the vocabulary of the model.
    if (!Number.isSafeInteger(id)) {
      const message = `Invalid '${path}[${i}]': integer above maximum value. Expected a value <= ${Number.MAX_SAFE_INTEGER}, but got ${id} instead.`
      throw refuse('integer_above_max_value', `${path}[${i}]`, message)
    }
  }
  return value
}

function empty(kind: 'array' | 'string', path: string): ServiceError {
  const message = `Invalid '${path}': empty ${kind}. Expected ${kind === 'array' ? 'an' : 'a'} ${kind} with minimum length 1, but got an empty ${kind} instead.`
  return refuse(`empty_${kind}`, path, message)
}

function wrongType(path: string, expected: string, value: unknown): ServiceError {
  return refuse(
    'invalid_type',
    path,
    `Invalid type for '${path}': expected ${expected}, but got ${kindOf(value)} instead.`,
  )
}

function kindOf(value: unknown): string {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'an array'
  if (typeof value === 'object') return 'an object'
  return Number.isInteger(value) ? 'an integer' : `a ${typeof value === 'number' ? 'decimal number' : typeof value}`
}

function refuse(code: ConstructorParameters<typeof ServiceError>[0], param: string, message: string): ServiceError {
  return new ServiceError(code, message, { param })
}
