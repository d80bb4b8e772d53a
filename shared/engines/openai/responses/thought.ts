import type { Part } from '#schemas/generate.ts'

type ReasoningPart = Extract<Part, { type: 'reasoning' }>

/** Prefix of a reasoning signature that contains an item id and its encrypted content. */
const PREFIX = 'responses:'

/** The signature of a reasoning item, from which the item can be restored. @param sealed `encrypted_content` */
export function signatureOf(id: string, sealed: string): string {
  return `${PREFIX}${id}:${sealed}`
}

/**
 * A reasoning part as an input item. Without a signature of this API, for example from another model, it can only be sent as text.
 *
 * @param readsText Whether the upstream accepts reasoning as text.
 * @param isSame Whether the request uses this API: then its extra fields are passed on.
 * @returns Undefined if the part is left out
 */
export function thoughtOf(part: ReasoningPart, readsText: boolean, isSame: boolean): object | undefined {
  const { text, signature } = part
  const extra = isSame ? part.extra : undefined
  if (signature?.startsWith(PREFIX)) {
    const colon = signature.indexOf(':', PREFIX.length)
    const id = signature.slice(PREFIX.length, colon)
    const summary = text === '' ? [] : [{ type: 'summary_text', text }]
    const named = id === '' ? {} : { id }
    return { type: 'reasoning', ...named, summary, encrypted_content: signature.slice(colon + 1), ...extra }
  }
  if (!readsText || text === '') return undefined
  return { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text }], ...extra }
}
