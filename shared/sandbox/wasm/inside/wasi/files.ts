import { APPEND, FILETYPE, RIGHTS_ALL, WasiError } from './abi.ts'
import type { Descriptors, OpenDirectory, OpenFile, Stream } from './descriptors.ts'
import { writeFileStat } from './file-stat.ts'
import { Directory, type Node } from './file-tree.ts'
import type { GuestMemory } from './memory.ts'
import { ScratchFile } from './stored-files.ts'

/** Maximum file offset that JavaScript represents exactly. Files are far smaller. */
const OFFSET_MAX = BigInt(Number.MAX_SAFE_INTEGER)
const DIRENT_BYTES = 24

/**
 * The calls of WASI preview 1 on open descriptors, as the guest imports them.
 *
 * Each call throws WasiError. Results are written to addresses in the guest's memory.
 */
export function fileCalls(memory: GuestMemory, descriptors: Descriptors) {
  return {
    fd_advise: (fd: number) => void descriptors.get(fd),
    fd_close: (fd: number) => descriptors.close(fd),
    fd_datasync: (fd: number) => void descriptors.get(fd),
    fd_sync: (fd: number) => void descriptors.get(fd),

    fd_fdstat_get(fd: number, out: number) {
      const found = descriptors.get(fd)
      const types = {
        stream: FILETYPE.characterDevice,
        directory: FILETYPE.directory,
        file: FILETYPE.regularFile,
      }
      memory.setU64(out, 0n)
      memory.setU8(out, types[found.kind])
      memory.setU16(out + 2, found.kind === 'file' && found.isAppending ? APPEND : 0)
      memory.setU64(out + 8, RIGHTS_ALL)
      memory.setU64(out + 16, RIGHTS_ALL)
    },

    fd_fdstat_set_flags(fd: number, flags: number) {
      const found = descriptors.get(fd)
      if (found.kind === 'file') found.isAppending = (flags & APPEND) !== 0
    },

    fd_filestat_get(fd: number, out: number) {
      const found = descriptors.get(fd)
      writeFileStat(memory, out, found.kind === 'stream' ? undefined : found.node)
    },

    fd_filestat_set_size(fd: number, size: bigint) {
      writable(descriptors.file(fd)).resize(offset(size))
    },

    fd_filestat_set_times: (fd: number) => void descriptors.get(fd),

    fd_prestat_get(fd: number, out: number) {
      const path = preopen(descriptors, fd)
      memory.setU32(out, 0)
      memory.setU32(out + 4, Buffer.byteLength(path))
    },

    fd_prestat_dir_name(fd: number, address: number, length: number) {
      const path = Buffer.from(preopen(descriptors, fd))
      if (path.length > length >>> 0) throw new WasiError('nametoolong')
      memory.bytes(address, path.length).set(path)
    },

    fd_read(fd: number, buffers: number, count: number, out: number) {
      const found = descriptors.get(fd)
      if (found.kind === 'directory') throw new WasiError('isdir')
      let total = 0
      for (const buffer of memory.buffers(buffers, count)) {
        const bytes = found.kind === 'stream' ? readStream(found, buffer) : readAt(found, found.position, buffer)
        if (found.kind === 'file') found.position += bytes
        total += bytes
        if (bytes < buffer.length) break
      }
      memory.setU32(out, total)
    },

    fd_pread(fd: number, buffers: number, count: number, from: bigint, out: number) {
      const found = descriptors.file(fd)
      let total = 0
      for (const buffer of memory.buffers(buffers, count)) total += readAt(found, offset(from) + total, buffer)
      memory.setU32(out, total)
    },

    fd_write(fd: number, buffers: number, count: number, out: number) {
      const found = descriptors.get(fd)
      if (found.kind === 'directory') throw new WasiError('isdir')
      let total = 0
      for (const buffer of memory.buffers(buffers, count)) {
        if (found.kind === 'stream') writeStream(found, buffer)
        else append(found, buffer)
        total += buffer.length
      }
      memory.setU32(out, total)
    },

    fd_pwrite(fd: number, buffers: number, count: number, from: bigint, out: number) {
      const file = writable(descriptors.file(fd))
      let total = 0
      for (const buffer of memory.buffers(buffers, count)) {
        file.write(offset(from) + total, buffer)
        total += buffer.length
      }
      memory.setU32(out, total)
    },

    fd_seek(fd: number, distance: bigint, whence: number, out: number) {
      const found = descriptors.file(fd)
      const base = [0, found.position, found.node.size][whence]
      if (base === undefined) throw new WasiError('inval')
      found.position = offset(BigInt(base) + distance)
      memory.setU64(out, BigInt(found.position))
    },

    fd_tell(fd: number, out: number) {
      memory.setU64(out, BigInt(descriptors.file(fd).position))
    },

    fd_readdir(fd: number, address: number, length: number, cookie: bigint, out: number) {
      const found = descriptors.directory(fd)
      if (cookie === 0n) found.listing = ['.', '..', ...found.node.entries.keys()]
      // If the last entry does not fit, then it is truncated. The full buffer shows the guest's library that more
      // entries follow.
      const all = encodeListing(found, offset(cookie), length >>> 0)
      memory.bytes(address, all.length).set(all)
      memory.setU32(out, all.length)
    },
  }
}

function readStream({ read }: Stream, buffer: Uint8Array): number {
  if (!read) throw new WasiError('badf')
  return read(buffer)
}

function writeStream({ write }: Stream, buffer: Uint8Array): void {
  if (!write) throw new WasiError('badf')
  write(buffer)
}

function readAt(file: OpenFile, position: number, buffer: Uint8Array): number {
  if (!file.canRead) throw new WasiError('badf')
  return file.node.read(position, buffer)
}

function append(file: OpenFile, buffer: Uint8Array): void {
  const node = writable(file)
  if (file.isAppending) file.position = node.size
  node.write(file.position, buffer)
  file.position += buffer.length
}

function writable({ node, canWrite }: OpenFile): ScratchFile {
  if (!canWrite || !(node instanceof ScratchFile)) throw new WasiError('badf')
  return node
}

function preopen(descriptors: Descriptors, fd: number): string {
  const found = descriptors.get(fd)
  // This error ends the list of initial directories. The guest's library queries descriptors in ascending order until it gets the error.
  if (found.kind === 'file' || found.preopen === undefined) throw new WasiError('badf')
  return found.preopen
}

function offset(value: bigint): number {
  if (value < 0n || value > OFFSET_MAX) throw new WasiError('inval')
  return Number(value)
}

function encodeListing({ node, listing }: OpenDirectory, from: number, length: number): Buffer {
  const parts: Buffer[] = []
  let bytes = 0
  for (let i = from; i < listing.length && bytes < length; i++) {
    const name = listing[i] as string
    const entry = name === '.' ? node : name === '..' ? node.parent : node.entries.get(name)
    // The entry was removed after the listing was made, so it is skipped.
    if (!entry) continue
    const part = encodeEntry(name, entry, i + 1)
    parts.push(part)
    bytes += part.length
  }
  return Buffer.concat(parts).subarray(0, length)
}

function encodeEntry(name: string, node: Node, next: number): Buffer {
  const text = Buffer.from(name)
  const entry = Buffer.alloc(DIRENT_BYTES + text.length)
  entry.writeBigUInt64LE(BigInt(next), 0)
  entry.writeBigUInt64LE(node.inode, 8)
  entry.writeUInt32LE(text.length, 16)
  entry.writeUInt8(node instanceof Directory ? FILETYPE.directory : FILETYPE.regularFile, 20)
  text.copy(entry, DIRENT_BYTES)
  return entry
}
