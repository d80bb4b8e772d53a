/** Vectors in requests and answers. Numbers and base64 are made from the same float32 values, so callers receive equal vectors in both formats. */

const FLOAT_BYTES = 4

/** Returns the base64 of little-endian float32 values, which is how every supported platform stores them in memory. */
export function vectorToBase64(vector: Float32Array): string {
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64')
}

/** Returns the vector that {@link vectorToBase64} encoded. Undefined if the text is not the base64 of complete float32 values. */
export function vectorFromBase64(text: string): Float32Array | undefined {
  // Node ignores invalid base64 characters, so invalid text is detected only by its decoded length.
  const bytes = Buffer.from(text, 'base64')
  const isWhole = bytes.length > 0 && bytes.length % FLOAT_BYTES === 0
  if (!isWhole || Math.ceil(bytes.length / 3) * 4 !== text.length) return undefined
  const vector = new Float32Array(bytes.length / FLOAT_BYTES)
  new Uint8Array(vector.buffer).set(bytes)
  return vector
}

export function shortNumbers(vector: Float32Array): number[] {
  const numbers = new Array<number>(vector.length)
  for (let i = 0; i < vector.length; i++) numbers[i] = shortNumber(vector[i] as number)
  return numbers
}

/** First power of ten that {@link shortNumber} tries for numbers of at least 0.1. For smaller numbers, the first power is higher. */
const SCALE_MIN = 1e6
/** Largest power of ten with which {@link shortNumber} divides. The quotient is correctly rounded up to this power. */
const SCALE_MAX = 1e22

/**
 * Returns the number with the fewest decimals that rounds to the given float32. Example: 0.1f as a double is 0.10000000149011612, and the result is
 * 0.1. Each candidate is an integer divided by a power of ten. For integers below 2⁵³ and powers up to 10²², the quotient is the number that parsing
 * the decimal text gives.
 */
function shortNumber(value: number): number {
  for (let scale = SCALE_MIN / magnitude(value); scale <= SCALE_MAX; scale *= 10) {
    const short = Math.round(value * scale) / scale
    if (Math.fround(short) === value) return short
  }
  return value
}

function magnitude(value: number): number {
  const size = Math.abs(value)
  if (size >= 0.1) return 1
  if (size >= 0.01) return 0.1
  if (size >= 0.001) return 0.01
  return 0.001
}
