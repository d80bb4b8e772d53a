import { randomBytes } from 'node:crypto'

const ALPHABET = '0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghjkmnpqrstvwxyz'
const POOL_BYTES = 8_192

// A block of random bytes that serves hundreds of ids. A system call for each id would cost more than the rest of its creation.
let pool = Buffer.alloc(0)
let position = 0

/**
 * Returns a random id: `prefix` and `length` characters with about 5.7 bits each. No character needs escaping in URLs.
 */
export function newId(prefix: string, length = 24): string {
  let id = prefix
  for (let i = 0; i < length; ) {
    if (position >= pool.length) {
      pool = randomBytes(POOL_BYTES)
      position = 0
    }
    // A byte at or above the largest multiple of the alphabet's length is skipped. Otherwise the first characters of
    // the alphabet would be more frequent.
    const byte = pool[position++] as number
    if (byte >= 256 - (256 % ALPHABET.length)) continue
    id += ALPHABET[byte % ALPHABET.length]
    i++
  }
  return id
}

/** Digits of Crockford's base 32, as in ULID. Texts of equal length sort like the numbers that they encode. */
const TIME_DIGITS = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'
export const TIME_LENGTH = 10
const REQUEST_RANDOM_LENGTH = 14

/** Returns a time in Unix milliseconds as ten characters that sort like the time. */
export function timeTextOf(atMs: number): string {
  let text = ''
  for (let rest = atMs, i = 0; i < TIME_LENGTH; i++, rest = Math.floor(rest / 32)) text = TIME_DIGITS[rest % 32] + text
  return text
}

export function timeOfText(text: string): number {
  let ms = 0
  for (const digit of text) ms = ms * 32 + TIME_DIGITS.indexOf(digit)
  return ms
}

/**
 * Id of a request: `req_`, ten characters of time, 14 random characters (80 bits). These ids sort by age, so new ids are written to the end of a
 * database index. Random ids would be written to many pages.
 */
export function newRequestId(): string {
  return newId(`req_${timeTextOf(Date.now())}`, REQUEST_RANDOM_LENGTH)
}

/** Returns the FNV-1a hash of a text. Processes of all versions must compute the same hash, so it must not be changed. */
export function hashOf(text: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0
  return hash
}
