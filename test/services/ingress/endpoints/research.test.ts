import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ECHO_MODEL, type Stack, startStack } from '../../../support/stack.ts'

const PATH = '/v1/deep-research'
const RESEARCH_MODEL = { id: 'deep-research', pool: 'research', engine: { type: 'research' } }
const ask = (text: unknown) => [{ role: 'user', content: text }]

describe('the deep research endpoint', () => {
  let stack: Stack
  beforeAll(async () => {
    stack = await startStack({ models: [ECHO_MODEL, RESEARCH_MODEL] })
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  const REFUSED: [why: string, body: object, code: string, param: string][] = [
    ['an empty list of messages', { messages: [] }, 'empty_array', 'messages'],
    ['a question of white space', { messages: ask(' \n') }, 'invalid_value', 'messages[0].content'],
    [
      'an image',
      { messages: ask([{ type: 'image_url', image_url: { url: 'x' } }]) },
      'invalid_value',
      'messages[0].content[0].type',
    ],
    [
      'a conversation that ends with an answer',
      { messages: [...ask('Why?'), { role: 'assistant', content: 'So.' }] },
      'invalid_value',
      'messages[1].role',
    ],
    [
      'a question of 12,000 characters',
      { messages: ask('why '.repeat(3_000)) },
      'string_above_max_length',
      'messages[0].content',
    ],
    ['a max_sources over the maximum', { max_sources: 51 }, 'integer_above_max_value', 'max_sources'],
    ['a max_duration_seconds of 0', { max_duration_seconds: 0 }, 'integer_below_min_value', 'max_duration_seconds'],
    ['more than one choice', { n: 2 }, 'unsupported_value', 'n'],
    ['tools', { tools: [{ type: 'function' }] }, 'unsupported_parameter', 'tools'],
    ['log probabilities', { logprobs: true }, 'unsupported_parameter', 'logprobs'],
    ['an unknown value of on_cancel', { on_cancel: 'keep' }, 'invalid_value', 'on_cancel'],
    ['an empty domain', { domains: { allow: [''] } }, 'empty_string', 'domains.allow[0]'],
    ['an unknown model', { model: 'deep-thought' }, 'model_not_found', 'model'],
    ['a model that is not a research model', { model: 'echo-1' }, 'model_not_supported', 'model'],
  ]
  it.each(REFUSED)('refuses %s with the name of the field', async (_why, body, code, param) => {
    const response = await stack.post(PATH, { model: 'deep-research', messages: ask('Why?'), ...body })
    expect([400, 404]).toContain(response.status)
    const { error } = (await response.json()) as { error: { code: string; param: string } }
    expect(error).toMatchObject({ code, param })
  })

  it('refuses an invalid durable job with the path of the field, such as body.messages[0].content', async () => {
    const response = await stack.post('/v1/jobs', {
      endpoint: PATH,
      body: { model: 'deep-research', messages: ask('') },
    })
    expect(response.status).toBe(400)
    expect(await response.json()).toMatchObject({ error: { param: 'body.messages[0].content' } })
  })
})
