import { objectIn } from '#shared/json/object.ts'

/*
 * `encrypted_content` of a reasoning item: what its model needs to read the thought again, such as a signature. Callers
 * send it back with the item. Some of them (the AI SDK with `store: false`) send back no item without it, so that a thought without
 * a signature is sealed as its text if the caller includes `reasoning.encrypted_content`. Nothing in it is a secret of the service.
 */

const PREFIX = 'sluice1.'

/** Parts of a thought that its model needs. */
export interface SealedThought {
  readonly signature?: string | undefined
  readonly redacted?: string | undefined
  /** Of a thought that has neither. */
  readonly text?: string | undefined
}

/** Undefined if there is nothing to seal. */
export function sealReasoning({ signature, redacted, text }: SealedThought): string | undefined {
  if (signature === undefined && redacted === undefined && text === undefined) return undefined
  return PREFIX + Buffer.from(JSON.stringify({ signature, redacted, text })).toString('base64url')
}

/** Whether Sluice made the content. */
export function isSealed(content: string): boolean {
  return content.startsWith(PREFIX)
}

/** The same again; nothing for content that Sluice did not make, or that was changed. */
export function unsealReasoning(sealed: string | null | undefined): SealedThought {
  if (!sealed || !isSealed(sealed)) return {}
  const { signature, redacted, text } = objectIn(Buffer.from(sealed.slice(PREFIX.length), 'base64url').toString()) ?? {}
  return {
    ...(typeof signature === 'string' && { signature }),
    ...(typeof redacted === 'string' && { redacted }),
    ...(typeof text === 'string' && { text }),
  }
}
