import { client } from './page.mjs'

const TOOL = {
  type: 'function',
  name: 'get_weather',
  strict: true,
  parameters: {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
    additionalProperties: false,
  },
}

export async function whole(prompt) {
  const messages = [{ role: 'user', content: prompt }]
  return (await client.chat.completions.create({ model: 'echo-1', messages })).choices[0].message.content
}

export async function* streamed(prompt) {
  const stream = client.responses.stream({ model: 'echo-1', input: prompt })
  for await (const event of stream) if (event.type === 'response.output_text.delta') yield event.delta
}

export async function tools(prompt) {
  const response = await client.responses.create({ model: 'echo-1', input: prompt, tools: [TOOL] })
  const call = response.output.find(({ type }) => type === 'function_call')
  const output = { type: 'function_call_output', call_id: call.call_id, output: 'sunny in city' }
  const request = { model: 'echo-1', input: [output], previous_response_id: response.id, tools: [TOOL] }
  return (await client.responses.create(request)).output_text
}
