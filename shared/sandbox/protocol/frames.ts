/*
 * Frames between a sandbox and its supervisor: 1 byte type, 4 bytes big-endian length, payload. Between the service and the WebAssembly
 * process, a payload may begin with the number of a run, as 4 bytes big-endian.
 */

const HEADER_BYTES = 5
/**
 * Minimum bytes of a stored chunk. Shorter chunks are merged, because a program that writes byte by byte would
 * otherwise create an object per byte.
 */
const CHUNK_BYTES_MIN = 4_096

export interface Frame {
  readonly type: string
  readonly payload: Buffer
}

export class FrameReader {
  readonly #payloadMax: number
  #pending: Buffer[] = []
  #pendingBytes = 0

  /** @param payloadMax Maximum bytes of a payload. A frame with a longer payload is rejected. */
  constructor(payloadMax: number) {
    this.#payloadMax = payloadMax
  }

  /**
   * Yields the frames that are complete after this chunk.
   *
   * @throws RangeError for a frame that is too long, after which the stream is unusable
   */
  *push(chunk: Buffer): Iterable<Frame> {
    if (chunk.length > 0) this.#add(chunk)
    this.#pendingBytes += chunk.length
    for (;;) {
      const bytes = this.#nextBytes()
      if (bytes === undefined || this.#pendingBytes < bytes) return
      const all = this.#join()
      this.#pending = all.length > bytes ? [all.subarray(bytes)] : []
      this.#pendingBytes = all.length - bytes
      yield { type: String.fromCharCode(all[0] as number), payload: all.subarray(HEADER_BYTES, bytes) }
    }
  }

  /**
   * Stores a chunk. A short chunk is first merged with those preceding chunks that are not longer than it. Few chunks are therefore stored, and each
   * byte is copied only a few times.
   */
  #add(chunk: Buffer): void {
    let joined = chunk
    while (joined.length < CHUNK_BYTES_MIN) {
      const last = this.#pending.at(-1)
      if (!last || last.length > joined.length) break
      this.#pending.pop()
      joined = Buffer.concat([last, joined])
    }
    this.#pending.push(joined)
  }

  #nextBytes(): number | undefined {
    if (this.#pendingBytes < HEADER_BYTES) return undefined
    if ((this.#pending[0]?.length ?? 0) < HEADER_BYTES) this.#join()
    const length = (this.#pending[0] as Buffer).readUInt32BE(1)
    if (length > this.#payloadMax)
      throw new RangeError(`a frame has ${length} bytes; the maximum is ${this.#payloadMax}`)
    return HEADER_BYTES + length
  }

  #join(): Buffer {
    const [first] = this.#pending
    if (this.#pending.length === 1 && first) return first
    const all = Buffer.concat(this.#pending)
    this.#pending = [all]
    return all
  }
}

export function encodeFrame(type: string, payload: Uint8Array): Buffer {
  const header = Buffer.alloc(HEADER_BYTES)
  header.write(type, 'latin1')
  header.writeUInt32BE(payload.length, 1)
  return Buffer.concat([header, payload])
}

export function encodeRunFrame(type: string, run: number, payload: Uint8Array = Buffer.alloc(0)): Buffer {
  const number = Buffer.alloc(4)
  number.writeUInt32BE(run)
  return encodeFrame(type, Buffer.concat([number, payload]))
}

export function splitRun({ payload }: Frame): { run: number; rest: Buffer } {
  return { run: payload.readUInt32BE(0), rest: payload.subarray(4) }
}
