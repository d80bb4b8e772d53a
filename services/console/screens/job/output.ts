/** The text fields of all response and chunk formats. */
interface Said {
  readonly choices?: readonly { readonly delta?: Words; readonly message?: Words }[]
  readonly type?: string
  readonly delta?: string | { readonly text?: string; readonly thinking?: string }
  readonly content?: readonly { readonly text?: string }[]
  readonly output?: readonly { readonly content?: readonly { readonly text?: string }[] }[]
  readonly text?: string
  readonly stdout?: string
  readonly stderr?: string
}
interface Words {
  readonly content?: string | null
}

export function textOfChunk(chunk: unknown): string {
  const said = (chunk ?? {}) as Said
  const [choice] = said.choices ?? []
  if (choice) return choice.delta?.content ?? ''
  if (typeof said.delta === 'string') return said.type?.includes('text.delta') ? said.delta : ''
  return said.delta?.text ?? ''
}

/** Undefined for a result without text, such as embeddings. */
export function textOfResult(result: unknown): string | undefined {
  if (typeof result === 'string') return result
  const said = (result ?? {}) as Said
  const [choice] = said.choices ?? []
  if (choice) return choice.message?.content ?? undefined
  if (Array.isArray(said.content)) return said.content.map(({ text = '' }) => text).join('')
  if (Array.isArray(said.output)) {
    return said.output.flatMap(({ content = [] }) => content.map(({ text = '' }) => text)).join('')
  }
  if (said.stdout !== undefined) return [said.stdout, said.stderr].filter(Boolean).join('\n')
  return said.text
}
