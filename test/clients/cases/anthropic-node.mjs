import { client } from './page.mjs'

const input_schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
const tools_ = [{ name: 'get_weather', input_schema }]
const ask = { model: 'echo-1', max_tokens: 100 }

export async function whole(prompt) {
  return (await client.messages.create({ ...ask, messages: [{ role: 'user', content: prompt }] })).content[0].text
}

export async function* streamed(prompt) {
  const stream = client.messages.stream({ ...ask, messages: [{ role: 'user', content: prompt }] })
  for await (const event of stream) if (event.delta?.type === 'text_delta') yield event.delta.text
}

export async function tools(prompt) {
  const question = { role: 'user', content: prompt }
  const { content } = await client.messages.create({ ...ask, tools: tools_, messages: [question] })
  const call = content.find(({ type }) => type === 'tool_use')
  const result = { type: 'tool_result', tool_use_id: call.id, content: `sunny in ${call.input.city}` }
  const messages = [question, { role: 'assistant', content }, { role: 'user', content: [result] }]
  return (await client.messages.create({ ...ask, tools: tools_, messages })).content[0].text
}
