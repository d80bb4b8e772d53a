import type { IncomingMessage } from 'node:http'
import type { Readable, Transform } from 'node:stream'
import * as zlib from 'node:zlib'
import { ServiceError } from '#shared/error.ts'
import { joinBytes } from '#shared/join-bytes.ts'
import { runToEnd, runYielding } from '#shared/yielding.ts'

/** Smallest and largest block that is filled with what comes in small pieces. */
const BLOCK_BYTES_MIN = 4 * 1024
const BLOCK_BYTES_MAX = 1024 * 1024
/** Codings of one body, applied one after the other. */
const CODINGS_MAX = 3
/** 8 MiB, the largest window of the zstd content coding (RFC 9659). By default the library allocates up to 128 MiB. */
const ZSTD_WINDOW_LOG_MAX = 23
/** Node.js before 22.15 has no zstd. */
const { createZstdDecompress } = zlib as Partial<typeof zlib>

const INFLATERS: ReadonlyMap<string, () => Transform> = new Map<string, () => Transform>([
  ['gzip', () => zlib.createGunzip()],
  ['x-gzip', () => zlib.createGunzip()],
  ['deflate', () => zlib.createInflate()],
  ['br', () => zlib.createBrotliDecompress()],
  ...(createZstdDecompress ? [['zstd', () => openZstd(createZstdDecompress)] as const] : []),
])

/** How much of a body is read, and how long a pause in it may last. */
export interface BodyBounds {
  /** Most bytes, after inflation. */
  readonly bytesMax: number
  /** The body is given up after one to two times this long without a byte. */
  readonly stallMs: number
}

/**
 * Reads the whole body of a request, inflated. What is left of a refused body is thrown away as it comes: the caller can
 * answer at once, and the server cuts the connection if the rest does not end soon (services/ingress/server.ts).
 *
 * @param onGrowth Hears how many bytes are there, each time some have come; what it throws refuses the body.
 * @throws ServiceError `request_too_large`, `unsupported_media_type`, `request_timeout`, `invalid_request`
 */
export async function readBytes(
  req: IncomingMessage,
  bounds: BodyBounds,
  onGrowth: (bytes: number) => void,
): Promise<Buffer> {
  if (Number(req.headers['content-length']) > bounds.bytesMax) throw tooLarge(bounds.bytesMax)
  const inflaters = openInflaters(req.headers['content-encoding'])
  // From here on pipe() would leave a failed inflater on a request that is not read any more.
  const stages: Readable[] = [req]
  for (const inflater of inflaters) stages.push((stages.at(-1) ?? req).pipe(inflater))
  try {
    const blocks = await collect(req, stages, bounds, onGrowth)
    return await blocks.join()
  } finally {
    for (const [index, inflater] of inflaters.entries()) {
      stages[index]?.unpipe(inflater)
      inflater.destroy()
    }
    req.resume()
  }
}

/** UTF-8 text without the byte order mark that editors and PowerShell put before it (RFC 8259 §8.1 lets a parser ignore it). */
export function withoutByteOrderMark(text: Buffer): Buffer {
  return text[0] === 0xef && text[1] === 0xbb && text[2] === 0xbf ? text.subarray(3) : text
}

/** Inflaters in the order in which they are needed: the coding that was applied last is undone first (RFC 9110 §8.4). */
function openInflaters(encoding = ''): Transform[] {
  const codings = encoding
    .toLowerCase()
    .split(',')
    .map((coding) => coding.trim())
    .filter((coding) => coding !== '' && coding !== 'identity')
  const opens = codings.map((coding) => INFLATERS.get(coding))
  if (codings.length <= CODINGS_MAX && opens.every((open) => open !== undefined)) {
    return opens.toReversed().map((open) => open())
  }
  const names = [...INFLATERS.keys()].filter((name) => name !== 'x-gzip').join(', ')
  const message = `Content-Encoding must be ${names} or identity, or at most ${CODINGS_MAX} of these in a row.`
  throw new ServiceError('unsupported_media_type', message)
}

function openZstd(create: typeof zlib.createZstdDecompress): Transform {
  return create({ params: { [zlib.constants.ZSTD_d_windowLogMax]: ZSTD_WINDOW_LOG_MAX } })
}

function collect(
  req: IncomingMessage,
  stages: readonly Readable[],
  { bytesMax, stallMs }: BodyBounds,
  onGrowth: (bytes: number) => void,
): Promise<ByteBlocks> {
  return new Promise((resolve, reject) => {
    const blocks = new ByteBlocks()
    const { socket } = req
    const source = stages.at(-1) ?? req
    // Inflation is progress too: it may take longer than the bytes took to arrive.
    const progress = () => socket.bytesRead + blocks.bytes
    let seen = progress()
    const stall = setInterval(() => {
      const isStalled = progress() === seen && !req.complete
      if (isStalled) fail(new ServiceError('request_timeout', 'The body stopped arriving.'))
      seen = progress()
    }, stallMs)
    const onData = (chunk: Buffer) => {
      const bytes = blocks.bytes + chunk.length
      if (bytes > bytesMax) return fail(tooLarge(bytesMax))
      try {
        onGrowth(bytes)
      } catch (error) {
        return fail(error)
      }
      blocks.push(chunk)
    }
    // The input of each inflater has the same bound: any number of empty gzip members makes no output.
    const counters = stages.slice(0, -1).map(() => {
      let bytes = 0
      return (chunk: Buffer) => {
        bytes += chunk.length
        if (bytes > bytesMax) fail(tooLarge(bytesMax))
      }
    })
    const onEnd = () => {
      stop()
      resolve(blocks)
    }
    // A request that is cut closes without an end; behind an inflater nothing else tells. One that was answered meanwhile
    // does not close with its connection, so that is asked too.
    const onClose = () => {
      if (!req.complete) fail(new ServiceError('request_timeout', 'The body ended before it was complete.'))
    }
    const onError = (stage: Readable, cause: Error) => {
      if (stage === req) onClose()
      else fail(new ServiceError('invalid_request', 'The body is not what Content-Encoding says.', { cause }))
    }
    const fail = (error: unknown) => {
      stop()
      reject(error)
    }
    const stop = () => {
      clearInterval(stall)
      for (const [index, count] of counters.entries()) stages[index]?.off('data', count)
      source.off('data', onData).off('end', onEnd)
      req.off('close', onClose)
      socket.off('close', onClose)
    }
    source.on('data', onData).on('end', onEnd)
    for (const stage of stages) stage.on('error', (cause) => onError(stage, cause))
    for (const [index, count] of counters.entries()) stages[index]?.on('data', count)
    req.on('close', onClose)
    // Pipelined requests are read side by side.
    socket.setMaxListeners(0).on('close', onClose)
    if (socket.destroyed) onClose()
  })
}

function tooLarge(bytesMax: number): ServiceError {
  return new ServiceError('request_too_large', `The body is larger than the ${bytesMax} bytes the service accepts.`)
}

/**
 * Bytes as they arrive, in memory that is no more than about twice theirs: a piece of a single byte would hold a hundred of its
 * own, and the 64 KiB that were read from the socket along with it.
 */
export class ByteBlocks {
  bytes = 0
  #blocks: Buffer[] = []
  /** Of the last block. */
  #used = 0

  push(piece: Buffer): void {
    // Most bodies are one piece.
    if (this.bytes > 0) this.#copy(piece)
    else {
      this.#blocks = [piece]
      this.#used = piece.length
    }
    this.bytes += piece.length
  }

  /** All of them as one. What was pushed is forgotten. */
  async join(): Promise<Buffer> {
    return this.#only() ?? (await runYielding(joinBytes(this.#taken(), this.bytes)))
  }

  /** The same at once: some milliseconds for the largest body. */
  take(): Buffer {
    return this.#only() ?? runToEnd(joinBytes(this.#taken(), this.bytes))
  }

  #only(): Buffer | undefined {
    return this.#blocks.length === 1 ? this.#taken()[0]?.subarray(0, this.bytes) : undefined
  }

  #taken(): Buffer[] {
    const blocks = this.#blocks
    this.#blocks = []
    return blocks
  }

  #copy(piece: Buffer): void {
    const last = this.#blocks.at(-1)
    const copied = last ? piece.copy(last, this.#used) : 0
    this.#used += copied
    if (copied === piece.length) return
    const rest = piece.subarray(copied)
    const size = Math.max(rest.length, Math.min(BLOCK_BYTES_MAX, Math.max(BLOCK_BYTES_MIN, this.bytes)))
    const block = Buffer.allocUnsafeSlow(size)
    this.#blocks.push(block)
    this.#used = rest.copy(block)
  }
}
