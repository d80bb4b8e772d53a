import { ServiceError } from './error.ts'

/**
 * Bytes of memory that a call holds for each byte of its body, measured: what has arrived, the parsed values beside it (two
 * bytes a character as soon as one of them needs them), and what waits for the garbage collector.
 */
export const HELD_PER_BYTE = 3
/** What a value of a body costs beside its bytes: an empty object is two of them. */
export const HELD_PER_VALUE = 64

/** When those who were refused may come back. */
const RETRY_AFTER_MS = 2_000

/** How much may be held. */
export interface ByteBudgetOptions {
  readonly bytesMax: number
  /** Of one key: what it holds must not keep all others out. */
  readonly keyBytesMax: number
}

/**
 * The memory that request bodies of one process may take together, from their first byte until they lie in a blob or their
 * call has ended. Never waits: what is too much is refused.
 */
export class ByteBudget {
  readonly #options: ByteBudgetOptions
  readonly #heldByKey = new Map<string, number>()
  #held = 0

  constructor(options: ByteBudgetOptions) {
    this.#options = options
  }

  /** Bytes held now. */
  get held(): number {
    return this.#held
  }

  /** Bytes that may be held. */
  get bytesMax(): number {
    return this.#options.bytesMax
  }

  /** Opens the account of one body, empty. Release it. */
  open(keyId: string): HeldBytes {
    return new HeldBytes(this, keyId)
  }

  /**
   * What one body of a key holds changes. Who is alone may hold more: the largest body would be refused for ever otherwise.
   *
   * @throws ServiceError `overloaded` when it would be too much; nothing has changed then
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

/** What one body holds of a {@link ByteBudget}. */
export class HeldBytes {
  readonly #budget: ByteBudget
  readonly #keyId: string
  #bytes = 0

  constructor(budget: ByteBudget, keyId: string) {
    this.#budget = budget
    this.#keyId = keyId
  }

  /** Bytes it holds now. */
  get bytes(): number {
    return this.#bytes
  }

  /** Holds so many bytes from now on, instead of what was held. @throws ServiceError `overloaded` */
  hold(bytes: number): void {
    this.#budget.move(this.#keyId, this.#bytes, bytes)
    this.#bytes = bytes
  }

  /** Holds at most so many from now on. */
  shrink(bytes: number): void {
    this.hold(Math.min(bytes, this.#bytes))
  }

  /** Holds nothing any more. A second call does nothing. */
  release(): void {
    this.hold(0)
  }
}

function refusal(whose: string): ServiceError {
  const message = `The server holds as many request bodies${whose} as it can. Try again shortly.`
  return new ServiceError('overloaded', message, { retryAfterMs: RETRY_AFTER_MS })
}
