import { createAgent, tool } from 'langchain'
import { z } from 'zod'
import { model } from './page.mjs'

const getWeather = tool(({ city }) => `sunny in ${city}`, {
  name: 'get_weather',
  description: 'The weather of a city',
  schema: z.object({ city: z.string() }),
})

export async function whole(prompt) {
  return (await model.invoke(prompt)).text
}

export async function* streamed(prompt) {
  for await (const chunk of await model.stream(prompt)) if (chunk.text) yield chunk.text
}

export async function tools(prompt) {
  const agent = createAgent({ model, tools: [getWeather] })
  return (await agent.invoke({ messages: [{ role: 'user', content: prompt }] })).messages.at(-1).text
}
