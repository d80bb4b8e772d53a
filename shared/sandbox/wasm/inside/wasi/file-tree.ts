import { WasiError } from './abi.ts'
import { Inode, type Quota, ScratchFile, type StoredFile } from './stored-files.ts'

/*
 * The files of one run, in memory. Read-only files are shared by all runs. Files of the guest are in scratch space with a quota, and are
 * deleted with the run.
 *
 * There are no links, so each name leads to one node, and `..` always leads to the parent directory.
 */

const NAME_BYTES_MAX = 255

export type Node = Directory | StoredFile | ScratchFile

/** A directory. The guest may change its contents only if the directory has a quota. */
export class Directory extends Inode {
  /** The parent directory. The root is its own parent. */
  #parent: Directory
  readonly #quota: Quota | undefined
  readonly #entries = new Map<string, Node>()

  constructor(parent?: Directory, quota?: Quota) {
    super()
    quota?.take(0, 1)
    this.#parent = parent ?? this
    this.#quota = quota
  }

  get parent(): Directory {
    return this.#parent
  }

  get entries(): ReadonlyMap<string, Node> {
    return this.#entries
  }

  place(name: string, node: Node): void {
    this.#entries.set(name, node)
  }

  /** Returns the directory of that name, and creates it if necessary. With a quota, the guest may write in it. */
  directory(name: string, quota?: Quota): Directory {
    const found = this.#entries.get(name)
    if (found instanceof Directory) return found
    const made = new Directory(this, quota)
    this.#entries.set(name, made)
    return made
  }

  createFile(name: string): ScratchFile {
    const file = new ScratchFile(this.#writable(name))
    this.#entries.set(name, file)
    return file
  }

  createDirectory(name: string): void {
    if (this.#entries.has(name)) throw new WasiError('exist')
    this.#entries.set(name, new Directory(this, this.#writable(name)))
  }

  /**
   * Removes a file for the guest. A file that is open stays readable until it is closed.
   *
   * @throws WasiError `rofs`, `noent`, `isdir`
   */
  removeFile(name: string): void {
    this.#writable(name)
    const node = this.#get(name)
    if (!(node instanceof ScratchFile)) throw new WasiError(node instanceof Directory ? 'isdir' : 'rofs')
    this.#entries.delete(name)
    node.release()
  }

  removeDirectory(name: string): void {
    const quota = this.#writable(name)
    const node = this.#get(name)
    if (!(node instanceof Directory)) throw new WasiError('notdir')
    if (node.entries.size > 0) throw new WasiError('notempty')
    this.#entries.delete(name)
    quota.take(0, -1)
  }

  /**
   * Moves a node for the guest. An existing node with the new name is replaced.
   *
   * @throws WasiError `rofs`, `noent`, `inval` for a move into itself, `isdir`, `notdir`, `notempty`
   */
  move(name: string, target: Directory, targetName: string): void {
    this.#writable(name)
    target.#writable(targetName)
    const node = this.#get(name)
    const replaced = target.#entries.get(targetName)
    if (replaced === node) return
    if (node instanceof Directory && node.#holds(target)) throw new WasiError('inval')
    if (replaced instanceof Directory && !(node instanceof Directory)) throw new WasiError('isdir')
    if (replaced && node instanceof Directory) target.removeDirectory(targetName)
    else if (replaced) target.removeFile(targetName)
    this.#entries.delete(name)
    target.#entries.set(targetName, node)
    if (node instanceof Directory) node.#parent = target
  }

  #holds(other: Directory): boolean {
    for (let above = other; ; above = above.parent) {
      if (above === this) return true
      if (above === above.parent) return false
    }
  }

  #get(name: string): Node {
    const node = this.#entries.get(name)
    if (!node) throw new WasiError('noent')
    return node
  }

  #writable(name: string): Quota {
    if (!this.#quota) throw new WasiError('rofs')
    if (Buffer.byteLength(name) > NAME_BYTES_MAX) throw new WasiError('nametoolong')
    return this.#quota
  }
}

/** The last name of a path, and the directory that contains it. The name is '.' if the path leads to that directory itself. */
export interface Place {
  readonly directory: Directory
  readonly name: string
}

/**
 * Resolves a path below a directory. At the top directory, `..` leads to the top itself.
 *
 * @throws WasiError `noent`, `notdir`
 */
export function findPlace(top: Directory, path: string): Place {
  const names = path.split('/').filter((name) => name !== '' && name !== '.')
  const last = names.pop() ?? '.'
  let directory = top
  for (const name of names) directory = step(top, directory, name)
  if (last === '..') return { directory: step(top, directory, last), name: '.' }
  return { directory, name: last }
}

export function findNode({ directory, name }: Place): Node | undefined {
  return name === '.' ? directory : directory.entries.get(name)
}

function step(top: Directory, directory: Directory, name: string): Directory {
  if (name === '..') return directory === top ? top : directory.parent
  const next = directory.entries.get(name)
  if (!next) throw new WasiError('noent')
  if (!(next instanceof Directory)) throw new WasiError('notdir')
  return next
}
