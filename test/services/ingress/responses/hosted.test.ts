/* Tests of tools that the service runs for a response (docs/guides/responses.md, Hosted tools), in the real sandbox. */

import { createOpenAI } from '@ai-sdk/openai'
import { generateText, streamText } from 'ai'
import OpenAI, { toFile } from 'openai'
import type { ResponseCreateParamsNonStreaming, ResponseStreamEvent } from 'openai/resources/responses/responses'
import { expect, inject, it } from 'vitest'
import { RUN_FILES_BYTES_MAX } from '#schemas/kinds/code.ts'
import { runBatch } from '../../../support/batches.ts'
import { describeCode, untilBusy } from '../../../support/sandbox/code-service.ts'
import { TEST_KEY, until } from '../../../support/stack.ts'

const TOOL = { type: 'code_interpreter' as const, container: { type: 'auto' as const } }
const SLEEP = 'import time\ntime.sleep(100)'
const PLOT = 'import matplotlib.pyplot as plt\nplt.plot([1, 4])\nplt.show()'
const LOGS = 'code_interpreter_call.outputs' as const

/** Returns a prompt that makes the model echo-1 call the code interpreter with this code. */
function script(code: string, more = 'rounds=1'): string {
  return `!echo call=code_interpreter args=${JSON.stringify(JSON.stringify({ code }))} ${more}`
}

describeCode('the code interpreter of the Responses API', inject('kafka'), (stack) => {
  const client = () => new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack().url}/v1`, maxRetries: 0, timeout: 120_000 })
  const ask = (input: string, more: Partial<ResponseCreateParamsNonStreaming> = {}) =>
    client().responses.create({ model: 'echo-1', input, tools: [TOOL], ...more })

  it('a response runs the code of the model, and the model continues with the output', async () => {
    const response = await ask(script('print(6 * 7)'), { include: [LOGS], instructions: 'Be exact.' })
    expect(response).toMatchObject({ status: 'completed', tools: [TOOL], output_text: '42' })
    const [call, message] = response.output
    const outputs = [{ type: 'logs', logs: '42\n' }]
    expect(call).toMatchObject({ type: 'code_interpreter_call', status: 'completed', code: 'print(6 * 7)', outputs })
    expect(message?.type).toBe('message')
    expect(response.usage?.input_tokens).toBeGreaterThan(20)

    const kept = await client().responses.retrieve(response.id)
    expect(kept.output).toEqual(response.output)
    const next = await ask('and then?', { previous_response_id: response.id })
    expect(next.output_text).toBe('and then?')
    const again = await ask(script('print(8)'), { include: [], previous_response_id: next.id })
    expect(again.output).toMatchObject([{ type: 'code_interpreter_call', outputs: null }, { type: 'message' }])
  })

  it('a batch runs code for each line, whether its lines are responses with a code tool or code runs', async () => {
    const asked = { model: 'echo-1', input: script('print(6 * 7)'), tools: [TOOL] }
    const responses = await runBatch(client(), '/v1/responses', [asked])
    expect(responses.output).toMatchObject([
      { response: { body: { output: [{ type: 'code_interpreter_call' }, { content: [{ text: '42' }] }] } } },
    ])
    const runs = await runBatch(client(), '/v1/tools/code', [{ lang: 'python', code: 'print(1)' }, { lang: 'python' }])
    expect(runs.output).toMatchObject([{ custom_id: 'r0', response: { body: { stdout: '1\n' } } }])
    expect(runs.errors).toMatchObject([{ custom_id: 'r1', response: { body: { error: { param: 'code' } } } }])
  })

  it('a response with a code run streams each event once and in order, both live and from the store', async () => {
    const stream = await client().responses.create({
      ...{ model: 'echo-1', input: script('print(1)', 'rounds=2'), tools: [TOOL] },
      ...{ stream: true, background: true, include: [LOGS] },
    })
    const events = await read(stream)
    const run = (at: number) =>
      [
        ...['output_item.added', 'code_interpreter_call.in_progress', 'code_interpreter_call_code.delta'],
        ...['code_interpreter_call_code.done', 'code_interpreter_call.interpreting', 'code_interpreter_call.completed'],
        'output_item.done',
      ].map((type) => [type, at])
    const message = ['output_item.added', 'content_part.added', 'output_text.delta', 'output_text.done']
    expect(events.map((event) => [event.type.slice('response.'.length), indexOf(event)])).toEqual([
      ...['created', 'queued', 'in_progress'].map((type) => [type, undefined]),
      ...[...run(0), ...run(1)],
      ...[...message, 'content_part.done', 'output_item.done'].map((type) => [type, 2]),
      ['completed', undefined],
    ])
    const numbers = events.map(({ sequence_number }) => sequence_number)
    expect(numbers).toEqual([...new Set(numbers)].sort((a, b) => a - b))
    const [created] = events
    const id = created?.type === 'response.created' ? created.response.id : ''
    expect(await read(await client().responses.retrieve(id, { stream: true }))).toEqual(events)
    const after = numbers[8] ?? 0
    const rest = await client().responses.retrieve(id, { stream: true, starting_after: after })
    expect(await read(rest)).toEqual(events.slice(9))
    const ended = await client().responses.retrieve(id)
    expect(events.at(-1)).toMatchObject({ response: { id, output: ended.output } })
  })

  it('a response stops its code run after a cancel, or if the caller disconnects', async () => {
    const response = await ask(script(SLEEP), { background: true })
    await untilBusy(stack(), 1)
    expect(await client().responses.retrieve(response.id)).toMatchObject({ status: 'in_progress' })
    expect(await client().responses.cancel(response.id)).toMatchObject({ status: 'cancelled' })
    await untilBusy(stack(), 0)
    const leaving = new AbortController()
    const left = client().responses.create(
      { model: 'echo-1', input: script(SLEEP), tools: [TOOL] },
      { signal: leaving.signal },
    )
    await untilBusy(stack(), 1)
    leaving.abort()
    await expect(left).rejects.toThrow()
    await untilBusy(stack(), 0)
  })

  it('a response sends errors of a code run to the model, and images to the caller', async () => {
    const wrong = await ask('!echo call=code_interpreter args=[] rounds=1')
    expect(wrong.output).toMatchObject([{ status: 'failed', code: '[]' }, { type: 'message' }])
    expect(wrong.output_text).toContain('JSON object')
    expect((await ask(script('import os'))).output_text).toContain('not allowed')
    const drawn = await ask(script(PLOT), { include: [LOGS] })
    const [call] = drawn.output
    const [image] = (call?.type === 'code_interpreter_call' && call.outputs) || []
    expect(image).toMatchObject({ type: 'image', url: expect.stringMatching(/^data:image\/png;base64,iVBOR/) })
    expect(drawn.output_text).toContain('plot_1.png')
  })

  it('a response ends at the maximum number of tool calls if the model continues to call tools', async () => {
    const bounded = await ask(script('print(1)', ''), { max_tool_calls: 2 })
    const ends = { status: 'incomplete', incomplete_details: { reason: 'max_tool_calls' } }
    expect(bounded).toMatchObject(ends)
    expect(bounded.output.map(({ type }) => type)).toEqual(['code_interpreter_call', 'code_interpreter_call'])
    const endless = await ask('!echo call=code_interpreter args=[]')
    expect(endless).toMatchObject({ ...ends, output: { length: 20 } })
    const forced = await ask('hi', { tool_choice: { type: 'code_interpreter' } })
    expect(forced).toMatchObject({
      status: 'completed',
      output: [{ type: 'code_interpreter_call' }, { type: 'message' }],
    })
  })

  it('a response returns function calls to the caller, and the next response uses their outputs', async () => {
    const look = { type: 'function' as const, name: 'look', parameters: { type: 'object' }, strict: false }
    const input = 'Ask code_interpreter and look.'
    const called = await ask(input, { tools: [TOOL, look] })
    expect(called.output.map(({ type }) => type)).toEqual(['code_interpreter_call', 'function_call'])
    const call = called.output.find((item) => item.type === 'function_call')
    const output = { type: 'function_call_output' as const, call_id: call?.call_id ?? '', output: 'seen' }
    const went = { model: 'echo-1', input: [output], tools: [TOOL, look], previous_response_id: called.id }
    expect((await client().responses.create(went)).output_text).toBe('seen')
  })

  it('a response refuses unsupported tool options, and ignores tools that the service does not run', async () => {
    const refused = async (body: object) => {
      const response = await stack().post('/v1/responses', { model: 'echo-1', input: 'hi', ...body })
      const { error } = (await response.json()) as { error: { param: string; message: string } }
      return [response.status, error.param, error.message]
    }
    const says = (param: string, text: string) => [400, param, expect.stringContaining(text)]
    for (const body of [{ tools: [{ type: 'image_generation' }] }, { tools: [TOOL], store: false }]) {
      const answer = await stack().post('/v1/responses', { model: 'echo-1', input: 'hi', ...body })
      expect([answer.status, await answer.json()]).toMatchObject([200, { status: 'completed', tools: body.tools }])
    }
    expect(await refused({ tools: [{ ...TOOL, container: 'cntr_1' }] })).toEqual(
      says('tools[0].container', 'not stored'),
    )
    expect(await refused({ tools: [TOOL, TOOL] })).toEqual(says('tools[1].name', 'twice'))
  })

  it('a response copies stored files into the directory of each code run', async () => {
    const upload = async (text: string | Buffer, name: string) =>
      (await client().files.create({ file: await toFile(Buffer.from(text), name), purpose: 'user_data' })).id
    const [first, second] = [
      await upload('a,b\n1,2\n3,4\n', '../../sales.csv'),
      await upload('Grüße', 'data/sales.csv'),
    ]
    const withFiles = (...file_ids: string[]) => [{ ...TOOL, container: { type: 'auto' as const, file_ids } }]
    const code = 'import pandas\nprint(pandas.read_csv("sales.csv").a.sum(), open("sales_2.csv").read())'
    const tools = withFiles(first, second, first)
    expect(await ask(script(code), { tools })).toMatchObject({ tools, output_text: '4 Grüße' })
    const deleted = await ask(script(`import time\ntime.sleep(3)\n${code}`, 'rounds=2'), {
      ...{ tools, background: true, include: [LOGS] },
    })
    await untilBusy(stack(), 1)
    await client().files.delete(second)
    const rounds = await until(async () => {
      const { status, output } = await client().responses.retrieve(deleted.id, { include: [LOGS] })
      return status === 'completed' ? output : undefined
    })
    const gone = {
      status: 'failed',
      outputs: [{ logs: expect.stringContaining(`"sales_2.csv" (${second}) was deleted`) }],
    }
    expect(rounds).toMatchObject([{ status: 'completed' }, gone, { type: 'message' }])

    const refused = async (...ids: string[]) =>
      await ask('hi', { tools: withFiles(...ids) }).catch((error: unknown) => error)
    const param = 'tools[0].container.file_ids[1]'
    expect(await refused(first, second)).toMatchObject({ status: 404, param })
    expect(await refused(first, '../../etc/passwd')).toMatchObject({ status: 404, param })
    const many = await refused(...Array.from({ length: 10_000 }, (_, nth) => `file-${nth}`))
    expect(many).toMatchObject({ status: 400, param: 'tools[0].container.file_ids', code: 'array_above_max_length' })
    const long = await upload('7', `${'漢'.repeat(96)}.csv`)
    const counted = script(`print(open("${'漢'.repeat(65)}.csv").read())`)
    expect((await ask(counted, { tools: withFiles(long) })).output_text).toBe('7')
    const odd = ['\u202ea\u2028b\u{e0041}.csv', '-rf', '..x', 'e\u0301.csv', '\u00e9.csv', 'E.csv', 'e.csv', 'ab.csv']
    const names = ['ab.csv', '-rf', '..x', '\u00e9.csv', '\u00e9_2.csv', 'E.csv', 'e.csv', 'ab_2.csv']
    const oddOnes = await Promise.all(odd.map((name, nth) => upload(`${nth}`, name)))
    const opened = script(`print(${names.map((name) => `open("${name}").read()`).join()})`)
    expect((await ask(opened, { tools: withFiles(...oddOnes) })).output_text).toBe('0 1 2 3 4 5 6 7')
    const large = await upload(Buffer.alloc(RUN_FILES_BYTES_MAX), 'large.bin')
    expect(await refused(first, large)).toMatchObject({ status: 400, param, code: 'invalid_value' })
    const sized = script('print(len(open("large.bin", "rb").read()))')
    expect((await ask(sized, { tools: withFiles(large) })).output_text).toBe(String(RUN_FILES_BYTES_MAX))
  })

  it('a response runs the code interpreter tool of the Vercel AI SDK, with and without streaming', async () => {
    const openai = createOpenAI({ apiKey: TEST_KEY, baseURL: `${stack().url}/v1` })
    const tools = { code_interpreter: openai.tools.codeInterpreter({}) }
    const asked = { model: openai('echo-1'), prompt: script('print(3)'), tools, maxRetries: 0 }
    const { text, toolCalls, toolResults } = await generateText(asked)
    expect(text).toBe('3')
    expect(toolCalls).toMatchObject([{ toolName: 'code_interpreter', input: { code: 'print(3)' } }])
    expect(toolResults).toMatchObject([{ output: { outputs: [{ type: 'logs', logs: '3\n' }] } }])
    const streamed = streamText(asked)
    expect(await streamed.text).toBe('3')
    expect(await streamed.toolResults).toMatchObject([{ output: { outputs: [{ type: 'logs', logs: '3\n' }] } }])
  })

  it('a response adds its code run to the conversation, and another response continues from the run', async () => {
    const { id } = await client().conversations.create()
    await ask(script('print(5)'), { conversation: id })
    await until(async () => (await client().conversations.items.list(id)).data.length === 3)
    const { data } = await client().conversations.items.list(id, { order: 'asc' })
    expect(data.map(({ type }) => type)).toEqual(['message', 'code_interpreter_call', 'message'])
    expect((await ask('on we go', { conversation: id })).output_text).toBe('on we go')
  })
})

async function read(stream: AsyncIterable<ResponseStreamEvent>): Promise<ResponseStreamEvent[]> {
  const events: ResponseStreamEvent[] = []
  for await (const event of stream) events.push(event)
  return events
}

function indexOf(event: ResponseStreamEvent): number | undefined {
  return 'output_index' in event ? event.output_index : undefined
}
