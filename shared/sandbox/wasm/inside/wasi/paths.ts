import { APPEND, OPEN, RIGHT, WasiError } from './abi.ts'
import type { Descriptors } from './descriptors.ts'
import { writeFileStat } from './file-stat.ts'
import { Directory, findNode, findPlace, type Node, type Place } from './file-tree.ts'
import type { GuestMemory } from './memory.ts'
import { ScratchFile } from './stored-files.ts'

/**
 * The calls of WASI preview 1 on paths, as the guest imports them. Each path starts at an open directory.
 *
 * Each call throws WasiError. No path can reach a file of the host, because the tree contains bytes and no host paths.
 */
export function pathCalls(memory: GuestMemory, descriptors: Descriptors) {
  const place = (fd: number, address: number, length: number) =>
    findPlace(descriptors.directory(fd).node, memory.path(address, length))
  return {
    path_create_directory(fd: number, address: number, length: number) {
      const { directory, name } = place(fd, address, length)
      if (name === '.') throw new WasiError('exist')
      directory.createDirectory(name)
    },

    path_filestat_get(fd: number, _flags: number, address: number, length: number, out: number) {
      writeFileStat(memory, out, existing(place(fd, address, length)))
    },

    path_filestat_set_times(fd: number, _flags: number, address: number, length: number) {
      existing(place(fd, address, length))
    },

    path_open(
      fd: number,
      _flags: number,
      address: number,
      length: number,
      how: number,
      rights: bigint,
      _inheriting: bigint,
      fdFlags: number,
      out: number,
    ) {
      const at = place(fd, address, length)
      const canWrite = (rights & RIGHT.write) !== 0n
      const node = openNode(at, how, canWrite)
      const access = { canRead: (rights & RIGHT.read) !== 0n, canWrite, position: 0 }
      const number = descriptors.add(
        node instanceof Directory
          ? { kind: 'directory', node, preopen: undefined, listing: [] }
          : { kind: 'file', node, ...access, isAppending: (fdFlags & APPEND) !== 0 },
      )
      memory.setU32(out, number)
    },

    path_remove_directory(fd: number, address: number, length: number) {
      const { directory, name } = place(fd, address, length)
      if (name === '.') throw new WasiError('inval')
      directory.removeDirectory(name)
    },

    path_rename(
      fd: number,
      address: number,
      length: number,
      targetFd: number,
      targetAddress: number,
      targetLength: number,
    ) {
      const [from, to] = [place(fd, address, length), place(targetFd, targetAddress, targetLength)]
      if (from.name === '.' || to.name === '.') throw new WasiError('inval')
      from.directory.move(from.name, to.directory, to.name)
    },

    path_unlink_file(fd: number, address: number, length: number) {
      const { directory, name } = place(fd, address, length)
      if (name === '.') throw new WasiError('isdir')
      directory.removeFile(name)
    },

    path_link: notSupported,
    path_symlink: notSupported,

    path_readlink(fd: number, address: number, length: number) {
      existing(place(fd, address, length))
      throw new WasiError('inval')
    },
  }
}

function openNode(at: Place, how: number, canWrite: boolean): Node {
  const node = findNode(at)
  if (!node) {
    if (!(how & OPEN.create)) throw new WasiError('noent')
    return at.directory.createFile(at.name)
  }
  if (how & OPEN.create && how & OPEN.exclusive) throw new WasiError('exist')
  if (node instanceof Directory) {
    if (canWrite) throw new WasiError('isdir')
    return node
  }
  if (how & OPEN.directory) throw new WasiError('notdir')
  if (canWrite && !(node instanceof ScratchFile)) throw new WasiError('rofs')
  if (how & OPEN.truncate && node instanceof ScratchFile) node.resize(0)
  return node
}

function existing(at: Place): Node {
  const node = findNode(at)
  if (!node) throw new WasiError('noent')
  return node
}

function notSupported(): never {
  throw new WasiError('notsup')
}
