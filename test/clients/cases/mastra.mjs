import { Agent } from '@mastra/core/agent'
import { createTool } from '@mastra/core/tools'
import { z } from 'zod'
import { agent, openai } from './page.mjs'

const get_weather = createTool({
  id: 'get_weather',
  description: 'The weather of a city',
  inputSchema: z.object({ city: z.string() }),
  execute: ({ city }) => Promise.resolve(`sunny in ${city}`),
})

export async function whole(prompt) {
  return (await agent.generate(prompt)).text
}

export async function* streamed(prompt) {
  yield* (await agent.stream(prompt)).textStream
}

export async function tools(prompt) {
  const model = openai('echo-1')
  const withTools = new Agent({ id: 'b', name: 'b', instructions: 'Be brief.', model, tools: { get_weather } })
  return (await withTools.generate(prompt)).text
}
