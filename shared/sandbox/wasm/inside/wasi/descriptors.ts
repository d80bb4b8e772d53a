import { WasiError } from './abi.ts'
import type { Directory } from './file-tree.ts'
import { ScratchFile, type StoredFile } from './stored-files.ts'

/** A stream without a position. If `read` or `write` is missing, then the guest cannot read or write the stream. */
export interface Stream {
  readonly kind: 'stream'
  /** Fills a buffer and returns the number of bytes, 0 at the end. */
  readonly read?: (target: Uint8Array) => number
  /** Receives bytes that are valid only during the call. */
  readonly write?: (source: Uint8Array) => void
  /** Path under which the guest's library sees the stream as an initial directory. The library expects initial directories from descriptor 3 on. */
  readonly preopen?: string
}

export interface OpenDirectory {
  readonly kind: 'directory'
  readonly node: Directory
  /** Path of an initial directory. The guest's library resolves paths from it. Undefined for directories that the guest opened. */
  readonly preopen: string | undefined
  /** Names in the directory when the guest last read it from the beginning, so that a later change does not shift the positions. */
  listing: readonly string[]
}

export interface OpenFile {
  readonly kind: 'file'
  readonly node: StoredFile | ScratchFile
  readonly canRead: boolean
  readonly canWrite: boolean
  position: number
  isAppending: boolean
}

export type Descriptor = Stream | OpenDirectory | OpenFile

export class Descriptors {
  readonly #open: Array<Descriptor | undefined>
  readonly #max: number

  constructor(first: readonly Descriptor[], max: number) {
    this.#open = [...first]
    this.#max = max
  }

  /**
   * Adds a descriptor under the lowest free number, and returns that number.
   *
   * @throws WasiError `mfile`
   */
  add(descriptor: Descriptor): number {
    const free = this.#open.indexOf(undefined)
    const number = free === -1 ? this.#open.length : free
    if (number >= this.#max) throw new WasiError('mfile')
    this.#open[number] = descriptor
    if (descriptor.kind === 'file' && descriptor.node instanceof ScratchFile) descriptor.node.hold()
    return number
  }

  get(number: number): Descriptor {
    const found = this.#open[number]
    if (!found) throw new WasiError('badf')
    return found
  }

  directory(number: number): OpenDirectory {
    const found = this.get(number)
    if (found.kind !== 'directory') throw new WasiError('notdir')
    return found
  }

  file(number: number): OpenFile {
    const found = this.get(number)
    if (found.kind === 'file') return found
    throw new WasiError(found.kind === 'directory' ? 'isdir' : 'spipe')
  }

  close(number: number): void {
    const found = this.get(number)
    this.#open[number] = undefined
    if (found.kind === 'file' && found.node instanceof ScratchFile) found.node.release()
  }

  get files(): number {
    return this.#open.filter((found) => found?.kind === 'file').length
  }
}
