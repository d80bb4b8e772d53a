import { randomBytes } from 'node:crypto'

const ALPHABET = '0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghjkmnpqrstvwxyz'
const POOL_BYTES = 8_192

// One block of random bytes serves hundreds of ids. A system call per id would cost more than the rest of its creation.
let pool = Buffer.alloc(0)
let position = 0

/** A random id: `prefix` and `length` characters with about 5.7 bits each. No character needs escaping in URLs. */
export function newId(prefix: string, length = 24): string {
  let id = prefix
  for (let i = 0; i < length; ) {
    if (position >= pool.length) {
      pool = randomBytes(POOL_BYTES)
      position = 0
    }
    // A byte at or above the largest multiple of the alphabet's length is skipped. Otherwise the first
    // characters of the alphabet would be more frequent.
    const byte = pool[position++] as number
    if (byte >= 256 - (256 % ALPHABET.length)) continue
    id += ALPHABET[byte % ALPHABET.length]
    i++
  }
  return id
}

/** FNV-1a hash. Every process, in any language, computes an equal value for a text. */
export function hashOf(text: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0
  return hash
}
