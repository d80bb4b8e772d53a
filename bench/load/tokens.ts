/*
 * Tokens that contain the time at which they were sent: `@` and 16 digits of `nowMicros`. A gateway may join tokens to one frame, and
 * packets may split a frame. The reader finds each token in either case.
 */
const DIGITS = 16
const MARK = '@'

/** Text in a prompt that makes the mock upstream send a stream in lockstep. All such streams receive their tokens at the same moments. */
export const LOCKSTEP = 'in-lockstep'

/** Microseconds of the monotonic clock, which is the same in all processes of the machine. */
export function nowMicros(): number {
  const [seconds, nanos] = process.hrtime()
  return seconds * 1_000_000 + Math.trunc(nanos / 1_000)
}

export function writeToken(micros: number): string {
  return MARK + String(micros).padStart(DIGITS, '0')
}

export class TokenReader {
  #rest = ''

  /** Returns the sending times, in microseconds, of the tokens that are complete after these bytes. */
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
