import { objectIn } from '#shared/json/object.ts'

/*
 * `encrypted_content` of a reasoning item: what its model needs to read it again, such as a signature. It is opaque to
 * callers, who send it back with the item; nothing in it is a secret of ours.
 */

const PREFIX = 'sluice1.'

/** What of a thought only its model can read; undefined where there is none. */
export function sealReasoning(signature: string | undefined, redacted: string | undefined): string | undefined {
  if (signature === undefined && redacted === undefined) return undefined
  return PREFIX + Buffer.from(JSON.stringify({ signature, redacted })).toString('base64url')
}

/** The same again; nothing for what this service has not made. */
export function unsealReasoning(sealed: string | null | undefined): { signature?: string; redacted?: string } {
  if (!sealed?.startsWith(PREFIX)) return {}
  // Cut or changed on its way: as good as one of another service.
  const { signature, redacted } = objectIn(Buffer.from(sealed.slice(PREFIX.length), 'base64url').toString()) ?? {}
  return {
    ...(typeof signature === 'string' && { signature }),
    ...(typeof redacted === 'string' && { redacted }),
  }
}
