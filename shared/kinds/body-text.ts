import { z } from 'zod'

/* Schemas that find the text in request bodies and answers of all endpoints, for tables and lists. A body that matches none of them has no text. */

const Chat = z.looseObject({ choices: z.tuple([z.looseObject({ message: z.looseObject({ content: z.string() }) })]) })
const Completion = z.looseObject({ choices: z.tuple([z.looseObject({ text: z.string() })]) })
const Blocks = z.looseObject({ content: z.array(z.looseObject({ text: z.string().optional() })) })
const Response = z.looseObject({
  output: z.array(z.looseObject({ content: z.array(z.looseObject({ text: z.string().optional() })).optional() })),
})
const Printed = z.looseObject({ stdout: z.string(), stderr: z.string() })
const Transcript = z.looseObject({ text: z.string() })

/** Returns the text of an answer of any endpoint. Undefined for an answer without text, such as a vector. */
export function answerText(body: unknown): string | undefined {
  if (typeof body === 'string') return body
  const printed = Printed.safeParse(body).data
  if (printed) return printed.stdout + printed.stderr
  const blocks = Blocks.safeParse(body).data?.content.map(({ text }) => text ?? '')
  const items = Response.safeParse(body).data?.output.flatMap(({ content = [] }) =>
    content.map(({ text }) => text ?? ''),
  )
  const choice =
    Chat.safeParse(body).data?.choices[0].message.content ?? Completion.safeParse(body).data?.choices[0].text
  return choice ?? blocks?.join('') ?? items?.join('') ?? Transcript.safeParse(body).data?.text
}

/**
 * Fields with the prompt in the bodies of, in this order: chats, responses and embeddings, completions, rankings, and Python code. The last fields
 * are those of stored jobs (`schemas/kinds/`): generation, embeddings and research.
 */
const PROMPT_FIELDS = ['messages', 'input', 'prompt', 'query', 'code', 'turns', 'inputs', 'question'] as const

/**
 * Returns the prompt of a request to any endpoint, or of the stored body of a job. For a conversation, this is the last user message. Undefined for a
 * body without text, such as audio.
 */
export function promptText(body: unknown): string | undefined {
  if (typeof body !== 'object' || body === null) return undefined
  const fields = body as Partial<Record<(typeof PROMPT_FIELDS)[number], unknown>>
  const field = PROMPT_FIELDS.find((name) => fields[name] !== undefined)
  return field && textIn(fields[field])
}

/**
 * Returns the last text in a value, which is a text, a message, or a list of messages, parts or texts. If a list has user messages, then only these
 * are searched.
 */
function textIn(value: unknown): string | undefined {
  if (typeof value === 'string') return value
  if (!Array.isArray(value)) {
    const { content, parts = content, text } = (value ?? {}) as { content?: unknown; parts?: unknown; text?: unknown }
    return typeof text === 'string' ? text : parts === undefined ? undefined : textIn(parts)
  }
  const ofUser = value.filter((item) => (item as { role?: unknown } | null)?.role === 'user')
  for (const item of (ofUser.length > 0 ? ofUser : value).toReversed()) {
    const text = textIn(item)
    if (text) return text
  }
  return undefined
}
