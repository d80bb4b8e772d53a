import { generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import { openai } from './page.mjs'

const model = openai('echo-1')
const get_weather = tool({
  description: 'The weather of a city',
  inputSchema: z.object({ city: z.string() }),
  execute: ({ city }) => `sunny in ${city}`,
})

export async function whole(prompt) {
  return (await generateText({ model, prompt })).text
}

export function streamed(prompt) {
  return streamText({ model, prompt }).textStream
}

export async function tools(prompt) {
  return (await generateText({ model, prompt, tools: { get_weather }, stopWhen: stepCountIs(3) })).text
}
