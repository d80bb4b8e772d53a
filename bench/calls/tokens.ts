/**
 * Tokens that carry the time they were sent: `@` and 16 digits of {@link nowMicros}.
 *
 * A gateway may join the tokens of a frame, or cut frames between packets; each token can still be told and timed.
 */
const DIGITS = 16
const MARK = '@'

/** Stands in a request whose stream is to be in step with all others that say so. */
export const IN_STEP = 'in-step'

/**
 * Microseconds of the machine's monotonic clock. All processes of one machine share it, so a time written into a token by
 * one process can be compared in another.
 */
export function nowMicros(): number {
  const [seconds, nanos] = process.hrtime()
  return seconds * 1_000_000 + Math.trunc(nanos / 1_000)
}

/** The text of a token sent now. */
export function writeToken(micros: number): string {
  return MARK + String(micros).padStart(DIGITS, '0')
}

/** Finds the tokens in the bytes of one answer, in order. */
export class TokenReader {
  #rest = ''

  /** The send times of the tokens that these bytes complete, in microseconds. */
  read(bytes: Buffer): number[] {
    const text = this.#rest + bytes.toString('latin1')
    const times: number[] = []
    let at = text.indexOf(MARK)
    while (at >= 0 && at + DIGITS < text.length) {
      times.push(Number(text.slice(at + 1, at + 1 + DIGITS)))
      at = text.indexOf(MARK, at + DIGITS)
    }
    this.#rest = at < 0 ? '' : text.slice(at)
    return times
  }
}
