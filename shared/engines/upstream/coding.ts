import type { Transform } from 'node:stream'
import * as zlib from 'node:zlib'

/**
 * Content codings of answers. Calls ask for `identity`, but proxies compress all the same, name a coding that they did not
 * apply, or apply one without naming it. So the first bytes decide, and the header only where bytes of a coding have no mark
 * of their own (br, raw deflate).
 */

/** Bytes that {@link findCoding} looks at. */
const SAMPLE_BYTES = 16
/** Decompressed bytes of one answer: far more than its readers accept, and a bound for a stream of endless comments. */
const INFLATED_BYTES_MAX = 256 * 1024 * 1024
/** Decompressed bytes that are passed on at once. */
const PIECE_BYTES = 64 * 1024
/** 8 MiB, the largest window of the zstd content coding (RFC 9659). By default the library allocates up to 128 MiB. */
const ZSTD_WINDOW_LOG_MAX = 23

/** Node.js before 22.15 has no zstd. */
const { createZstdDecompress } = zlib as Partial<typeof zlib>

const GZIP = Buffer.of(0x1f, 0x8b)
const ZSTD = Buffer.of(0x28, 0xb5, 0x2f, 0xfd)
/** Text as an answer or an error begins with. Sixteen compressed bytes are never all printable. */
const TEXT = /^(?:\xef\xbb\xbf)?[\t\n\r\x20-\x7e]+$/

/** Opens a decompressor; undefined: the bytes are not compressed. */
export type Coding = (() => Transform) | undefined

/**
 * Finds the coding of an answer.
 *
 * @param named Value of `content-encoding`.
 * @param first The first bytes of the answer.
 * @param isAll There are no more.
 * @returns `'unknown'` if it takes more bytes to decide.
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

/** The head of RFC 1950; some servers send `deflate` without one. */
function isZlib(bytes: Buffer): boolean {
  const [first = 0, second = 0] = bytes
  return (first & 0x0f) === 8 && (first * 256 + second) % 31 === 0
}

function openZstd(create: typeof zlib.createZstdDecompress): Transform {
  return create({ chunkSize: PIECE_BYTES, params: { [zlib.constants.ZSTD_d_windowLogMax]: ZSTD_WINDOW_LOG_MAX } })
}

/** Decompresses one answer as it comes, with backpressure in both directions. */
export class Inflater {
  readonly #stream: Transform

  /**
   * @param on.data Gives false if no more data is wanted until {@link resume}.
   * @param on.end Called once, after all data; with an error if the bytes end early or cannot be read.
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

  /** Gives false if the input should pause until `drain`. */
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
