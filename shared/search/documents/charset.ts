/** Error for a broken document, or for one that does not have its declared type. Callers receive the message. */
export class Unreadable extends Error {}

/** Number of bytes at the start of a document in which its encoding may be declared (HTML, 4.2.5.4 Specifying the document's character encoding). */
const HEAD_BYTES = 1_024

/**
 * Decodes a document.
 *
 * The first known encoding is used, in this order: byte order mark, HTTP's `charset`, declaration in the document, UTF-8. Invalid UTF-8 is decoded as
 * Windows-1252.
 *
 * @param bytesMax Maximum bytes that are decoded. A character that is cut at this length is omitted.
 * @throws Unreadable if the document is binary
 */
export function decodeText(whole: Uint8Array, charset?: string, bytesMax = Number.POSITIVE_INFINITY): string {
  const bytes = whole.subarray(0, bytesMax)
  const options = { stream: bytes.length < whole.length }
  const said = markOf(bytes) ?? known(charset) ?? known(declaredIn(bytes))
  if (said === undefined || said === 'utf-8') requireText(bytes)
  if (said !== undefined) return new TextDecoder(said).decode(bytes, options)
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes, options)
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

function known(label: string | undefined): string | undefined {
  if (label === undefined) return undefined
  try {
    return new TextDecoder(label.trim()).encoding
  } catch {
    return undefined
  }
}

/** Rejects binary data, which is recognized by a zero byte. */
function requireText(bytes: Uint8Array): void {
  if (bytes.includes(0)) throw new Unreadable('The document is binary.')
}
