/* Tests of newer tools, blocks and system messages of the Messages API. The upstream has the chat API or the Messages API. */

import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { type Stack, startStack } from '../../../support/stack.ts'

type Json = Record<string, unknown>

let stack: Stack
let lenient: Stack
let chat: ScriptedUpstream
let anthropic: ScriptedUpstream
beforeAll(async () => {
  chat = await startUpstream((call, to) => {
    const offered = ((call.body.tools ?? []) as { function: { name: string } }[]).map((tool) => tool.function.name)
    const called = offered
      .slice(0, 1)
      .map((name) => ({ id: 'call_1', type: 'function', function: { name, arguments: '{"command":"ls"}' } }))
    const message = { role: 'assistant', content: 'A', ...(called.length > 0 && { tool_calls: called }) }
    to.json({ choices: [{ index: 0, message, finish_reason: called.length > 0 ? 'tool_calls' : 'stop' }] })
  })
  anthropic = await startUpstream((_call, to) =>
    to.json({ type: 'message', content: [{ type: 'text', text: 'A' }], stop_reason: 'end_turn' }),
  )
  const models = [
    { id: 'chat', engine: { type: 'openai', base_url: `${chat.url}/v1` } },
    { id: 'claude', engine: { type: 'anthropic', base_url: anthropic.url } },
  ]
  stack = await startStack({ models })
  lenient = await startStack({ models, settings: { STRICT_TURNS: 'false' } })
})
afterAll(async () => {
  for (const each of [stack, lenient, chat, anthropic]) await each?.[Symbol.asyncDispose]()
})

async function ask(
  body: object,
  on = stack,
  headers: Record<string, string> = {},
): Promise<{ answer: Json; sent: Json }> {
  const { model = 'chat' } = body as { model?: string }
  const asked = { model, max_tokens: 100, messages: [{ role: 'user', content: 'Hi' }], ...body }
  const response = await on.post('/v1/messages', asked, { headers })
  const answer = (await response.json()) as Json
  expect(response.status, `status of the response ${JSON.stringify(answer)}`).toBe(200)
  return { answer, sent: (model === 'chat' ? chat : anthropic).calls.at(-1)?.body as Json }
}

const functionsOf = (sent: Json) => ((sent.tools ?? []) as { function: Json }[]).map((tool) => tool.function)

test.each([
  [{ type: 'bash_20250124', name: 'bash' }, ['command', 'restart']],
  [{ type: 'text_editor_20250728', name: 'str_replace_based_edit_tool' }, ['command', 'path', 'old_str', 'new_str']],
  [{ type: 'memory_20250818', name: 'memory' }, ['command', 'old_path']],
  [
    { type: 'computer_20250124', name: 'computer', display_width_px: 800, display_height_px: 600 },
    ['action', 'coordinate'],
  ],
])(
  'the tool %j is sent to the model as a function, and a call of the function is returned as a call of the tool',
  async (tool, fields) => {
    const { answer, sent } = await ask({ tools: [tool], tool_choice: { type: 'tool', name: tool.name } })
    const [offered] = functionsOf(sent)
    expect(offered?.name).toBe(tool.name)
    expect(Object.keys((offered?.parameters as { properties?: Json } | undefined)?.properties ?? {})).toEqual(
      expect.arrayContaining(fields),
    )
    expect(sent.tool_choice).toEqual({ type: 'function', function: { name: tool.name } })
    expect(answer).toMatchObject({
      stop_reason: 'tool_use',
      content: [{}, { type: 'tool_use', name: tool.name, input: { command: 'ls' } }],
    })
  },
)

test('tools that only the Messages API can run are not sent to a chat completions upstream', async () => {
  const deferred = { name: 'f', input_schema: { type: 'object', properties: {} }, defer_loading: true }
  const tools = [
    { type: 'tool_search_tool_regex_20251119', name: 'tool_search_tool_regex' },
    { type: 'code_execution_20250825', name: 'code_execution' },
    { type: 'web_fetch_20250910', name: 'web_fetch' },
    { type: 'web_search_20250305', name: 'web_search' },
    { type: 'mcp_toolset', mcp_server_name: 'a' },
    { type: 'mcp_toolset', mcp_server_name: 'b' },
    { type: 'of_next_month' },
    deferred,
  ]
  const { sent } = await ask({ tools, tool_choice: { type: 'tool', name: 'web_search' } })
  expect(functionsOf(sent).map(({ name }) => name)).toEqual(['f'])
  expect(sent.tool_choice).not.toMatchObject({ type: 'function' })
  const alone = await ask({ tools: tools.slice(0, 2), tool_choice: { type: 'any' } })
  expect(alone.sent).not.toHaveProperty('tools')
})

test('a tool name that the upstream would refuse is shortened for the upstream only', async () => {
  const name = `mcp__server.${'a'.repeat(150)}`
  const { answer, sent } = await ask({ tools: [{ name, input_schema: { type: 'object' } }] })
  expect(String(functionsOf(sent)[0]?.name).length).toBeLessThanOrEqual(64)
  expect(answer).toMatchObject({ content: [{}, { type: 'tool_use', name }] })
})

test('content blocks of earlier messages are sent as text to a model without the Messages API', async () => {
  const use = { type: 'tool_use', id: 'toolu_1', name: 'search', input: {} }
  const found = [
    { type: 'web_search_result', title: 'Herons', url: 'https://a.test/h', encrypted_content: 'x', page_age: null },
  ]
  const content = [
    { type: 'server_tool_use', id: 'srvtoolu_1', name: 'web_search', input: { query: 'herons' } },
    { type: 'web_search_tool_result', tool_use_id: 'srvtoolu_1', content: found },
    { type: 'compaction', content: 'We spoke of birds.' },
    { type: 'text', text: 'Done.' },
    use,
  ]
  const result = { type: 'tool_result', tool_use_id: 'toolu_1', content: [{ type: 'tool_reference', tool_name: 'f' }] }
  const { sent } = await ask({
    system: [
      { type: 'text', text: 'A' },
      { type: 'text', text: 'B' },
    ],
    messages: [
      {
        role: 'user',
        content: [
          { type: 'container_upload', file_id: 'file_1' },
          { type: 'text', text: 'Hi' },
        ],
      },
      { role: 'assistant', content },
      { role: 'user', content: [result] },
    ],
  })
  const [system, user, assistant, tool] = sent.messages as Json[]
  expect(JSON.stringify(system)).toContain('A\\n\\nB')
  expect(JSON.stringify(user)).not.toContain('file_1')
  for (const text of ['herons', 'Herons', 'https://a.test/h', 'birds', 'Done.'])
    expect(JSON.stringify(assistant)).toContain(text)
  expect(JSON.stringify(tool)).toContain('The tool f is available.')
})

test('a block of an unknown type is refused unless the upstream supports the Messages API', async () => {
  const messages = [{ role: 'user', content: [{ type: 'of_next_month', data: 1 }] }]
  expect((await ask({ model: 'claude', messages })).sent.messages).toEqual(messages)
  const response = await stack.post('/v1/messages', { model: 'chat', max_tokens: 1, messages })
  expect(response.status).toBe(400)
  expect(JSON.stringify(await response.json())).toContain('messages.0.content.0.type')
})

const SYSTEM = { role: 'system', content: 'Be brief.' }
const TURNS = [{ role: 'user', content: 'A' }, SYSTEM, { role: 'user', content: 'B' }]
const BETA = { 'anthropic-beta': 'mid-conversation-tool-changes-2026-07-01' }

test('system messages between user messages keep their position', async () => {
  const prompt = [{ type: 'text', text: 'P', cache_control: { type: 'ephemeral' } }]
  for (const on of [stack, lenient]) {
    const { sent } = await ask({ model: 'claude', system: prompt, messages: TURNS }, on, BETA)
    expect(sent).toMatchObject({ system: prompt, messages: TURNS })
  }
  expect((await ask({ model: 'claude', messages: TURNS })).sent.messages).toEqual(TURNS)
  const { sent } = await ask({ model: 'claude', system: prompt, messages: TURNS }, lenient)
  expect(sent.system).toEqual(prompt)
  expect(sent.messages).toEqual([
    TURNS[0],
    {
      role: 'user',
      content: [
        { type: 'text', text: '[System message]\n' },
        { type: 'text', text: 'Be brief.' },
      ],
    },
    TURNS[2],
  ])
  const onChat = await ask({ system: 'P', messages: TURNS }, lenient)
  expect((onChat.sent.messages as Json[]).map(({ role }) => role)).toEqual(['system', 'user', 'system', 'user'])
})

test('thinking without a signature is not forwarded to an upstream of the Messages API', async () => {
  const content = [
    { type: 'thinking', thinking: 'Hm.', signature: '' },
    { type: 'text', text: 'A' },
  ]
  const messages = [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content },
    { role: 'user', content: 'B' },
  ]
  const { sent } = await ask({ model: 'claude', messages })
  expect((sent.messages as Json[])[1]?.content).toBe('A')
})

test('output_format, the older name of output_config.format, is accepted for any upstream', async () => {
  const format = { type: 'json_schema', schema: { type: 'object', properties: {} } }
  expect((await ask({ model: 'claude', output_format: format })).sent.output_format).toEqual(format)
  expect((await ask({ output_format: format })).sent).toMatchObject({
    response_format: { type: 'json_schema', json_schema: { schema: format.schema } },
  })
})
