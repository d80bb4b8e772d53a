import { createHash } from 'node:crypto'

/** The name of a text: its hash, in hex. */
export function sha256Of(text: string): string {
  return createHash('sha256').update(text, 'utf8').digest('hex')
}
