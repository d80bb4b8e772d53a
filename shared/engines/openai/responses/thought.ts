import type { Part } from '#schemas/generate.ts'

type ReasoningPart = Extract<Part, { type: 'reasoning' }>

/** Before the id of an item and its sealed content, in the signature of a thought. */
const PREFIX = 'responses:'

/** The signature of a thought, by which its item can be sent back. @param sealed `encrypted_content` */
export function signatureOf(id: string, sealed: string): string {
  return `${PREFIX}${id}:${sealed}`
}

/**
 * A thought as an item of the input. One without a seal of this API, such as that of another model, can only be read as text.
 *
 * @param readsText The upstream reads thoughts as text.
 * @param isSame The thought came in by this API: its fields are sent as they came.
 * @returns undefined when it is left out
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
