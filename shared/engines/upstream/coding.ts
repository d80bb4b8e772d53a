import type { Transform } from 'node:stream'
import * as zlib from 'node:zlib'

/**
 * Content codings of answers. Calls request `identity`. Some proxies compress nevertheless, name a coding that they did not apply, or apply
 * one without naming it.
 *
 * The first bytes therefore decide. The header decides only for codings without a signature (br, raw deflate).
 */

/** Maximum bytes that {@link findCoding} examines. */
const SAMPLE_BYTES = 16
/** Maximum decompressed bytes of one answer: far more than readers accept, and a bound for a stream of endless comments. */
const INFLATED_BYTES_MAX = 256 * 1024 * 1024
/** Maximum size of one decompressed chunk. */
const PIECE_BYTES = 64 * 1024
/** 8 MiB, the largest window of the zstd content coding (RFC 9659). By default the library allocates up to 128 MiB. */
const ZSTD_WINDOW_LOG_MAX = 23

/** Node.js before 22.15 has no zstd. */
const { createZstdDecompress } = zlib as Partial<typeof zlib>

const GZIP = Buffer.of(0x1f, 0x8b)
const ZSTD = Buffer.of(0x28, 0xb5, 0x2f, 0xfd)
/** Matches the start of an answer or error in plain text. Sixteen compressed bytes are never all printable. */
const TEXT = /^(?:\xef\xbb\xbf)?[\t\n\r\x20-\x7e]+$/

/** Opens a decompressor; undefined if the bytes are not compressed. */
export type Coding = (() => Transform) | undefined

/**
 * Detects the coding of an answer.
 *
 * @param named Value of `content-encoding`.
 * @param first The first bytes of the answer.
 * @param isAll Whether the answer has no more bytes.
 * @returns `'unknown'` if more bytes are needed.
 */
export function findCoding(named: string | undefined, first: Buffer, isAll: boolean): Coding | 'unknown' {
  if (startsWith(first, GZIP)) return () => zlib.createGunzip({ chunkSize: PIECE_BYTES })
  if (createZstdDecompress && startsWith(first, ZSTD)) return () => openZstd(createZstdDecompress)
  const last = (named ?? '').split(',').at(-1)?.trim().toLowerCase()
  const isBare = last === '' || last === 'identity'
  if (isBare && first.length > 0 && first[0] !== GZIP[0] && first[0] !== ZSTD[0]) return undefined
  if (first.length < (isBare ? ZSTD.length : SAMPLE_BYTES) && !isAll) return 'unknown'
  if (isBare || TEXT.test(first.toString('latin1', 0, SAMPLE_BYTES))) return undefined
  if (last === 'br') return () => zlib.createBrotliDecompress({ chunkSize: PIECE_BYTES })
  if (last !== 'deflate') return undefined
  return () =>
    isZlib(first) ? zlib.createInflate({ chunkSize: PIECE_BYTES }) : zlib.createInflateRaw({ chunkSize: PIECE_BYTES })
}

function startsWith(bytes: Buffer, mark: Buffer): boolean {
  return bytes.subarray(0, mark.length).equals(mark)
}

/** The header of RFC 1950; some servers send `deflate` without it. */
function isZlib(bytes: Buffer): boolean {
  const [first = 0, second = 0] = bytes
  return (first & 0x0f) === 8 && (first * 256 + second) % 31 === 0
}

function openZstd(create: typeof zlib.createZstdDecompress): Transform {
  return create({ chunkSize: PIECE_BYTES, params: { [zlib.constants.ZSTD_d_windowLogMax]: ZSTD_WINDOW_LOG_MAX } })
}

/** Decompresses one answer as a stream, with backpressure in both directions. */
export class Inflater {
  readonly #stream: Transform

  /**
   * @param on.data Returns false to pause the output until {@link resume}.
   * @param on.end Called once, after all data; with an error if the bytes are truncated or corrupt.
   */
  constructor(open: () => Transform, on: { data(bytes: Buffer): boolean; drain(): void; end(error?: Error): void }) {
    const stream = open()
    let total = 0
    stream.on('data', (bytes: Buffer) => {
      total += bytes.length
      if (total > INFLATED_BYTES_MAX) stream.destroy(new Error('too many bytes'))
      else if (!on.data(bytes)) stream.pause()
    })
    stream.on('drain', () => on.drain())
    stream.on('error', (error: Error) => on.end(error))
    stream.on('end', () => on.end())
    this.#stream = stream
  }

  /** Returns false if the input should pause until `drain`. */
  write(bytes: Buffer): boolean {
    return this.#stream.write(bytes)
  }

  end(): void {
    this.#stream.end()
  }

  resume(): void {
    this.#stream.resume()
  }

  close(): void {
    this.#stream.destroy()
  }
}
