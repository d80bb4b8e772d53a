import { expect, test } from 'vitest'
import { GenerateRequest } from '#schemas/kinds/generate.ts'
import { ModelConfig } from '#schemas/models.ts'
import { adaptRequest } from '#shared/engines/adapt.ts'

const MODEL = ModelConfig.parse({
  id: 'm1',
  engine: { type: 'openai', api: 'responses', base_url: 'http://127.0.0.1:1/v1' },
})

test('the request adapter replaces invalid function names, but keeps the names of native tools', () => {
  const call = (name: string) => ({ type: 'tool_call', id: `call_${name}`, name, arguments: '{"input":"x"}' })
  const request = GenerateRequest.parse({
    dialect: 'responses',
    model: 'm1',
    stream: false,
    turns: [{ role: 'assistant', parts: [call('apply.patch'), call('plain.function')] }],
    tools: [
      { name: 'apply.patch', parameters: {}, custom: true, native: { type: 'custom', name: 'apply.patch' } },
      { name: 'plain.function', parameters: {} },
    ],
  })
  const { turns } = adaptRequest(request, MODEL).request
  const names = turns[0]?.parts.map((part) => 'name' in part && part.name)
  expect(names).toEqual(['apply.patch', expect.stringMatching(/^plain_function_[0-9a-f]{8}$/)])
})

test.each([
  ['all', { service_tier: 'flex', new_field: 1 }],
  ['known', { service_tier: 'flex' }],
  [['mcp_servers'], { service_tier: 'flex', mcp_servers: [] }],
  [['all', 'mcp_servers'], { service_tier: 'flex', new_field: 1, mcp_servers: [] }],
])('for a model with the setting pass %j, exactly these unknown fields are sent upstream: %j', (pass, sent) => {
  const model = ModelConfig.parse({ id: 'm1', pass, engine: { type: 'openai', base_url: 'http://127.0.0.1:1/v1' } })
  const control = {
    kv_transfer_params: {},
    logits_processors: [],
    chat_template: 'x',
    api_base: 'http://169.254.169.254',
  }
  const extra = { service_tier: 'flex', new_field: 1, mcp_servers: [], ...control }
  const turns = [{ role: 'user', parts: [{ type: 'text', text: 'a' }] }]
  const request = GenerateRequest.parse({ dialect: 'openai', model: 'm1', stream: false, turns, extra })
  expect(adaptRequest(request, model).request.extra).toEqual(sent)
})
