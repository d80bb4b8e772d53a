/*
 * Output of a run, shared between the interpreter's thread and the main thread. The output remains available if the thread is terminated
 * within a loop. A program that writes endlessly fills the buffer and no more memory.
 */

const [WRITTEN, IS_NOTIFIED] = [0, 1]
/** Header: two numbers of 4 bytes, then one of 8 for the total bytes written, including dropped ones. */
const HEADER_BYTES = 16
/** Maximum spare buffers: two for each of the 32 runs that may end at the same time. */
const SPARE_MAX = 64

/** Written by one thread, read by another. `buffer` is the shared memory. */
export class SharedOutput {
  readonly buffer: SharedArrayBuffer
  readonly #state: Int32Array
  readonly #total: BigInt64Array
  readonly #bytes: Uint8Array
  #taken = 0

  /** @param buffer A buffer of {@link makeOutputBuffer}. */
  constructor(buffer: SharedArrayBuffer) {
    this.buffer = buffer
    this.#state = new Int32Array(buffer, 0, 2)
    this.#total = new BigInt64Array(buffer, 8, 1)
    this.#bytes = new Uint8Array(buffer, HEADER_BYTES)
  }

  /** Adds bytes as long as there is space. Returns true if the reader must be notified, that is, was not notified since its last read. */
  write(bytes: Uint8Array): boolean {
    const written = this.#state[WRITTEN] as number
    // After the first dropped byte nothing is added any more, even if it would fit.
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

  /** Total bytes written, including dropped ones. */
  get total(): number {
    return Number(Atomics.load(this.#total, 0))
  }
}

/** Up to `count` bytes, without splitting a UTF-8 character. */
function wholeCharacters(bytes: Uint8Array, count: number): number {
  let whole = Math.min(count, bytes.length)
  while (whole > 0 && ((bytes[whole] ?? 0) & 0xc0) === 0x80) whole--
  return whole
}

export function makeOutputBuffer(bytes: number): SharedArrayBuffer {
  return new SharedArrayBuffer(HEADER_BYTES + bytes)
}

/**
 * Pool of buffers for reuse. Each has 1 MiB outside the heap. The garbage collector does not count that memory, so hundreds of unused
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

  /** Returns a buffer whose writer has ended and whose reader has read everything. */
  giveBack(buffer: SharedArrayBuffer): void {
    new Uint8Array(buffer).fill(0)
    if (this.#spare.length < SPARE_MAX) this.#spare.push(buffer)
  }
}
