import type { Part } from '#schemas/generate.ts'

type ReasoningPart = Extract<Part, { type: 'reasoning' }>

/** Before the id of an item and what its model sealed, in the signature of a thought. */
const PREFIX = 'responses:'

/** The signature of a thought, by which its item can be sent back. @param sealed `encrypted_content` */
export function signatureOf(id: string, sealed: string): string {
  return `${PREFIX}${id}:${sealed}`
}

/**
 * A thought as an item of the input. One without a seal of this API, such as that of another model, can only be read as text.
 *
 * @param readsText The upstream reads thoughts as text.
 * @returns undefined when it is left out
 */
export function thoughtOf({ text, signature }: ReasoningPart, readsText: boolean): object | undefined {
  if (signature?.startsWith(PREFIX)) {
    const colon = signature.indexOf(':', PREFIX.length)
    const id = signature.slice(PREFIX.length, colon)
    const summary = text === '' ? [] : [{ type: 'summary_text', text }]
    return { type: 'reasoning', id, summary, encrypted_content: signature.slice(colon + 1) }
  }
  if (!readsText || text === '') return undefined
  return { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text }] }
}
