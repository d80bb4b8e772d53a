import { randomBytes } from 'node:crypto'

const ALPHABET = '0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghjkmnpqrstvwxyz'
const POOL_BYTES = 8_192

// One block of random bytes serves hundreds of ids, because a system call per id would cost more than the rest of its creation.
let pool = Buffer.alloc(0)
let position = 0

/** A random id: `prefix` plus `length` characters that need no escaping, with about 5.7 bits each. */
export function newId(prefix: string, length = 24): string {
  let id = prefix
  for (let i = 0; i < length; ) {
    if (position >= pool.length) {
      pool = randomBytes(POOL_BYTES)
      position = 0
    }
    // Bytes beyond the largest multiple of the alphabet would favour its first characters.
    const byte = pool[position++] as number
    if (byte >= 256 - (256 % ALPHABET.length)) continue
    id += ALPHABET[byte % ALPHABET.length]
    i++
  }
  return id
}

/** Hash by FNV-1a, so that every process, in any language, computes an equal value. */
export function hashOf(text: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0
  return hash
}
