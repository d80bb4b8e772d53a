import type { ChatBody } from './chat.ts'

/** A language that a call can be shown in. */
export const LANGUAGES = ['curl', 'Python', 'TypeScript'] as const
export type Language = (typeof LANGUAGES)[number]

/** The code that makes a call from elsewhere. @param origin Of the service */
export function codeOf(language: Language, body: ChatBody, origin: string): string {
  if (language === 'curl') return curlOf(body, origin)
  return language === 'Python' ? pythonOf(body, origin) : typescriptOf(body, origin)
}

function curlOf(body: ChatBody, origin: string): string {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''")
  return `curl -N ${origin}/v1/chat/completions \\
  -H "Authorization: Bearer $SLUICE_API_KEY" \\
  -H 'Content-Type: application/json' \\
  -d '${json}'`
}

function pythonOf({ stream: _, stream_options: __, ...body }: ChatBody, origin: string): string {
  const args = Object.entries(body).map(([name, value]) => `    ${name}=${JSON.stringify(value)},`)
  return `import os
from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key=os.environ["SLUICE_API_KEY"])
stream = client.chat.completions.create(
${args.join('\n')}
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`
}

function typescriptOf({ stream_options: _, ...body }: ChatBody, origin: string): string {
  return `import OpenAI from 'openai'

const client = new OpenAI({
  baseURL: '${origin}/v1',
  apiKey: process.env.SLUICE_API_KEY,
})
const stream = await client.chat.completions.create(${JSON.stringify(body, null, 2)})
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta.content ?? '')
}`
}
