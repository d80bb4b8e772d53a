import { BASE } from '#services/console/place.ts'

/** The form of the playground for what a model can do, the first that it can. */
const FORM_OF = [
  ['chat', 'chat'],
  ['transcription', 'audio'],
  ['speech', 'speech'],
  ['embeddings', 'embeddings'],
  ['rerank', 'rerank'],
  ['deep_research', 'research'],
] as const

interface TryItProps {
  readonly model: string
  readonly capabilities: readonly string[]
  readonly class?: string
}

/** Leads to the form of the playground that calls a model; nothing where none does. */
export function TryIt({ model, capabilities, class: look }: TryItProps) {
  const [, form] = FORM_OF.find(([capability]) => capabilities.includes(capability)) ?? []
  if (!form) return null
  const query = new URLSearchParams({ form, model })
  return (
    <a class={look} href={`${BASE}/playground?${query}`} aria-label={`Try it: ${model} in the playground`}>
      Try it
    </a>
  )
}
