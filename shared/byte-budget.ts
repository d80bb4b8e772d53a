import { ServiceError } from './lib/error.ts'

/**
 * Measured memory per byte of a request body. The sum covers the received bytes, the parsed strings (two bytes per character if
 * one needs them), and garbage not yet collected.
 */
export const HELD_PER_BYTE = 3
/** Additional memory per JSON value, in bytes. Needed because, for example, an empty object has only two bytes of text. */
export const HELD_PER_VALUE = 64

const RETRY_AFTER_MS = 2_000

export interface ByteBudgetOptions {
  readonly bytesMax: number
  /** Maximum bytes of one key, so that one key cannot use up the whole budget. */
  readonly keyBytesMax: number
}

/**
 * Memory budget for the request bodies of one process, from the first byte until the body is in a blob or the call has ended.
 * Never waits: a request beyond the budget is refused.
 */
export class ByteBudget {
  readonly #options: ByteBudgetOptions
  readonly #heldByKey = new Map<string, number>()
  #held = 0

  constructor(options: ByteBudgetOptions) {
    this.#options = options
  }

  get held(): number {
    return this.#held
  }

  get bytesMax(): number {
    return this.#options.bytesMax
  }

  /** Opens an empty account for one body. The caller releases it. */
  open(keyId: string): HeldBytes {
    return new HeldBytes(this, keyId)
  }

  /**
   * Changes the bytes of one body. A single body is always admitted, because otherwise the largest one would be refused forever.
   *
   * @throws ServiceError `overloaded` if the budget is exceeded; nothing is changed then
   */
  move(keyId: string, before: number, after: number): void {
    const { bytesMax, keyBytesMax } = this.#options
    const ofKey = (this.#heldByKey.get(keyId) ?? 0) - before
    const others = this.#held - before
    if (after > before && others > 0 && others + after > bytesMax) throw refusal('')
    if (after > before && ofKey > 0 && ofKey + after > keyBytesMax) throw refusal(' of this key')
    this.#held = others + after
    if (ofKey + after > 0) this.#heldByKey.set(keyId, ofKey + after)
    else this.#heldByKey.delete(keyId)
  }
}

/** Account of one body in a {@link ByteBudget}. */
export class HeldBytes {
  readonly #budget: ByteBudget
  readonly #keyId: string
  #bytes = 0

  constructor(budget: ByteBudget, keyId: string) {
    this.#budget = budget
    this.#keyId = keyId
  }

  get bytes(): number {
    return this.#bytes
  }

  /** Replaces the charged bytes. @throws ServiceError `overloaded` */
  hold(bytes: number): void {
    this.#budget.move(this.#keyId, this.#bytes, bytes)
    this.#bytes = bytes
  }

  /** Reduces the charged bytes to at most `bytes`. */
  shrink(bytes: number): void {
    this.hold(Math.min(bytes, this.#bytes))
  }

  release(): void {
    this.hold(0)
  }
}

function refusal(whose: string): ServiceError {
  const message = `The memory for request bodies${whose} is used up. Try again shortly.`
  return new ServiceError('overloaded', message, { retryAfterMs: RETRY_AFTER_MS })
}
