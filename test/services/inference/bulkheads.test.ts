import { expect, test } from 'vitest'
import { startUpstream } from '../../support/processes/upstream.ts'
import { type Stack, startStack, until } from '../../support/stack.ts'

const ANSWER = {
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hello' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 7, completion_tokens: 3 },
}

function modelOn(id: string, url: string, engine: object = {}) {
  return { id, engine: { type: 'openai', base_url: `${url}/v1`, ...engine } }
}

function call(stack: Stack, model: string, signal?: AbortSignal): Promise<Response> {
  const body = { model, messages: [{ role: 'user', content: 'Hello' }] }
  return stack.post('/v1/chat/completions', body, signal && { signal })
}

test.each([
  ['only its concurrency limit', { concurrency: 2 }, 2],
  ['at most the configured slots', {}, 4],
])(
  'a model whose upstream does not respond occupies %s, and calls of another model are answered',
  async (_, engine, places) => {
    await using hanging = await startUpstream(() => {})
    await using healthy = await startUpstream((_call, answer) => answer.json(ANSWER))
    const models = [modelOn('hanging', hanging.url, engine), modelOn('healthy', healthy.url)]
    await using stack = await startStack({ models, settings: { INFERENCE_SLOTS: '4' } })
    const leaving = new AbortController()
    const waiting = Array.from({ length: 12 }, () => call(stack, 'hanging', leaving.signal).catch(() => undefined))
    await until(() => hanging.calls.length === places)
    const answers = await Promise.all(Array.from({ length: 20 }, () => call(stack, 'healthy')))
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200))
    expect(hanging.calls).toHaveLength(places)
    leaving.abort()
    await Promise.all(waiting)
  },
)
