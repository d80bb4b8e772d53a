import { gzipSync, zstdCompressSync } from 'node:zlib'
import type { Expected, WireCase } from './case.ts'
import { chunk, DONE, event, frame, HELLO, HELLO_BLOCK, JSON_TYPE, messageStream, ROLE, SSE, STOP } from './frames.ts'

const BAD = 'seed is not supported'
const REFUSED = { status: 400, words: BAD }

function openai(
  name: string,
  status: number,
  body: unknown,
  expect: Expected,
  head: WireCase['head'] = JSON_TYPE,
): WireCase {
  return {
    name,
    upstream: 'openai',
    status,
    head,
    body: typeof body === 'string' ? body : JSON.stringify(body),
    expect,
  }
}

/** Upstream responses with an error status, in the various body formats of servers. */
const BODIES: readonly WireCase[] = [
  openai('tgi', 422, { error: BAD, error_type: 'validation' }, REFUSED),
  openai('ollama_words', 400, { error: BAD }, REFUSED),
  openai('vllm_bare', 400, { object: 'error', message: BAD, type: 'BadRequestError', param: null, code: 400 }, REFUSED),
  openai('sse_400', 400, `event: error\ndata: {"error":{"message":"${BAD}","code":400}}\n\n`, REFUSED, SSE),
  openai('sse_400_bare', 400, frame({ error: { message: BAD, type: 'invalid_request_error' } }) + DONE, REFUSED, SSE),
  openai('sse_400_words', 400, `event: error\ndata: ${BAD}\n\n`, REFUSED, SSE),
  openai(
    'gemini_stream',
    400,
    frame([{ error: { code: 400, message: BAD, status: 'INVALID_ARGUMENT' } }]),
    REFUSED,
    SSE,
  ),
  openai(
    'fastapi_list',
    422,
    { detail: [{ loc: ['body', 'seed'], msg: BAD, type: 'value_error' }] },
    { ...REFUSED, param: 'seed' },
  ),
  openai('fastapi_object', 400, { detail: { message: BAD, code: 'bad_seed' } }, REFUSED),
  openai('fastapi_error', 400, { detail: { error: BAD } }, REFUSED),
  openai('fastapi_text', 400, { detail: BAD }, REFUSED),
  openai('nested_json', 400, { error: { message: JSON.stringify({ error: { message: BAD } }), code: 400 } }, REFUSED),
  openai('nested_error_json', 400, { error: JSON.stringify({ message: BAD, code: 400 }) }, REFUSED),
  openai('json_in_json', 400, JSON.stringify(JSON.stringify({ error: { message: BAD } })), REFUSED),
  openai(
    'openrouter_raw',
    400,
    {
      error: {
        message: 'Provider returned error',
        code: 400,
        metadata: { raw: JSON.stringify({ error: { message: BAD } }), provider_name: 'P' },
      },
    },
    REFUSED,
  ),
  openai(
    'mistral_object',
    422,
    { object: 'error', message: { detail: [{ loc: ['body', 'seed'], msg: BAD }] } },
    REFUSED,
  ),
  openai('cloudflare', 400, { success: false, errors: [{ code: 5007, message: BAD }], result: {} }, REFUSED),
  openai('bedrock', 400, { __type: 'ValidationException', message: BAD }, REFUSED),
  openai('aws_gateway', 400, { Message: BAD }, REFUSED),
  openai('problem_json', 400, { type: 'about:blank', title: 'Bad Request', status: 400, detail: BAD }, REFUSED, {
    'content-type': 'application/problem+json',
  }),
  openai(
    'azure_filter',
    400,
    {
      error: { code: 'content_filter', message: BAD, param: 'prompt', status: 400, innererror: { code: 'X' } },
    },
    { ...REFUSED, param: 'prompt' },
  ),
  openai('json_text', 400, JSON.stringify(BAD), { ...REFUSED, hides: '\\"' }),
  openai('plain_text', 400, BAD, REFUSED, { 'content-type': 'text/plain' }),
  openai('page', 400, `<html><body>${BAD}</body></html>`, { status: 400, hides: BAD }, { 'content-type': 'text/html' }),
  openai('long_text', 400, `${BAD} `.repeat(100), { status: 400, hides: BAD }, { 'content-type': 'text/plain' }),
  openai('full_context', 400, [{ error: { message: 'The input exceeds the maximum context length', code: 400 } }], {
    status: 400,
    words: 'context length',
    param: 'messages',
  }),
  openai(
    'loading',
    503,
    { error: { message: 'Loading model', type: 'unavailable_error', code: 503 } },
    {
      status: 503,
      words: 'Loading model',
    },
  ),
  { ...openai('gzip_unnamed_error', 400, '', REFUSED), bytes: gzipSync(JSON.stringify({ error: { message: BAD } })) },
  {
    ...openai('zstd_error', 400, '', REFUSED, { ...JSON_TYPE, 'content-encoding': 'zstd' }),
    bytes: zstdCompressSync(JSON.stringify({ error: { message: BAD } })),
  },
  {
    ...openai('plain_error_as_gzip', 400, { error: { message: BAD } }, REFUSED, {
      ...JSON_TYPE,
      'content-encoding': 'gzip',
    }),
  },
]

const BILL = 'You exceeded your current quota, please check your plan and billing details.'
const UNPAID = { status: 502, isFinal: true, hides: 'billing details' }

/** Upstream errors that report an unpaid bill (final), or a temporary limit (to be retried). */
const QUOTAS: readonly WireCase[] = [
  openai(
    'quota_by_type',
    429,
    { error: { message: BILL, type: 'insufficient_quota', param: null, code: null } },
    UNPAID,
  ),
  openai('quota_by_words', 429, { error: { message: BILL } }, UNPAID),
  openai('quota_payment', 402, { error: { message: 'Insufficient Balance', type: 'unknown_error' } }, UNPAID),
  openai(
    'quota_billing',
    429,
    { error: { message: 'x', type: 'billing_not_active', code: 'billing_not_active' } },
    UNPAID,
  ),
  openai('quota_403', 403, { error: { message: 'credits', code: 'insufficient_credits' } }, UNPAID),
  openai('quota_503', 503, { error: { message: 'x', code: 'insufficient_quota' } }, UNPAID),
  openai('quota_in_answer', 200, { error: { message: BILL, code: 'insufficient_quota' } }, UNPAID),
  openai('quota_in_stream', 200, frame({ error: { message: BILL, code: 'insufficient_quota' } }), UNPAID, SSE),
  {
    name: 'anthropic_credit',
    upstream: 'anthropic',
    status: 400,
    head: JSON_TYPE,
    body: JSON.stringify({
      type: 'error',
      error: { type: 'invalid_request_error', message: 'Your credit balance is too low to access the API.' },
    }),
    expect: { status: 502, isFinal: true },
  },
  openai(
    'gemini_minute',
    429,
    [{ error: { code: 429, message: `${BILL} Please retry in 28.3s.`, status: 'RESOURCE_EXHAUSTED' } }],
    { status: 503 },
  ),
  openai('rate_limit', 429, { error: { message: 'Rate limit reached', code: 'rate_limit_exceeded' } }, { status: 503 }),
]

const AWAY = 'worker is gone'
const GONE = { status: 503, words: AWAY }

/** Upstream responses with status 200 that contain an error object, as some servers send them. */
const INSIDE: readonly WireCase[] = [
  openai('in_body', 200, { error: { message: BAD, type: 'invalid_request_error', code: null } }, REFUSED),
  openai('in_body_array', 200, [{ error: { code: 400, message: BAD, status: 'INVALID_ARGUMENT' } }], REFUSED),
  openai('in_body_gateway', 200, { code: 400, msg: BAD, success: false }, REFUSED),
  openai('in_body_gateway_text', 200, { code: '422', message: BAD, data: null }, REFUSED),
  openai('in_body_text', 200, { error: BAD, code: 400 }, REFUSED),
  openai('in_body_rate', 200, { error: { message: 'slow down', code: 429 } }, { status: 503 }),
  openai('in_first_frame', 200, frame({ error: { message: BAD, code: 400 } }) + DONE, REFUSED, SSE),
  openai('in_frame_array', 200, frame([{ error: { message: BAD, code: 400 } }]), REFUSED, SSE),
  openai('in_frame_tgi', 200, frame({ error: BAD, error_type: 'validation' }), REFUSED, SSE),
  openai('in_error_event', 200, frame({ message: BAD, code: 400 }, 'error'), REFUSED, SSE),
  openai('in_error_event_words', 200, ROLE + frame('upstream timed out', 'error'), { status: 502 }, SSE),
  openai('in_error_field', 200, `${ROLE}${HELLO}error: {"code":400,"message":"${BAD}"}\n\n`, REFUSED, SSE),
  openai('raw_after_chunks', 200, `${ROLE}${HELLO}{"error":{"message":"${AWAY}","code":503}}`, GONE, SSE),
  openai(
    'raw_line_after_chunks',
    200,
    `${ROLE}${HELLO}{"object":"error","message":"${AWAY}","code":503}\n\n`,
    GONE,
    SSE,
  ),
  openai(
    'raw_pretty_after_chunks',
    200,
    ROLE + HELLO + JSON.stringify({ error: { message: AWAY, code: 503 } }, null, 2),
    GONE,
    SSE,
  ),
  openai('raw_array_after_chunks', 200, `${ROLE}${HELLO}[{"error":{"message":"${AWAY}","code":503}}]\n`, GONE, SSE),
  openai(
    'raw_after_done',
    200,
    `${ROLE}${HELLO}${STOP}${DONE}{"error":{"message":"${AWAY}","code":503}}`,
    {
      text: 'Hello',
      finish: 'stop',
    },
    SSE,
  ),
  openai(
    'blank_errors',
    200,
    [null, '', {}, { message: null }, { message: '', code: null }, false]
      .map((error) => frame(chunk({ content: 'x' }, null, { error })))
      .join('') +
      STOP +
      DONE,
    { text: 'xxxxxx', finish: 'stop' },
    SSE,
  ),
  {
    name: 'anthropic_overloaded',
    upstream: 'anthropic',
    head: SSE,
    body:
      messageStream(HELLO_BLOCK).split('event: message_delta', 1).join() +
      event({ type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } }),
    expect: { status: 503 },
  },
  {
    name: 'anthropic_error_first',
    upstream: 'anthropic',
    head: SSE,
    body: event({ type: 'error', error: { type: 'invalid_request_error', message: BAD } }),
    expect: REFUSED,
  },
  {
    name: 'responses_failed',
    upstream: 'responses',
    head: SSE,
    body: event({
      type: 'response.failed',
      response: { status: 'failed', error: { code: 'invalid_prompt', message: BAD } },
    }),
    expect: REFUSED,
  },
  {
    name: 'responses_error_event',
    upstream: 'responses',
    head: SSE,
    body: event({ type: 'error', code: 'invalid_request_error', message: BAD, param: null, sequence_number: 1 }),
    expect: REFUSED,
  },
]

/** All errors, as real servers send them. */
export const FAILURES: readonly WireCase[] = [...BODIES, ...QUOTAS, ...INSIDE]
