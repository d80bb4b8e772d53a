interface ResponseShape {
  readonly choices?: readonly { readonly delta?: MessageShape; readonly message?: MessageShape }[]
  readonly type?: string
  readonly delta?: string | { readonly text?: string; readonly thinking?: string }
  readonly content?: readonly { readonly text?: string }[]
  readonly output?: readonly { readonly content?: readonly { readonly text?: string }[] }[]
  readonly text?: string
  readonly stdout?: string
  readonly stderr?: string
}
interface MessageShape {
  readonly content?: string | null
}

export function textOfChunk(chunk: unknown): string {
  const value = (chunk ?? {}) as ResponseShape
  const [choice] = value.choices ?? []
  if (choice) return choice.delta?.content ?? ''
  if (typeof value.delta === 'string') return value.type?.includes('text.delta') ? value.delta : ''
  return value.delta?.text ?? ''
}

/** Undefined for a result without text, such as embeddings. */
export function textOfResult(result: unknown): string | undefined {
  if (typeof result === 'string') return result
  const value = (result ?? {}) as ResponseShape
  const [choice] = value.choices ?? []
  if (choice) return choice.message?.content ?? undefined
  if (Array.isArray(value.content)) return value.content.map(({ text = '' }) => text).join('')
  if (Array.isArray(value.output)) {
    return value.output.flatMap(({ content = [] }) => content.map(({ text = '' }) => text)).join('')
  }
  if (value.stdout !== undefined) return [value.stdout, value.stderr].filter(Boolean).join('\n')
  return value.text
}
