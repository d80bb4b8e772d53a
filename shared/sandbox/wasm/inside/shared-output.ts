/*
 * Output of a run, in memory that the interpreter's thread shares with the main thread. The output remains available if the thread is
 * terminated. A program that writes endlessly fills the buffer and uses no more memory.
 */

const [WRITTEN, IS_NOTIFIED] = [0, 1]
/**
 * Bytes of the header before the output: WRITTEN and IS_NOTIFIED with 4 bytes each, then a count of 8 bytes of all written bytes, including dropped
 * ones.
 */
const HEADER_BYTES = 16
/** Maximum unused buffers. At most 32 runs may end at the same time, and each run has two buffers. */
const SPARE_MAX = 64

export class SharedOutput {
  readonly buffer: SharedArrayBuffer
  readonly #state: Int32Array
  readonly #total: BigInt64Array
  readonly #bytes: Uint8Array
  #taken = 0

  constructor(buffer: SharedArrayBuffer) {
    this.buffer = buffer
    this.#state = new Int32Array(buffer, 0, 2)
    this.#total = new BigInt64Array(buffer, 8, 1)
    this.#bytes = new Uint8Array(buffer, HEADER_BYTES)
  }

  /** Adds bytes while there is space. Returns true if the reader must be notified, because it was not notified since its last read. */
  write(bytes: Uint8Array): boolean {
    const written = this.#state[WRITTEN] as number
    // After the first dropped byte, all further bytes are dropped too, because otherwise the output would have a gap.
    const room = this.total > this.#bytes.length ? 0 : this.#bytes.length - written
    const part = bytes.subarray(0, wholeCharacters(bytes, room))
    this.#bytes.set(part, written)
    Atomics.add(this.#total, 0, BigInt(bytes.length))
    Atomics.store(this.#state, WRITTEN, written + part.length)
    return Atomics.exchange(this.#state, IS_NOTIFIED, 1) === 0
  }

  take(): Buffer {
    Atomics.store(this.#state, IS_NOTIFIED, 0)
    const written = Atomics.load(this.#state, WRITTEN)
    const part = Buffer.from(this.#bytes.slice(this.#taken, written))
    this.#taken = written
    return part
  }

  get total(): number {
    return Number(Atomics.load(this.#total, 0))
  }
}

/** Returns the number of bytes, at most `count`, that do not split a UTF-8 character. */
function wholeCharacters(bytes: Uint8Array, count: number): number {
  let whole = Math.min(count, bytes.length)
  while (whole > 0 && ((bytes[whole] ?? 0) & 0xc0) === 0x80) whole--
  return whole
}

export function makeOutputBuffer(bytes: number): SharedArrayBuffer {
  return new SharedArrayBuffer(HEADER_BYTES + bytes)
}

/**
 * Pool of reusable buffers. Each buffer has 1 MiB outside the heap, which the garbage collector does not count. Without the pool, hundreds of unused
 * buffers would accumulate.
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

  giveBack(buffer: SharedArrayBuffer): void {
    new Uint8Array(buffer).fill(0)
    if (this.#spare.length < SPARE_MAX) this.#spare.push(buffer)
  }
}
