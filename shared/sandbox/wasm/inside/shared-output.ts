/*
 * Output of a run on its way from the interpreter's thread to the main one: what was written is there even when the
 * thread is ended in the middle of a loop, and a program that writes without end fills this and no more.
 */

const [WRITTEN, IS_TOLD] = [0, 1]
/** Two numbers of 4 bytes, then one of 8: all that the program wrote, also what there was no room for. */
const HEADER_BYTES = 16
/** Buffers that wait: two for each of as many runs as may end at once. */
const SPARE_MAX = 64

/** Written by one thread, read by another. `buffer` is what they share. */
export class SharedOutput {
  readonly buffer: SharedArrayBuffer
  readonly #state: Int32Array
  readonly #total: BigInt64Array
  readonly #bytes: Uint8Array
  #taken = 0

  /** @param buffer Of {@link makeOutputBuffer}. */
  constructor(buffer: SharedArrayBuffer) {
    this.buffer = buffer
    this.#state = new Int32Array(buffer, 0, 2)
    this.#total = new BigInt64Array(buffer, 8, 1)
    this.#bytes = new Uint8Array(buffer, HEADER_BYTES)
  }

  /** Adds what there is room for; true when the reader must be told, which has not been since it last took. */
  write(bytes: Uint8Array): boolean {
    const written = this.#state[WRITTEN] as number
    // Once something was dropped nothing follows it, whatever would still fit.
    const room = this.total > this.#bytes.length ? 0 : this.#bytes.length - written
    const part = bytes.subarray(0, wholeCharacters(bytes, room))
    this.#bytes.set(part, written)
    Atomics.add(this.#total, 0, BigInt(bytes.length))
    Atomics.store(this.#state, WRITTEN, written + part.length)
    return Atomics.exchange(this.#state, IS_TOLD, 1) === 0
  }

  /** A copy of what was added since the last call. */
  take(): Buffer {
    Atomics.store(this.#state, IS_TOLD, 0)
    const written = Atomics.load(this.#state, WRITTEN)
    const part = Buffer.from(this.#bytes.slice(this.#taken, written))
    this.#taken = written
    return part
  }

  /** All bytes that were written. */
  get total(): number {
    return Number(Atomics.load(this.#total, 0))
  }
}

/** As many bytes, or a few less, so that no character of UTF-8 is cut. */
function wholeCharacters(bytes: Uint8Array, count: number): number {
  let whole = Math.min(count, bytes.length)
  while (whole > 0 && ((bytes[whole] ?? 0) & 0xc0) === 0x80) whole--
  return whole
}

/** Room for so many bytes. */
export function makeOutputBuffer(bytes: number): SharedArrayBuffer {
  return new SharedArrayBuffer(HEADER_BYTES + bytes)
}

/**
 * Buffers that are used again. Each is 1 MiB outside of the heap: the collector does not see how much lies there, and
 * would let hundreds wait.
 */
export class OutputBuffers {
  readonly #bytes: number
  readonly #spare: SharedArrayBuffer[] = []

  constructor(bytes: number) {
    this.#bytes = bytes
  }

  take(): SharedArrayBuffer {
    return this.#spare.pop() ?? makeOutputBuffer(this.#bytes)
  }

  /** Its writer has ended, and its reader has all. */
  giveBack(buffer: SharedArrayBuffer): void {
    new Uint8Array(buffer).fill(0)
    if (this.#spare.length < SPARE_MAX) this.#spare.push(buffer)
  }
}
