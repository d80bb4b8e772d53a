import { inflateRawSync } from 'node:zlib'
import { FILE_BYTES_MAX, OPEN_FILES_MAX, SCRATCH_BYTES_MAX } from '#shared/sandbox/protocol/limits.ts'
import { PAGE_BYTES } from './module.ts'
import { WasiError } from './wasi/abi.ts'
import { type Descriptor, Descriptors } from './wasi/descriptors.ts'
import { Instance, type Memory, type Module } from './wasi/engine.ts'
import { Directory } from './wasi/file-tree.ts'
import { fileCalls } from './wasi/files.ts'
import { GuestMemory } from './wasi/memory.ts'
import { pathCalls } from './wasi/paths.ts'
import { Quota, StoredFile } from './wasi/stored-files.ts'
import { systemCalls } from './wasi/system.ts'

const END_MAGIC = 0x06054b50
const END_BYTES = 22
const ENTRY_MAGIC = 0x02014b50
const ENTRY_BYTES = 46
const LOCAL_BYTES = 30
const DEFLATED = 8

const LIBRARY = '/usr/local/lib/python315.zip'
/**
 * Path of matplotlib's data. Matplotlib searches for its data next to its code. The code is inside a zip archive, so
 * this path continues through the name of the archive file.
 */
const PLOT_DATA = `${LIBRARY}/matplotlib/mpl-data`
const CHANNEL = '/dev/channel'
const NODES_MAX = 8_192
const VARIABLES = {
  HOME: '/tmp',
  TMPDIR: '/tmp',
  MPLCONFIGDIR: '/tmp/.matplotlib',
  // An empty path, because the standard library in the archive already contains the time zones.
  PYTHONTZPATH: '',
}
/** Errno that each call of a host function returns to the guest, because host functions are not supported. */
const NO_HOST = -1

export const SOURCES = '/sandbox'

/** Data that all interpreters read, in memory that the threads share. */
export interface Library {
  /** A zip archive that Python reads itself: the standard library and the packages for programs, such as numpy and pandas. */
  readonly python: Uint8Array
  readonly plotData: Uint8Array
  readonly font: Uint8Array
  readonly sources: Readonly<Record<string, Uint8Array>>
}

/** The guest's descriptors that are not files: 0, 1, 2, and the channel to the supervisor. */
export interface Streams {
  /** Fills a buffer with the next input and returns the number of bytes. */
  readonly stdin: (target: Uint8Array) => number
  readonly onStdout: (bytes: Uint8Array) => void
  readonly onStderr: (bytes: Uint8Array) => void
  readonly onChannel: (bytes: Uint8Array) => void
}

export interface Image {
  readonly bytes: Uint8Array
  readonly segments: ReadonlyArray<readonly [address: number, length: number]>
  readonly pages: number
}

interface Exports {
  readonly memory: Memory
  readonly turn: (address: number, length: number) => number
  readonly host_alloc: (length: number) => number
}

/**
 * One CPython in one WebAssembly memory, either newly started or restored from an image. Calls run in the calling thread and block it.
 *
 * An image is a copy of the whole memory, made between two calls, when the stack is empty. A restored interpreter gets new descriptors with equal
 * numbers, so an image requires that no other descriptor is open.
 */
export class Interpreter {
  readonly #exports: Exports
  readonly #descriptors: Descriptors

  constructor(module: Module, library: Library, streams: Streams) {
    const memory = new GuestMemory()
    this.#descriptors = new Descriptors(openDescriptors(library, streams), OPEN_FILES_MAX)
    const wasi_snapshot_preview1 = wasiCalls(memory, this.#descriptors, VARIABLES)
    const imports = { wasi_snapshot_preview1, host: { call: () => NO_HOST } }
    this.#exports = new Instance(module, imports).exports as Exports
    memory.attach(this.#exports.memory)
  }

  /**
   * Copies an image into a new memory. The module must not contain initial data. An image omits zeros, so initial data would remain in their place.
   */
  restore({ bytes, segments, pages }: Image): void {
    const { memory } = this.#exports
    memory.grow(pages - memory.buffer.byteLength / PAGE_BYTES)
    const target = new Uint8Array(memory.buffer)
    let from = 0
    for (const [address, length] of segments) {
      target.set(bytes.subarray(from, from + length), address)
      from += length
    }
  }

  /**
   * Runs source code in the interpreter's main module. Names that the code defines remain defined for the next call.
   *
   * @returns The exit status: 1 after an uncaught exception, which was printed
   * @throws GuestExit if the guest ended its process, WebAssembly.RuntimeError if it crashed, RangeError if its stack overflowed
   */
  run(source: string): number {
    const bytes = Buffer.from(source)
    const address = this.#exports.host_alloc(bytes.length) >>> 0
    if (address === 0) throw new RangeError('the interpreter has no memory left')
    new Uint8Array(this.#exports.memory.buffer).set(bytes, address)
    return this.#exports.turn(address, bytes.length) & 0xff
  }

  /**
   * Returns the memory itself, not a copy.
   *
   * @throws Error if a file is open, because a restored interpreter would lack the file
   */
  image(): Uint8Array<ArrayBuffer> {
    const { files } = this.#descriptors
    if (files > 0)
      throw new Error(`the interpreter has ${files} open files after it loaded the libraries; expected none`)
    return new Uint8Array(this.#exports.memory.buffer)
  }
}

/**
 * Creates descriptors 0 to 5. The guest's C library searches for preopened directories from descriptor 3 on, and stops
 * at the first descriptor that is not a directory. Descriptor 3 is the channel, as in the other sandboxes. The channel therefore has the form of
 * an empty directory, because the search would otherwise end there.
 */
function openDescriptors(library: Library, streams: Streams): Descriptor[] {
  const directory = (preopen: string, node: Directory): Descriptor => ({
    kind: 'directory',
    preopen,
    node,
    listing: [],
  })
  return [
    { kind: 'stream', read: streams.stdin },
    { kind: 'stream', write: streams.onStdout },
    { kind: 'stream', write: streams.onStderr },
    { kind: 'stream', write: streams.onChannel, preopen: CHANNEL },
    directory('/', rootTree(library)),
    directory(PLOT_DATA, plotDataTree(library)),
  ]
}

function rootTree({ python, sources }: Library): Directory {
  const root = new Directory()
  place(root, LIBRARY, new StoredFile(python.length, () => python))
  for (const [name, bytes] of Object.entries(sources)) {
    place(root, `${SOURCES}/${name}`, new StoredFile(bytes.length, () => bytes))
  }
  root.directory('tmp', new Quota({ bytes: SCRATCH_BYTES_MAX, nodes: NODES_MAX, fileBytes: FILE_BYTES_MAX }))
  return root
}

function plotDataTree({ plotData, font }: Library): Directory {
  const top = new Directory()
  for (const { name, size, load } of listZip(plotData)) place(top, name, new StoredFile(size, load))
  place(top, 'fonts/ttf/wqy-microhei.ttc', new StoredFile(font.length, () => font))
  return top
}

function place(root: Directory, path: string, file: StoredFile): void {
  const parts = path.split('/').filter((part) => part !== '')
  const name = parts.pop() as string
  parts.reduce((directory, part) => directory.directory(part), root).place(name, file)
}

interface ZipEntry {
  readonly name: string
  readonly size: number
  /** Unpacks the file. Each call unpacks it again, so the caller must keep the result. */
  readonly load: () => Uint8Array
}

/**
 * Lists the files of a zip archive in memory (PKWARE APPNOTE 6.3). The digest of the archive must be known, because the contents are trusted. Unused
 * features (zip64, encryption) are not supported.
 */
function listZip(archive: Uint8Array): ZipEntry[] {
  const bytes = Buffer.from(archive.buffer, archive.byteOffset, archive.byteLength)
  const end = findEnd(bytes)
  const entries: ZipEntry[] = []
  let at = bytes.readUInt32LE(end + 16)
  for (let left = bytes.readUInt16LE(end + 10); left > 0; left--) {
    if (bytes.readUInt32LE(at) !== ENTRY_MAGIC) throw new Error('the archive is damaged')
    const nameBytes = bytes.readUInt16LE(at + 28)
    const name = bytes.toString('utf8', at + ENTRY_BYTES, at + ENTRY_BYTES + nameBytes)
    const entry = {
      method: bytes.readUInt16LE(at + 10),
      packed: bytes.readUInt32LE(at + 20),
      local: bytes.readUInt32LE(at + 42),
    }
    if (!name.endsWith('/')) entries.push({ name, size: bytes.readUInt32LE(at + 24), load: () => unpack(bytes, entry) })
    at += ENTRY_BYTES + nameBytes + bytes.readUInt16LE(at + 30) + bytes.readUInt16LE(at + 32)
  }
  return entries
}

function findEnd(bytes: Buffer): number {
  for (let at = bytes.length - END_BYTES; at >= 0; at--) {
    if (bytes.readUInt32LE(at) === END_MAGIC) return at
  }
  throw new Error('not a zip archive')
}

function unpack(bytes: Buffer, entry: { method: number; packed: number; local: number }): Uint8Array {
  // The lengths in the archive's directory may differ from those in the header before the data, so that header is read.
  const start = entry.local + LOCAL_BYTES + bytes.readUInt16LE(entry.local + 26) + bytes.readUInt16LE(entry.local + 28)
  const data = bytes.subarray(start, start + entry.packed)
  return entry.method === DEFLATED ? inflateRawSync(data) : data
}

type Call = (...args: never[]) => unknown

/**
 * WASI preview 1 for one guest, implemented on JavaScript memory. Returns the calls by name. Each call returns an errno.
 *
 * `node:wasi` is not used, because its documentation warns against untrusted code. No call opens a file, a socket or a process of the host, so no
 * argument of the guest can refer to one.
 */
export function wasiCalls(
  memory: GuestMemory,
  descriptors: Descriptors,
  variables: Readonly<Record<string, string>>,
): Record<string, Call> {
  const calls: Record<string, Call> = {
    ...fileCalls(memory, descriptors),
    ...pathCalls(memory, descriptors),
    ...systemCalls(memory, variables),
  }
  return Object.fromEntries(Object.entries(calls).map(([name, call]) => [name, withErrno(call)]))
}

function withErrno(call: Call): Call {
  return (...args) => {
    try {
      call(...args)
      return 0
    } catch (error) {
      if (error instanceof WasiError) return error.errno
      throw error
    }
  }
}
