import { Agent, run, tool } from '@openai/agents'
import { z } from 'zod'
import './page.mjs'

const agent = new Agent({ name: 'a', model: 'echo-1' })
const getWeather = tool({
  name: 'get_weather',
  description: 'The weather of a city',
  parameters: z.object({ city: z.string() }),
  execute: ({ city }) => `sunny in ${city}`,
})

export async function whole(prompt) {
  return (await run(agent, prompt)).finalOutput
}

export async function* streamed(prompt) {
  const stream = await run(agent, prompt, { stream: true })
  for await (const piece of stream.toTextStream()) yield piece
}

export async function tools(prompt) {
  return (await run(new Agent({ name: 'a', model: 'echo-1', tools: [getWeather] }), prompt)).finalOutput
}
