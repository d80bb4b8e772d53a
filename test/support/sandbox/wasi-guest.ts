/** A substitute for a WebAssembly program. Tests make its WASI system calls directly, and inspect its memory. */

import { wasiCalls } from '#shared/sandbox/wasm/inside/interpreter.ts'
import { Descriptors } from '#shared/sandbox/wasm/inside/wasi/descriptors.ts'
import type { Memory } from '#shared/sandbox/wasm/inside/wasi/engine.ts'
import { Directory } from '#shared/sandbox/wasm/inside/wasi/file-tree.ts'
import { GuestMemory } from '#shared/sandbox/wasm/inside/wasi/memory.ts'
import { Quota, StoredFile } from '#shared/sandbox/wasm/inside/wasi/stored-files.ts'

/** Addresses in the memory of the guest: PATHS for path strings, OUT for results of calls, DATA for file contents. */
const [PATHS, OUT, DATA] = [1_024, 8_192, 16_384]
const MEMORY_BYTES = 1 << 20
const ROOT = 3
const READ = 1n << 1n
const WRITE = 1n << 6n
/** Flags of the WASI call path_open. */
export const CREATE = 1
export const EXCLUSIVE = 4
export const TRUNCATE = 8

export interface GuestOptions {
  readonly bytes?: number
  readonly nodes?: number
  readonly fileBytes?: number
  readonly openMax?: number
}

export interface OpenOptions {
  readonly how?: number
  readonly write?: boolean
  readonly append?: boolean
}

/** Creates a guest. The guest's file system has the read-only file `/lib/stored.txt` with the text `stored`, and the writable directory `/tmp`. */
export function wasiGuest({ bytes = 4_096, nodes = 16, fileBytes = 2_048, openMax = 16 }: GuestOptions = {}) {
  const root = new Directory()
  root.directory('lib').place('stored.txt', new StoredFile(6, () => Buffer.from('stored')))
  root.directory('tmp', new Quota({ bytes, nodes, fileBytes }))
  const written: string[] = []
  const stream = {
    kind: 'stream',
    read: () => 0,
    write: (part: Uint8Array) => written.push(String(Buffer.from(part))),
  } as const
  const descriptors = new Descriptors(
    [stream, stream, stream, { kind: 'directory', node: root, preopen: '/', listing: [] }],
    openMax,
  )
  const memory = new GuestMemory()
  memory.attach({ buffer: new ArrayBuffer(MEMORY_BYTES), grow: () => 0 } satisfies Memory)
  const calls = wasiCalls(memory, descriptors, { HOME: '/tmp' })
  /** Makes a WASI call; returns its error number, which is 0 on success. */
  const call = (name: string, ...args: (number | bigint)[]): number => {
    const found = calls[name] as ((...args: (number | bigint)[]) => number) | undefined
    if (!found) throw new Error(`no ${name}`)
    return found(...args)
  }
  const put = (text: string, at = PATHS): [address: number, length: number] => {
    const part = Buffer.from(text)
    memory.bytes(at, part.length).set(part)
    return [at, part.length]
  }
  const buffer = (length: number): [buffers: number, count: number] => {
    memory.setU32(OUT + 64, DATA)
    memory.setU32(OUT + 68, length)
    return [OUT + 64, 1]
  }
  return {
    memory,
    call,
    written,
    onPath: (name: string, path: string, ...rest: (number | bigint)[]) => call(name, ROOT, ...put(path), ...rest),
    rename: (from: string, to: string) => call('path_rename', ROOT, ...put(from), ROOT, ...put(to, PATHS + 4_096)),
    /**
     * Opens a file.
     *
     * @returns The file descriptor, or the negated error number
     */
    open(path: string, { how = 0, write = false, append = false }: OpenOptions = {}): number {
      const rights = write ? READ | WRITE : READ
      const errno = call('path_open', ROOT, 0, ...put(path), how, rights, 0n, append ? 1 : 0, OUT)
      return errno === 0 ? memory.getU32(OUT) : -errno
    },
    write(fd: number, text: string): number {
      put(text, DATA)
      return call('fd_write', fd, ...buffer(Buffer.byteLength(text)), OUT)
    },
    read(fd: number, length = 1_024): string {
      if (call('fd_read', fd, ...buffer(length), OUT) !== 0) throw new Error('not read')
      return Buffer.from(memory.bytes(DATA, memory.getU32(OUT))).toString()
    },
    size(path: string): number {
      if (call('path_filestat_get', ROOT, 0, ...put(path), OUT) !== 0) throw new Error(`no ${path}`)
      return Number(memory.getU64(OUT + 32))
    },
    /** Returns the names in a directory. The directory is read with a buffer of `pieceBytes`. */
    list(path: string, pieceBytes: number): string[] {
      const fd = this.open(path)
      const names: string[] = []
      for (let cookie = 0n; ; ) {
        call('fd_readdir', fd, DATA, pieceBytes, cookie, OUT)
        const used = memory.getU32(OUT)
        const piece = Buffer.from(memory.bytes(DATA, used))
        let at = 0
        while (at + 24 <= used && at + 24 + piece.readUInt32LE(at + 16) <= used) {
          names.push(piece.toString('utf8', at + 24, at + 24 + piece.readUInt32LE(at + 16)))
          cookie = piece.readBigUInt64LE(at)
          at += 24 + piece.readUInt32LE(at + 16)
        }
        if (used < pieceBytes) return names
      }
    },
    /** Waits for a timer with poll_oneoff; returns the number of events. */
    wait(ns: bigint): number {
      memory.bytes(DATA, 48).fill(0)
      memory.setU32(DATA + 16, 1)
      memory.setU64(DATA + 24, ns)
      call('poll_oneoff', DATA, DATA + 1_024, 1, OUT)
      return memory.getU32(OUT)
    },
  }
}
