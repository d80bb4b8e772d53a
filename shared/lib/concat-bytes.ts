/**
 * Concatenates buffers, in steps for `runYielding`. A piece is removed from the list after it was copied, so that its memory is freed at once.
 *
 * @param bytes Size of the result. Bytes of the last piece beyond this size are ignored
 */
export function* concatBytes(pieces: Buffer[], bytes: number): Generator<undefined, Buffer> {
  const whole = Buffer.allocUnsafeSlow(bytes)
  let at = 0
  pieces.reverse()
  for (let piece = pieces.pop(); piece; piece = pieces.pop()) {
    at += piece.copy(whole, at, 0, Math.min(piece.length, bytes - at))
    yield
  }
  return whole
}
