import { WasiError } from './abi.ts'

/** Timestamp of nodes without one, in nanoseconds: 1980, the oldest in zip files. */
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

  /** Takes quota, or returns it if negative. @throws WasiError `nospc` */
  take(bytes: number, nodes = 0): void {
    if (bytes > this.#bytesLeft || nodes > this.#nodesLeft) throw new WasiError('nospc')
    this.#bytesLeft -= bytes
    this.#nodesLeft -= nodes
  }
}

let lastInode = 0n

/** Common base of files and directories. */
export class Inode {
  readonly inode = ++lastInode
  modifiedNs = EPOCH_NS
}

/** A prepared file, whose bytes are loaded at the first read. */
export class StoredFile extends Inode {
  readonly size: number
  readonly #load: () => Uint8Array
  #bytes: Uint8Array | undefined

  constructor(size: number, load: () => Uint8Array) {
    super()
    this.size = size
    this.#load = load
  }

  /** Copies bytes from a position on and returns their number. */
  read(position: number, target: Uint8Array): number {
    this.#bytes ??= this.#load()
    const part = this.#bytes.subarray(position, position + target.length)
    target.set(part)
    return part.length
  }
}

/** A file that the guest created. */
export class ScratchFile extends Inode {
  readonly #quota: Quota
  #bytes = new Uint8Array(0)
  #size = 0
  /** Number of references: the name and each open descriptor. Without any, the quota is returned. */
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

  /** Copies bytes from a position on and returns their number. */
  read(position: number, target: Uint8Array): number {
    const part = this.#bytes.subarray(Math.min(position, this.#size), Math.min(position + target.length, this.#size))
    target.set(part)
    return part.length
  }

  /** @throws WasiError `fbig` or `nospc`; then nothing is written */
  write(position: number, source: Uint8Array): void {
    if (position + source.length > this.#size) this.resize(position + source.length)
    this.#bytes.set(source, position)
    this.modifiedNs = now()
  }

  /** Truncates the file or appends zeros. @throws WasiError `fbig` or `nospc` */
  resize(size: number): void {
    if (size > this.#quota.fileBytesMax) throw new WasiError('fbig')
    this.#quota.take(size - this.#size)
    if (size > this.#bytes.length) this.#grow(size)
    // A copy, because bytes returned to the quota must not stay in memory.
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

  /** Doubles the buffer, so that a file written in small pieces is not copied for each of them. */
  #grow(size: number): void {
    const grown = new Uint8Array(Math.min(this.#quota.fileBytesMax, Math.max(size, 2 * this.#bytes.length, 1_024)))
    grown.set(this.#bytes.subarray(0, this.#size))
    this.#bytes = grown
  }
}

function now(): bigint {
  return BigInt(Date.now()) * 1_000_000n
}
