import { expect, test } from 'vitest'
import { z } from 'zod'
import { ServiceError } from '#shared/lib/error.ts'
import { errorFields, logText } from '#shared/log/log.ts'

const SECRET = 'a prompt that nobody may log'

function thrownBy(run: () => unknown): unknown {
  try {
    run()
  } catch (error) {
    return error
  }
  throw new Error('the function did not throw')
}

test.each<[string, () => unknown]>([
  ['invalid JSON', () => thrownBy(() => JSON.parse(`${SECRET}`))],
  ["a TypeError, such as that of the operator 'in'", () => thrownBy(() => 'x' in (SECRET as unknown as object))],
  ['a URL with its credentials', () => thrownBy(() => new URL(`//${SECRET}`))],
  ['a value that a schema refuses', () => thrownBy(() => z.strictObject({}).parse({ [SECRET]: 1 }))],
  [
    'the row that a database refused',
    () => Object.assign(new Error('null value'), { code: '23502', detail: `Failing row contains (${SECRET})` }),
  ],
  ["the message about a caller's request", () => new ServiceError('invalid_value', `'${SECRET}' is no version`)],
  [
    'the causes of an error for a caller',
    () => new ServiceError('invalid_value', 'No.', { cause: new Error('x', { cause: new Error(SECRET) }) }),
  ],
  ['the message of an unexpected error inside a call', () => ServiceError.from(new Error(SECRET))],
  ['a message with lines like stack frames', () => ServiceError.from(new Error(`x\n    at ${SECRET}:1:1\n    at y`))],
  ['a thrown string', () => SECRET],
])('the log entry of an error omits the secret in %s', (_what, make) => {
  const error = make()
  expect(JSON.stringify(errorFields(error))).not.toContain(SECRET)
  expect(logText(JSON.stringify({ level: 50, time: 0, msg: 'x', err: errorFields(error) }))).not.toContain(SECRET)
})

test('the log entry of a broker, store or disk error has its message, code, causes and stack frames', () => {
  const cause = Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:9092'), { code: 'ECONNREFUSED' })
  const fields = errorFields(new ServiceError('overloaded', 'Kafka is not reachable.', { cause }))
  expect(fields).toMatchObject({
    type: 'ServiceError',
    code: 'overloaded',
    message: 'Kafka is not reachable.',
    stack: expect.stringMatching(/^ {4}at .*log\.test\.ts\S*:\d+:\d+/),
    cause: { type: 'Error', code: 'ECONNREFUSED', message: 'connect ECONNREFUSED 127.0.0.1:9092' },
  })
  const line = logText(JSON.stringify({ level: 40, time: 0, msg: 'cannot start yet', err: fields }))
  expect(line).toContain('cannot start yet: Kafka is not reachable.: connect ECONNREFUSED 127.0.0.1:9092')
})

test('the log entry of an unexpected error has its class and its stack position', () => {
  const fields = errorFields(ServiceError.from(thrownBy(() => (undefined as unknown as { x: number }).x)))
  expect(fields).toMatchObject({ code: 'internal_error', cause: { type: 'TypeError' } })
  expect(JSON.stringify(fields)).toMatch(/log\.test\.ts\S*:\d+/)
})
