import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { CODE, scriptedAdapter } from '../../support/sandbox/code-calls.ts'
import { type Stack, startStack } from '../../support/stack.ts'

describe('the code endpoint', () => {
  let stack: Stack
  beforeAll(async () => {
    const sandboxes = [scriptedAdapter(() => ({ type: 'exit', exitCode: 0 }))]
    stack = await startStack({ sandboxes, settings: { CODE_SECONDS_MAX: '60', CODE_RUNS_PER_USER: '2' } })
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  const MISSING = 'missing_required_parameter'

  it.each([
    ['a request without code', { code: undefined }, MISSING, 'code'],
    ['null as code', { code: null }, 'invalid_type', 'code'],
    ['a number as code', { code: 5 }, 'invalid_type', 'code'],
    ['empty code', { code: '' }, 'empty_string', 'code'],
    ['code of whitespace only', { code: ' \n\t\u2003' }, 'invalid_value', 'code'],
    ['code with a NUL character', { code: 'print("\0")' }, 'invalid_value', 'code'],
    ['code of 50,001 characters', { code: '#'.repeat(50_001) }, 'string_above_max_length', 'code'],
    [
      'code of 50,001 characters outside the Basic Multilingual Plane',
      { code: `#${'😀'.repeat(50_000)}` },
      'string_above_max_length',
      'code',
    ],
    ['a request without a language', { lang: undefined }, MISSING, 'lang'],
    ['another language', { lang: 'javascript' }, 'invalid_value', 'lang'],
    ['a language in capitals', { lang: 'Python' }, 'invalid_value', 'lang'],
    ['a timeout of 0 seconds', { timeout: 0 }, 'integer_below_min_value', 'timeout'],
    ['a timeout of half a second', { timeout: 0.5 }, 'invalid_type', 'timeout'],
    ['a timeout that is a string', { timeout: '30' }, 'invalid_type', 'timeout'],
    ['a timeout over the maximum of the operator', { timeout: 61 }, 'integer_above_max_value', 'timeout'],
    ['a library that is not in the sandbox', { libraries: ['numpy', 'torch'] }, 'invalid_value', 'libraries'],
    ['a library with a version', { libraries: ['numpy==2.0'] }, 'invalid_value', 'libraries'],
    ['a library named like a member of Object.prototype', { libraries: ['constructor'] }, 'invalid_value', 'libraries'],
    ['a library that is not a string', { libraries: [1] }, 'invalid_type', 'libraries[0]'],
    ['a library name in place of a list', { libraries: 'numpy' }, 'invalid_type', 'libraries'],
    ['101 libraries', { libraries: new Array(101).fill('json') }, 'array_above_max_length', 'libraries'],
    ['a stream option that is a string', { stream: 'yes' }, 'invalid_type', 'stream'],
  ])('refuses %s with 400 and the name of the field', async (_, more, code, param) => {
    const response = await stack.post(CODE, { code: 'print(1)', lang: 'python', ...more })
    expect(response.status).toBe(400)
    const error = { message: expect.any(String), type: 'invalid_request_error', param, code }
    expect(await response.json()).toEqual({ error })
  })

  it.each([
    ['null for each optional field', { timeout: null, libraries: null, stream: null }],
    ['unknown fields', { language: 'x', session_id: 1 }],
    ['code of 50,000 characters outside the Basic Multilingual Plane', { code: `#${'😀'.repeat(49_999)}` }],
    ['code with a lone surrogate', { code: "print('\ud83d')" }],
    ['an empty list of libraries', { libraries: [] }],
    ['the maximum timeout', { timeout: 60 }],
  ])('accepts %s', async (_, more) => {
    expect((await stack.post(CODE, { code: 'print(1)', lang: 'python', ...more })).status).toBe(200)
  })

  it('names the invalid field of a durable job by the path of that field in the job body', async () => {
    const body = { code: 'print(1)', lang: 'ruby' }
    const response = await stack.post('/v1/jobs', { endpoint: CODE, body })
    expect(response.status).toBe(400)
    expect(await response.json()).toMatchObject({ error: { param: 'body.lang' } })
  })

  it('refuses a user id longer than 256 characters with 400', async () => {
    const headers = { 'x-service-userid': 'u'.repeat(257) }
    const response = await stack.post(CODE, { code: 'print(1)', lang: 'python' }, { headers })
    expect(response.status).toBe(400)
    expect(await response.json()).toMatchObject({ error: { param: 'x-service-userid' } })
  })

  it('returns 429 to a user over the limit of runs per minute, and serves other users', async () => {
    const call = (user: string | undefined, init: RequestInit = {}) => {
      const headers = new Headers(init.headers)
      if (user !== undefined) headers.set('x-service-userid', user)
      return stack.post(CODE, { code: 'print(1)', lang: 'python' }, { headers })
    }
    const durable = { headers: { prefer: 'respond-async' } }
    expect((await call('ada')).status).toBe(200)
    expect((await call('ada', durable)).status).toBe(202)
    const refused = await call('ada')
    expect(refused.status).toBe(429)
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0)
    expect(await refused.json()).toMatchObject({ error: { code: 'rate_limit_exceeded', type: 'requests' } })
    expect((await call('ada', durable)).status).toBe(429)
    const response = {
      model: 'echo-1',
      input: 'hi',
      tools: [{ type: 'code_interpreter', container: { type: 'auto' } }],
    }
    const headers = { 'x-service-userid': 'ada' }
    expect((await stack.post('/v1/responses', response, { headers })).status).toBe(429)
    expect((await stack.post('/v1/responses', { ...response, tools: [] }, { headers })).status).toBe(200)
    for (const user of ['grace', undefined, undefined, undefined]) expect((await call(user)).status).toBe(200)
  })
})
