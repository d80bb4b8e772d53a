import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import { ERRORS, type ErrorCode } from '#schemas/error.ts'
import type { Wording } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import { DEPTH_MAX } from '#shared/json/read.ts'
import { errorHeaders, messagesErrorBody, messagesStatus, openaiErrorBody, openaiStatus } from '#shared/kinds/errors.ts'
import { ServiceError } from '#shared/lib/error.ts'

const codes = Object.keys(ERRORS) as ErrorCode[]

/** Validates a body, which must be invalid, and returns the error as [code, param, message]. */
function problem(schema: z.ZodType, body: unknown, wording: Wording = 'openai') {
  try {
    parseBody(schema, body, wording)
  } catch (error) {
    if (error instanceof ServiceError) return [error.code, error.param, error.message]
    throw error
  }
  return undefined
}

function nested(levels: number): unknown {
  return JSON.parse(`${'['.repeat(levels)}${']'.repeat(levels)}`)
}

describe('errors in the OpenAI format', () => {
  test('have the keys message, type, param and code, with null for an absent value', () => {
    const error = new ServiceError('missing_api_key', 'You did not provide an API key.')
    expect(openaiErrorBody(error)).toEqual({
      error: {
        message: 'You did not provide an API key.',
        type: 'invalid_request_error',
        param: null,
        code: null,
      },
    })
  })

  test.each([
    ['invalid_api_key', 401, 'invalid_request_error', 'invalid_api_key'],
    ['model_not_found', 404, 'invalid_request_error', 'model_not_found'],
    ['not_found', 404, 'invalid_request_error', null],
    ['request_timeout', 408, 'server_error', 'request_timeout'],
    ['rate_limit_exceeded', 429, 'requests', 'rate_limit_exceeded'],
    ['internal_error', 500, 'server_error', 'internal_error'],
    ['overloaded', 503, 'server_error', 'overloaded'],
    ['timeout', 504, 'server_error', 'timeout'],
  ] as const)('for %s have the status %i, the type %s and the code %s', (code, status, type, shown) => {
    const error = new ServiceError(code, 'x')
    expect(openaiStatus(error)).toBe(status)
    expect(openaiErrorBody(error).error).toMatchObject({ type, code: shown })
  })
})

describe('errors in the Anthropic format', () => {
  test.each([
    ['invalid_value', 400, 'invalid_request_error'],
    ['invalid_api_key', 401, 'authentication_error'],
    ['permission_denied', 403, 'permission_error'],
    ['model_not_found', 404, 'not_found_error'],
    ['method_not_supported', 405, 'invalid_request_error'],
    ['request_timeout', 408, 'timeout_error'],
    ['request_too_large', 413, 'request_too_large'],
    ['unsupported_media_type', 415, 'invalid_request_error'],
    ['rate_limit_exceeded', 429, 'rate_limit_error'],
    ['internal_error', 500, 'api_error'],
    ['upstream_error', 502, 'api_error'],
    ['overloaded', 529, 'overloaded_error'],
    ['timeout', 504, 'timeout_error'],
  ] as const)('for %s have the status %i and the type %s', (code, status, type) => {
    const error = new ServiceError(code, 'x')
    expect(messagesStatus(error)).toBe(status)
    expect(messagesErrorBody(error, 'req_1')).toEqual({
      type: 'error',
      error: { type, message: 'x' },
      request_id: 'req_1',
    })
  })

  test('contain the path of the field exactly once, at the beginning of the message', () => {
    const bare = new ServiceError('missing_required_parameter', 'Field required', { param: 'max_tokens' })
    const said = new ServiceError('invalid_value', 'model: no', { param: 'model' })
    expect(messagesErrorBody(bare, 'r').error.message).toBe('max_tokens: Field required')
    expect(messagesErrorBody(said, 'r').error.message).toBe('model: no')
  })

  test('have array indexes in dotted form, such as messages.2.content', () => {
    const param = 'messages[2].content[10].text'
    const bare = new ServiceError('missing_required_parameter', 'Field required', { param })
    const said = new ServiceError('invalid_value', `${param}: no such [3]`, { param })
    expect(messagesErrorBody(bare, 'r').error.message).toBe('messages.2.content.10.text: Field required')
    expect(messagesErrorBody(said, 'r').error.message).toBe('messages.2.content.10.text: no such [3]')
  })
})

describe('error headers', () => {
  test.each([
    [undefined, '2'],
    [1, '1'],
    [1_001, '2'],
    [60_000, '60'],
    [900_000, '60'],
  ])('with a retryAfterMs of %s include Retry-After: %s', (retryAfterMs, seconds) => {
    const options = retryAfterMs === undefined ? {} : { retryAfterMs }
    expect(errorHeaders(new ServiceError('overloaded', 'x', options))['retry-after']).toBe(seconds)
  })

  test('include Retry-After only for a retryable 409, 429 or 503, and WWW-Authenticate only for 401', () => {
    for (const code of codes) {
      const headers = errorHeaders(new ServiceError(code, 'x'))
      const status = ERRORS[code].status as number
      const isTemporary = [409, 429, 503].includes(status) && SHOULD_RETRY[code] !== 'false'
      expect('retry-after' in headers).toBe(isTemporary)
      expect(headers['www-authenticate']).toBe(status === 401 ? 'Bearer' : undefined)
    }
  })

  /**
   * Expected values of the header `x-should-retry`. For codes that are not listed, the header is absent, and SDKs apply their own rule: they
   * retry 408, 409, 429 and 5xx.
   */
  const SHOULD_RETRY: Partial<Record<(typeof codes)[number], 'true' | 'false'>> = {
    ...{ request_timeout: 'true', idempotency_key_in_use: 'true' },
    // The state of the job causes these conflicts and will not change soon, so a retry would get the same error.
    ...{ job_not_finished: 'false', job_already_finished: 'false', job_cancelled: 'false' },
    // The service itself has already retried these calls, or they have used up their time.
    ...{ upstream_error: 'false', upstream_timeout: 'false', worker_lost: 'false', sandbox_lost: 'false' },
    ...{ timeout: 'false', job_expired: 'false', slow_reader: 'false' },
    // Only the operator can fix the causes of these errors, so an early retry would get the same error.
    ...{ upstream_refused: 'false', jobs_unavailable: 'false' },
    // A retry does not help before the next month, or before an operator raises the budget.
    ...{ insufficient_quota: 'false' },
  }

  test.each(codes)('of %s include the expected value of x-should-retry for the SDKs', (code) => {
    expect(errorHeaders(new ServiceError(code, 'x'))['x-should-retry']).toBe(SHOULD_RETRY[code])
    // The headers of an error that is stored with a job: no Retry-After, because the error is final.
    expect(errorHeaders(new ServiceError(code, 'x', { retryAfterMs: 9 }), true)).toEqual({ 'x-should-retry': 'false' })
  })

  test('include x-should-retry for every 409, 502 and 504, with the value true if job_not_finished has a Retry-After', () => {
    const conflicts = codes.filter((code) => [409, 502, 504].includes(ERRORS[code].status))
    for (const code of conflicts) expect(errorHeaders(new ServiceError(code, 'x'))).toHaveProperty('x-should-retry')
    const early = errorHeaders(new ServiceError('job_not_finished', 'x', { retryAfterMs: 2_000 }))
    expect(early).toEqual({ 'retry-after': '2', 'x-should-retry': 'true' })
  })

  test('omit x-should-retry for an upstream failure with Retry-After, so that clients retry', () => {
    for (const code of ['upstream_error', 'upstream_timeout'] as const)
      expect(errorHeaders(new ServiceError(code, 'x', { retryAfterMs: 9_500 }))).toEqual({ 'retry-after': '10' })
  })
})

describe('the first problem of a request body', () => {
  const Part = z.discriminatedUnion('type', [
    z.looseObject({ type: z.literal('text'), text: z.string() }),
    z.looseObject({ type: z.literal('image'), image: z.looseObject({ url: z.string().min(1) }) }),
  ])
  const Body = z.looseObject({
    model: z.string().min(1),
    n: z.int().min(1).max(5).nullish(),
    temperature: z.number().min(0, 'decimal').max(2, 'decimal').nullish(),
    stop: z.union([z.string(), z.array(z.string()).min(1).max(4)]).nullish(),
    list: z.array(z.int()).min(2).nullish(),
    content: z.union([z.string(), z.array(Part)]).nullish(),
    effort: z.enum(['low', 'high']).nullish(),
    labels: z.record(z.string().max(3), z.string().max(2)).nullish(),
    name: z
      .string()
      .regex(/^[a-z]+$/)
      .nullish(),
  })
  const bounds = 'Expected a value <='

  test.each([
    [{}, 'missing_required_parameter', 'model', "Missing required parameter: 'model'."],
    [[], 'invalid_type', null, "Invalid type for 'body': expected an object, but got an array instead."],
    [{ model: 5 }, 'invalid_type', 'model', "Invalid type for 'model': expected a string, but got an integer instead."],
    [{ model: null }, 'invalid_type', 'model', "Invalid type for 'model': expected a string, but got null instead."],
    [
      { model: '' },
      'empty_string',
      'model',
      "Invalid 'model': empty string. Expected a string with minimum length 1, but got an empty string instead.",
    ],
    [
      { temperature: '1' },
      'invalid_type',
      'temperature',
      "Invalid type for 'temperature': expected a number, but got a string instead.",
    ],
    [
      { temperature: 5 },
      'decimal_above_max_value',
      'temperature',
      `Invalid 'temperature': decimal above maximum value. ${bounds} 2, but got 5 instead.`,
    ],
    [
      { temperature: -0.5 },
      'decimal_below_min_value',
      'temperature',
      "Invalid 'temperature': decimal below minimum value. Expected a value >= 0, but got -0.5 instead.",
    ],
    [
      { n: 9 },
      'integer_above_max_value',
      'n',
      `Invalid 'n': integer above maximum value. ${bounds} 5, but got 9 instead.`,
    ],
    [
      { n: 0 },
      'integer_below_min_value',
      'n',
      "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.",
    ],
    [{ n: 1.5 }, 'invalid_type', 'n', "Invalid type for 'n': expected an integer, but got a decimal number instead."],
    [
      { stop: [] },
      'empty_array',
      'stop',
      "Invalid 'stop': empty array. Expected an array with minimum length 1, but got an empty array instead.",
    ],
    [
      { stop: ['', '', '', '', ''] },
      'array_above_max_length',
      'stop',
      "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 5 instead.",
    ],
    [
      { list: [1] },
      'array_below_min_length',
      'list',
      "Invalid 'list': array too short. Expected an array with minimum length 2, but got an array with length 1 instead.",
    ],
    [
      { stop: 1 },
      'invalid_type',
      'stop',
      "Invalid type for 'stop': expected a string or an array, but got an integer instead.",
    ],
    [
      { stop: ['a', 1] },
      'invalid_type',
      'stop[1]',
      "Invalid type for 'stop[1]': expected a string, but got an integer instead.",
    ],
    [{ effort: 'huge' }, 'invalid_value', 'effort', "Invalid value: 'huge'. Supported values are: 'low', 'high'."],
    [
      { content: [{ type: 'video' }] },
      'invalid_value',
      'content[0].type',
      "Invalid value: 'video'. Supported values are: 'text', 'image'.",
    ],
    [
      { content: [{ text: 'a' }] },
      'missing_required_parameter',
      'content[0].type',
      "Missing required parameter: 'content[0].type'.",
    ],
    [
      {
        content: [
          { type: 'text', text: '' },
          { type: 'image', image: {} },
        ],
      },
      'missing_required_parameter',
      'content[1].image.url',
      "Missing required parameter: 'content[1].image.url'.",
    ],
    [
      { labels: { abcd: '' } },
      'string_above_max_length',
      'labels.abcd',
      "Invalid 'labels.abcd': string too long. Expected a string with maximum length 3, but got a string with length 4 instead.",
    ],
    [
      { name: 'A' },
      'invalid_value',
      'name',
      "Invalid 'name': string does not match pattern. Expected a string that matches the pattern '^[a-z]+$'.",
    ],
  ])('of %j is reported as %s at %s', (body, code, param, message) => {
    const whole = code === 'missing_required_parameter' && param === 'model' ? body : withModel(body)
    expect(problem(Body, whole)).toEqual([code, param, message])
  })

  function withModel(body: object): unknown {
    return Array.isArray(body) ? body : { model: 'm', ...body }
  }

  test.each([
    [{ n: 9, model: 'm' }, 'n', 'Input should be less than or equal to 5'],
    [{ model: 'm', n: 'a' }, 'n', 'Input should be a number, not a string'],
    [{}, 'model', 'Field required'],
    [{ model: 'm', stop: ['', '', '', '', ''] }, 'stop', 'List should have at most 4 items, not 5'],
    [{ model: 'm', effort: 'x' }, 'effort', "Input should be 'low' or 'high', not 'x'"],
  ])('of %j is reported in the Anthropic format at %s: %s', (body, param, message) => {
    expect(problem(Body, body, 'messages')?.slice(1)).toEqual([param, message])
  })

  test('is reported with a shortened value if the value has 10,000 characters', () => {
    const message = problem(Body, { model: 'm', effort: 'x'.repeat(10_000) })?.[2]
    expect(message?.length).toBeLessThan(200)
  })

  test('is the nesting depth of the body if the depth exceeds the limit', () => {
    expect(problem(z.unknown(), nested(DEPTH_MAX))).toBeUndefined()
    expect(problem(z.unknown(), nested(DEPTH_MAX + 1))?.[0]).toBe('invalid_value')
    expect(problem(z.unknown(), nested(200_000))?.[0]).toBe('invalid_value')
  })

  test('is never a lone surrogate, because parsing replaces lone surrogates by U+FFFD', () => {
    const body = { a: ['\ud800x', { '\udc00': '😀' }], b: { c: 1 } }
    const sound = parseBody(z.unknown(), body, 'openai') as typeof body
    expect(sound).toEqual({ a: ['\ufffdx', { '\ufffd': '😀' }], b: { c: 1 } })
    expect(sound.b).toBe(body.b)
    expect(body.a[0]).toBe('\ud800x')
  })
})
