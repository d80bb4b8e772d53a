/**
 * Pieces of bytes as one, to be run by `runYielding`: each is let go of as soon as it is copied, so that the list is empty afterwards.
 *
 * @param bytes How many there are; of the last piece the rest is left out.
 */
export function* joinBytes(pieces: Buffer[], bytes: number): Generator<undefined, Buffer> {
  const whole = Buffer.allocUnsafeSlow(bytes)
  let at = 0
  pieces.reverse()
  for (let piece = pieces.pop(); piece; piece = pieces.pop()) {
    at += piece.copy(whole, at, 0, Math.min(piece.length, bytes - at))
    yield
  }
  return whole
}
