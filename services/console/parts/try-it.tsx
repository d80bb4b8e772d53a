import { BASE } from '#services/console/router.ts'

/** Capability → playground form; the first capability that a model has decides. */
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

/** A link to the playground form for a model; nothing if there is no such form. */
export function TryIt({ model, capabilities, class: className }: TryItProps) {
  const [, form] = FORM_OF.find(([capability]) => capabilities.includes(capability)) ?? []
  if (!form) return null
  const query = new URLSearchParams({ form, model })
  return (
    <a class={className} href={`${BASE}/playground?${query}`} aria-label={`Try it: ${model} in the playground`}>
      Try it
    </a>
  )
}
