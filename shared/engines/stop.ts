import type { Logprob } from '#schemas/generate.ts'

/** What a {@link StopFilter} lets through. */
export interface Released {
  /** Text that no stop string can claim any more; ends on a whole character. Often empty. */
  readonly text: string
  /** Of the tokens whose last character is in this text or before it. */
  readonly logprobs: Logprob[]
  /** The stop string that was hit. The answer ends with `text`. */
  readonly hit?: string
}

/**
 * Holds back what could become a stop string, so that neither one nor its beginning is ever shown.
 *
 * The stop string that is complete first ends the answer, whatever the split into pushes; of two that end at the same
 * character the longer one counts. At most the length of the longest stop string is held.
 */
export class StopFilter {
  readonly #stops: readonly string[]
  readonly #tokens: { readonly end: number; readonly logprob: Logprob }[] = []
  #held = ''
  #releasedLength = 0

  /** @param stops Stop strings; empty ones are ignored */
  constructor(stops: readonly string[]) {
    this.#stops = stops.filter((stop) => stop !== '')
  }

  /** Takes the next piece of text with the token it came as. Not to be called after a hit. */
  push(text: string, logprob?: Logprob): Released {
    this.#held += text
    if (logprob) this.#tokens.push({ end: this.#releasedLength + this.#held.length, logprob })
    const match = this.#findMatch()
    if (match) {
      const released = this.#release(match.start)
      this.#tokens.length = 0
      return { ...released, hit: match.stop }
    }
    return this.#release(this.#held.length - this.#claimableLength())
  }

  /** The answer ended by itself, with `text` as its last piece: gives what was held back. */
  flush(text = ''): Released {
    this.#held += text
    return this.#release(this.#held.length)
  }

  #findMatch(): { start: number; stop: string } | undefined {
    let best: { start: number; stop: string; end: number } | undefined
    for (const stop of this.#stops) {
      const start = this.#held.indexOf(stop)
      if (start < 0) continue
      const end = start + stop.length
      if (!best || end < best.end || (end === best.end && start < best.start)) best = { start, stop, end }
    }
    return best
  }

  /** Length of the longest end of the held text that begins a stop string, or is half a character. */
  #claimableLength(): number {
    let longest = endsInHalfCharacter(this.#held) ? 1 : 0
    for (const stop of this.#stops) {
      for (let length = Math.min(stop.length - 1, this.#held.length); length > longest; length--) {
        if (this.#held.endsWith(stop.slice(0, length))) longest = length
      }
    }
    return longest
  }

  #release(length: number): Released {
    const text = this.#held.slice(0, length)
    this.#held = this.#held.slice(length)
    this.#releasedLength += length
    // A log probability travels with text only, so that no delta is empty.
    const ready = text === '' ? 0 : this.#tokens.findIndex((token) => token.end > this.#releasedLength)
    const tokens = this.#tokens.splice(0, ready < 0 ? this.#tokens.length : ready)
    return { text, logprobs: tokens.map((token) => token.logprob) }
  }
}

function endsInHalfCharacter(text: string): boolean {
  const last = text.charCodeAt(text.length - 1)
  return last >= 0xd800 && last < 0xdc00
}
