import { WasiError } from './abi.ts'
import type { Directory } from './file-tree.ts'
import { ScratchFile, type StoredFile } from './stored-files.ts'

/** What the guest reads or writes without a place in it; what is missing it cannot do. */
export interface Stream {
  readonly kind: 'stream'
  /** Fills a buffer; gives how many bytes, 0 at the end. */
  readonly read?: (target: Uint8Array) => number
  /** Takes bytes; they are valid during the call only. */
  readonly write?: (source: Uint8Array) => void
  /** A path for the guest's library, which looks for directories first. */
  readonly preopen?: string
}

/** An open directory. */
export interface OpenDirectory {
  readonly kind: 'directory'
  readonly node: Directory
  /** Its path, when it is there from the start: the guest's library looks paths up from these. */
  readonly preopen: string | undefined
  /** The names that were in it when it was last read from its beginning. */
  listing: readonly string[]
}

/** An open file. */
export interface OpenFile {
  readonly kind: 'file'
  readonly node: StoredFile | ScratchFile
  readonly canRead: boolean
  readonly canWrite: boolean
  position: number
  isAppending: boolean
}

/** What a descriptor stands for. */
export type Descriptor = Stream | OpenDirectory | OpenFile

/** The descriptors of one guest, as many as it may have. */
export class Descriptors {
  readonly #open: Array<Descriptor | undefined>
  readonly #max: number

  /** @param first What 0, 1, 2 and so on stand for. */
  constructor(first: readonly Descriptor[], max: number) {
    this.#open = [...first]
    this.#max = max
  }

  /** Gives the lowest free number. @throws WasiError `mfile` */
  add(descriptor: Descriptor): number {
    const free = this.#open.indexOf(undefined)
    const number = free === -1 ? this.#open.length : free
    if (number >= this.#max) throw new WasiError('mfile')
    this.#open[number] = descriptor
    if (descriptor.kind === 'file' && descriptor.node instanceof ScratchFile) descriptor.node.hold()
    return number
  }

  /** @throws WasiError `badf` */
  get(number: number): Descriptor {
    const found = this.#open[number]
    if (!found) throw new WasiError('badf')
    return found
  }

  /** @throws WasiError `badf`, `notdir` */
  directory(number: number): OpenDirectory {
    const found = this.get(number)
    if (found.kind !== 'directory') throw new WasiError('notdir')
    return found
  }

  /** @throws WasiError `badf`, `isdir`, `spipe` */
  file(number: number): OpenFile {
    const found = this.get(number)
    if (found.kind === 'file') return found
    throw new WasiError(found.kind === 'directory' ? 'isdir' : 'spipe')
  }

  /** @throws WasiError `badf` */
  close(number: number): void {
    const found = this.get(number)
    this.#open[number] = undefined
    if (found.kind === 'file' && found.node instanceof ScratchFile) found.node.release()
  }

  /** How many files are open. */
  get files(): number {
    return this.#open.filter((found) => found?.kind === 'file').length
  }
}
