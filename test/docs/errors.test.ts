import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { z } from 'zod'
import { ERRORS, type ErrorCode } from '#schemas/error.ts'
import { nextStepOf, REMEDIES } from '#services/ingress/admin/next-step.ts'
import { problemError } from '#services/ingress/body/problem.ts'
import { UPSTREAM_REMEDIES, upstreamRemedyOf } from '#shared/doctor/calls.ts'
import { errorHeaders } from '#shared/kinds/errors.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Code and status of each table row that starts with an error code. */
const ROWS = [...readFileSync('docs/reference/errors.md', 'utf8').matchAll(/^\| `(\w+)` \| (\d{3}) \|/gm)].map(
  ([, code = '', status]) => [code, Number(status)],
)

it('docs/reference/errors.md has one row per error code, with its status', () => {
  const expected = Object.entries(ERRORS).map(([code, { status }]) => [code, status])
  expect(ROWS.toSorted(), 'rows of docs/reference/errors.md, which must equal schemas/error.ts').toEqual(
    expected.toSorted(),
  )
})

it('docs/reference/errors.md has the remedy of each code that the API, the command line and the console show', () => {
  const page = readFileSync('docs/reference/errors.md', 'utf8')
  const shown = [...page.matchAll(/^\| `(\w+)` \| \d{3} \| .* \| (.*) \|$/gm)].map(([, code, remedy = '']) => [
    code,
    remedy.replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1'),
  ])
  const ofOperators = (text: string) => ` Operators: ${text.charAt(0).toLowerCase()}${text.slice(1)}`
  const expected = Object.entries(REMEDIES).map(([code, [caller, operator]]) => [
    code,
    caller + (operator === undefined ? '' : ofOperators(operator)),
  ])
  expect(Object.fromEntries(shown)).toEqual(Object.fromEntries(expected))
})

const ROW = { id: 'req_1', jobId: null, firstOutputMs: null }

it('the suggested next step after a failed request is different for operators and for other callers', () => {
  const failed = { ...ROW, errorCode: 'upstream_error', errorMessage: 'It failed.', errorParam: null }
  const step = 'Use another model, or try again later.'
  expect(nextStepOf(failed, true)).toBe(`The caller: ${step} The operator: ${UPSTREAM_REMEDIES.upstream_error}`)
  expect(nextStepOf(failed, false)).toBe(`${step} If the error persists, send the request id req_1 to the operator.`)
  const paused = { ...failed, errorMessage: 'The upstream keeps failing, so calls are paused until 13:05:09 UTC.' }
  expect(nextStepOf(paused, true)).toBe(
    `The caller: Retry after 13:05:09 UTC, or use another model. The operator: ${UPSTREAM_REMEDIES.upstream_error}`,
  )
  const busy = { ...failed, errorCode: 'overloaded', upstreamMessage: 'CUDA out of memory' }
  expect(nextStepOf({ ...busy, worker: 'w1' }, true), 'call that the upstream server refused').toContain(
    upstreamRemedyOf('overloaded', 'CUDA out of memory'),
  )
  expect(nextStepOf({ ...busy, worker: null }, true), 'call that no worker ran').toContain('npx sluice doctor')
  expect(nextStepOf({ ...failed, errorCode: null }, true)).toBeNull()
})

it.each([
  ['upstream_error', 'Failed. Retry after 7 s, or use another model.', {}, /^Retry after 7 s, or use another model\./],
  ['upstream_error', 'Failed.', { firstOutputMs: 5 }, /^Use another model, or try again later\./],
  ['upstream_error', 'Failed.', { jobId: 'job_1' }, /^Use another model, or redrive the job later\./],
  ['overloaded', 'Busy.', {}, /^Retry after the time in the header Retry-After, or use another model\./],
  ['overloaded', 'Busy.', { jobId: 'job_1' }, /^Redrive the job later, or use another model\./],
  ['overloaded', 'Busy.', { firstOutputMs: 5 }, /^Try again later, or use another model\./],
  ['worker_lost', 'Lost.', { firstOutputMs: 5 }, /^Send the request again\. If the error/],
  ['worker_lost', 'Lost.', {}, /^Do not retry\. If the error/],
  ['invalid_api_key', 'Incorrect API key.', {}, /Ask the operator of the service for a key/],
])('the next step after %s with the message "%s" depends on the recorded call %j', (errorCode, message, call, step) => {
  const row = { ...ROW, errorCode, errorMessage: message, errorParam: null, ...call }
  expect(nextStepOf(row, false)).toMatch(step)
})

it('no next step depends on a header that the reader must look for', () => {
  for (const errorCode of Object.keys(REMEDIES))
    for (const call of [{}, { jobId: 'job_1' }, { firstOutputMs: 5 }])
      expect(nextStepOf({ ...ROW, errorCode, errorMessage: null, errorParam: null, ...call }, true) ?? '').not.toMatch(
        /If there is|if a stream/i,
      )
})

/** Whether an SDK repeats a request after this error: the header `x-should-retry` decides, and otherwise the status. */
function doesSdkRetry(code: ErrorCode, headers: Record<string, string>): boolean {
  const { status } = ERRORS[code]
  return (headers['x-should-retry'] ?? String([408, 409, 429].includes(status) || status >= 500)) === 'true'
}

/** Whether a remedy advises a retry. Without a header `Retry-After`, only the second part of a conditional remedy applies. */
function advisesRetry(remedy: string, hasRetryAfter: boolean): boolean {
  const [, otherwise] = remedy.split('If there is a `Retry-After` header, retry after that time. Otherwise ')
  const advice = otherwise === undefined || hasRetryAfter ? remedy : otherwise
  return /\bretry\b/i.test(advice) && !/\bdo not retry\b/i.test(advice)
}

it.each(Object.keys(ERRORS) as ErrorCode[])(
  'the remedy and the headers of the error code %s agree on whether and when to retry',
  (code) => {
    const [remedy] = REMEDIES[code]
    for (const retryAfterMs of [undefined, 9_000]) {
      const headers = errorHeaders(new ServiceError(code, 'x', retryAfterMs === undefined ? {} : { retryAfterMs }))
      const hasRetryAfter = 'retry-after' in headers
      const doesRetry = doesSdkRetry(code, headers)
      expect(advisesRetry(remedy, hasRetryAfter), `advice "${remedy}" after ${JSON.stringify(headers)}`).toBe(doesRetry)
      if (hasRetryAfter) expect(doesRetry, 'retry by SDKs after the time in Retry-After').toBe(true)
      if (hasRetryAfter) expect(remedy, 'remedy of an error with Retry-After').toContain('`Retry-After`')
      if (/^Retry after the time/.test(remedy)) expect(hasRetryAfter, 'header that the remedy names').toBe(true)
    }
  },
)

const Body = z.object({
  max_tokens: z.int().min(1).max(4_096).optional(),
  temperature: z.number().max(2, 'decimal').optional(),
  role: z.enum(['user', 'system']).optional(),
  window: z
    .string()
    .regex(/^\d+h$/, 'must be a number of hours')
    .optional(),
  user: z.string().max(3).optional(),
  stop: z.array(z.string()).min(1).max(2).optional(),
  model: z.string(),
})
const BODIES: readonly (readonly [body: object, step: string])[] = [
  [{ max_tokens: '100' }, 'Send max_tokens as a number, not as a string.'],
  [{ max_tokens: 5_000 }, 'Send max_tokens <= 4096.'],
  [{ max_tokens: 0 }, 'Send max_tokens >= 1.'],
  [{ temperature: 3.5 }, 'Send temperature <= 2.'],
  [{ role: 'bot' }, "Send one of these values as role: 'user', 'system'."],
  [{ window: '1d' }, 'Send window as a number of hours.'],
  [{ user: 'long' }, 'Shorten user to at most 3 characters.'],
  [{ stop: ['a', 'b', 'c'] }, 'Send at most 2 elements in stop.'],
  [{ model: undefined }, 'Add the field model.'],
]
it.each(
  BODIES.flatMap(([body, step]) => (['openai', 'messages'] as const).map((wording) => ({ body, step, wording }))),
)(
  'the next step after the invalid body $body names the field and what it may contain (format: $wording)',
  ({ body, step, wording }) => {
    const sent = { model: 'm', ...body }
    const [issue] = Body.safeParse(sent).error?.issues ?? []
    const { code, message, param } = problemError(issue as z.core.$ZodIssue, sent, wording)
    const row = { ...ROW, errorCode: code, errorMessage: message, errorParam: param }
    expect(nextStepOf(row, false)).toBe(wording === 'openai' ? step : step.replace("', '", "' or '"))
  },
)

it.each([
  ['model_not_found', 'No access. Did you mean qwen3-8b? This key may use: qwen3-8b.', 'Use qwen3-8b.'],
  ['model_not_found', 'No access. This key may use: qwen3-8b, bge.', 'Use one of these models: qwen3-8b, bge.'],
  ['model_not_found', 'No access.', 'Use a model from GET /v1/models.'],
  ['not_found', 'Invalid URL (POST /v1/chat). Did you mean /v1/chat/completions?', 'Use /v1/chat/completions.'],
  ['unsupported_parameter', 'Unsupported.', 'Remove the field logprobs.'],
  ['permission_denied', 'No.', 'Inference needs the scope calls, /v1/admin needs admin.'],
  [
    'invalid_request',
    'We could not parse the JSON body of your request. Unexpected } at line 2 column 7, after `{"a. b":1,`. Remove it. Then send.',
    'Remove it. Then send. The error is at line 2 column 7 of the body.',
  ],
  ['invalid_request', 'The request has no body. Send a JSON object.', 'Send a JSON object.'],
  ['invalid_request', 'The request is invalid.', null],
])('the next step after %s with the message "%s" is "%s"', (errorCode, errorMessage, step) => {
  expect(nextStepOf({ ...ROW, errorCode, errorMessage, errorParam: 'logprobs' }, false)).toBe(step)
})

it('no next step refers the reader to the message or the param of the error', () => {
  for (const errorCode of Object.keys(REMEDIES))
    expect(nextStepOf({ ...ROW, errorCode, errorMessage: null, errorParam: 'x' }, true) ?? '').not.toMatch(
      /\b(message|param)\b/,
    )
})
