/**
 * Vectors on the wire. Both forms are made from the same float32 values, so that a caller gets the same vector whichever
 * is asked for.
 */

/** Bytes of one number. */
const FLOAT_BYTES = 4

/** Base64 of the numbers as little-endian float32, which is how every platform that Node runs on here keeps them. */
export function vectorToBase64(vector: Float32Array): string {
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64')
}

/** The numbers of {@link vectorToBase64}; undefined when the text is not whole float32 values in base64. */
export function vectorFromBase64(text: string): Float32Array | undefined {
  // Node skips what is no base64, so the length tells.
  const bytes = Buffer.from(text, 'base64')
  const isWhole = bytes.length > 0 && bytes.length % FLOAT_BYTES === 0
  if (!isWhole || Math.ceil(bytes.length / 3) * 4 !== text.length) return undefined
  const vector = new Float32Array(bytes.length / FLOAT_BYTES)
  new Uint8Array(vector.buffer).set(bytes)
  return vector
}

/** Numbers that JSON writes as short as they may be: each reads back to the same float32. */
export function shortNumbers(vector: Float32Array): number[] {
  const numbers = new Array<number>(vector.length)
  for (let i = 0; i < vector.length; i++) numbers[i] = shortNumber(vector[i] as number)
  return numbers
}

/** Digits after the point that are tried first for numbers below 1; those of embeddings mostly are. */
const SCALE_MIN = 1e6
/** The largest power of ten whose quotients of whole numbers are rounded as decimal text is. */
const SCALE_MAX = 1e22

/**
 * The double with the fewest decimals that float32 rounds to the number. As a double 0.1f is 0.10000000149011612; what is
 * given is 0.1. A quotient of whole numbers below 2⁵³ by 10ⁿ, n ≤ 22, is the very double that its decimal text stands for.
 */
function shortNumber(value: number): number {
  for (let scale = SCALE_MIN / magnitude(value); scale <= SCALE_MAX; scale *= 10) {
    const short = Math.round(value * scale) / scale
    if (Math.fround(short) === value) return short
  }
  return value
}

/** A power of ten near the number, at most 1: it has that many zeros after the point. */
function magnitude(value: number): number {
  const size = Math.abs(value)
  if (size >= 0.1) return 1
  if (size >= 0.01) return 0.1
  if (size >= 0.001) return 0.01
  return 0.001
}
