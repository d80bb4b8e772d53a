/*
 * Tokens that contain their sending time: `@` and 16 digits of `nowMicros`. A gateway may join tokens to one frame or split a frame
 * between packets; each token is still found and timed.
 */
const DIGITS = 16
const MARK = '@'

/** Part of a prompt that requests a stream in lockstep: all such streams send their tokens at the same moments. */
export const LOCKSTEP = 'in-lockstep'

/** Microseconds of the monotonic clock, which all processes of the machine share. */
export function nowMicros(): number {
  const [seconds, nanos] = process.hrtime()
  return seconds * 1_000_000 + Math.trunc(nanos / 1_000)
}

/** The text of a token with its sending time. */
export function writeToken(micros: number): string {
  return MARK + String(micros).padStart(DIGITS, '0')
}

/** Finds the tokens in the bytes of one response, in order. */
export class TokenReader {
  #rest = ''

  /** Sending times, in microseconds, of the tokens that these bytes complete. */
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
