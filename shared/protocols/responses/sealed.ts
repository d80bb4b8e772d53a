import { objectIn } from '#shared/json/object.ts'

/*
 * `encrypted_content` of a reasoning item: the data that the model needs to read its reasoning again, such as a signature. Callers send
 * it back with the item.
 *
 * Some clients (the AI SDK with `store: false`) drop items without this field. If the caller includes `reasoning.encrypted_content`, then
 * reasoning without a signature is therefore encoded as its text. The content is not secret.
 */

const PREFIX = 'sluice1.'

/** The parts of a reasoning item that its model needs. */
export interface SealedThought {
  readonly signature?: string | undefined
  readonly redacted?: string | undefined
  /** Text of reasoning that has neither a signature nor redacted data. */
  readonly text?: string | undefined
}

/** Encodes the parts; undefined if there are none. */
export function sealReasoning({ signature, redacted, text }: SealedThought): string | undefined {
  if (signature === undefined && redacted === undefined && text === undefined) return undefined
  return PREFIX + Buffer.from(JSON.stringify({ signature, redacted, text })).toString('base64url')
}

/** Whether Sluice created the content. */
export function isSealed(content: string): boolean {
  return content.startsWith(PREFIX)
}

/** Decodes the parts; empty for content that Sluice did not create or that was changed. */
export function unsealReasoning(sealed: string | null | undefined): SealedThought {
  if (!sealed || !isSealed(sealed)) return {}
  const { signature, redacted, text } = objectIn(Buffer.from(sealed.slice(PREFIX.length), 'base64url').toString()) ?? {}
  return {
    ...(typeof signature === 'string' && { signature }),
    ...(typeof redacted === 'string' && { redacted }),
    ...(typeof text === 'string' && { text }),
  }
}
