import { WasiError } from './abi.ts'

/** Timestamp in nanoseconds of nodes that have none. The year 1980 is the oldest in zip files. */
const EPOCH_NS = 315_532_800_000_000_000n

export class Quota {
  #bytesLeft: number
  #nodesLeft: number
  readonly fileBytesMax: number

  constructor(limits: { readonly bytes: number; readonly nodes: number; readonly fileBytes: number }) {
    this.#bytesLeft = limits.bytes
    this.#nodesLeft = limits.nodes
    this.fileBytesMax = limits.fileBytes
  }

  /**
   * Takes quota. A negative amount returns quota.
   *
   * @throws WasiError `nospc`
   */
  take(bytes: number, nodes = 0): void {
    if (bytes > this.#bytesLeft || nodes > this.#nodesLeft) throw new WasiError('nospc')
    this.#bytesLeft -= bytes
    this.#nodesLeft -= nodes
  }
}

let lastInode = 0n

export class Inode {
  readonly inode = ++lastInode
  modifiedNs = EPOCH_NS
}

/** A read-only file, whose bytes are loaded when the file is first read. */
export class StoredFile extends Inode {
  readonly size: number
  readonly #load: () => Uint8Array
  #bytes: Uint8Array | undefined

  constructor(size: number, load: () => Uint8Array) {
    super()
    this.size = size
    this.#load = load
  }

  read(position: number, target: Uint8Array): number {
    this.#bytes ??= this.#load()
    const part = this.#bytes.subarray(position, position + target.length)
    target.set(part)
    return part.length
  }
}

export class ScratchFile extends Inode {
  readonly #quota: Quota
  #bytes = new Uint8Array(0)
  #size = 0
  /** Number of references: one for the file's name, and one per open descriptor. At 0, the quota is returned. */
  #holders = 1

  constructor(quota: Quota) {
    super()
    quota.take(0, 1)
    this.#quota = quota
    this.modifiedNs = now()
  }

  get size(): number {
    return this.#size
  }

  read(position: number, target: Uint8Array): number {
    const part = this.#bytes.subarray(Math.min(position, this.#size), Math.min(position + target.length, this.#size))
    target.set(part)
    return part.length
  }

  /**
   * Writes bytes.
   *
   * @throws WasiError `fbig` or `nospc`. In this case no byte is written
   */
  write(position: number, source: Uint8Array): void {
    if (position + source.length > this.#size) this.resize(position + source.length)
    this.#bytes.set(source, position)
    this.modifiedNs = now()
  }

  resize(size: number): void {
    if (size > this.#quota.fileBytesMax) throw new WasiError('fbig')
    this.#quota.take(size - this.#size)
    if (size > this.#bytes.length) this.#grow(size)
    // The bytes are copied into a smaller buffer, because the quota of the removed bytes is returned and their memory
    // must therefore be freed.
    if (size < this.#size) this.#bytes = this.#bytes.slice(0, size)
    this.#size = size
    this.modifiedNs = now()
  }

  hold(): void {
    this.#holders += 1
  }

  release(): void {
    this.#holders -= 1
    if (this.#holders > 0) return
    this.#quota.take(-this.#size, -1)
    this.#bytes = new Uint8Array(0)
    this.#size = 0
  }

  /** Doubles the buffer, because otherwise a file that is written in small pieces would be copied for each piece. */
  #grow(size: number): void {
    const grown = new Uint8Array(Math.min(this.#quota.fileBytesMax, Math.max(size, 2 * this.#bytes.length, 1_024)))
    grown.set(this.#bytes.subarray(0, this.#size))
    this.#bytes = grown
  }
}

function now(): bigint {
  return BigInt(Date.now()) * 1_000_000n
}
