import { inflateRawSync } from 'node:zlib'

const END_MAGIC = 0x06054b50
const END_BYTES = 22
const ENTRY_MAGIC = 0x02014b50
const ENTRY_BYTES = 46
const LOCAL_BYTES = 30
const DEFLATED = 8

export interface ZipEntry {
  /** Parts are separated by `/`. */
  readonly name: string
  readonly size: number
  /** Unpacks the file at each call. */
  readonly load: () => Uint8Array
}

/**
 * Lists the files of a zip archive in memory (PKWARE APPNOTE 6.3). Only for archives with a known digest: the contents are trusted, and
 * unused features (zip64, encryption) are not supported.
 */
export function listZip(archive: Uint8Array): ZipEntry[] {
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
  // The lengths before the data may differ from those in the directory.
  const start = entry.local + LOCAL_BYTES + bytes.readUInt16LE(entry.local + 26) + bytes.readUInt16LE(entry.local + 28)
  const data = bytes.subarray(start, start + entry.packed)
  return entry.method === DEFLATED ? inflateRawSync(data) : data
}
