/** A document that is not what it says it is; the message is a sentence for people. */
export class Unreadable extends Error {}

/** Bytes in which a document says what it is written in (HTML, 4.2.5.4 Specifying the document's character encoding). */
const HEAD_BYTES = 1_024

/**
 * The text of a document: by its byte order mark, else as HTTP says, else as the document itself says, else as UTF-8, or as
 * Windows' Latin 1 where it is none.
 *
 * @throws Unreadable When it is binary
 */
export function decodeText(bytes: Uint8Array, charset?: string): string {
  const said = markOf(bytes) ?? known(charset) ?? known(declaredIn(bytes))
  if (said === undefined || said === 'utf-8') requireText(bytes)
  if (said !== undefined) return new TextDecoder(said).decode(bytes)
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch {
    return new TextDecoder('windows-1252').decode(bytes)
  }
}

function markOf(bytes: Uint8Array): string | undefined {
  const [a, b, c] = bytes
  if (a === 0xef && b === 0xbb && c === 0xbf) return 'utf-8'
  if (a === 0xff && b === 0xfe) return 'utf-16le'
  return a === 0xfe && b === 0xff ? 'utf-16be' : undefined
}

function declaredIn(bytes: Uint8Array): string | undefined {
  const head = new TextDecoder('latin1').decode(bytes.subarray(0, HEAD_BYTES))
  return /<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w:-]{1,40})/i.exec(head)?.[1]
}

/** The decoder's own name of an encoding; undefined for one that it does not know. */
function known(label: string | undefined): string | undefined {
  if (label === undefined) return undefined
  try {
    return new TextDecoder(label.trim()).encoding
  } catch {
    return undefined
  }
}

/** Texts in bytes hold no zeros. */
function requireText(bytes: Uint8Array): void {
  if (bytes.includes(0)) throw new Unreadable('The document is binary.')
}
