import type { ServerResponse } from 'node:http'
import { ServiceError } from '#shared/error.ts'

/** Characters or bytes written at once: what a client must take within the time for slow readers. */
const PIECE = 64 * 1024

/**
 * Writes to a response that may be read slowly, piece by piece, so that every client gets the same time for the same
 * number of bytes. Resolves when it takes more; at once when the client is gone.
 *
 * @param pieces Taken one by one, as there is room.
 * @throws ServiceError `slow_reader` when the client took less than a piece in `slowReaderMs`
 */
export async function writePieces(
  res: ServerResponse,
  pieces: Iterable<string | Uint8Array>,
  slowReaderMs: number,
): Promise<void> {
  for (const piece of pieces) {
    if (res.destroyed) return
    if (!res.write(piece)) await untilDrained(res, slowReaderMs)
  }
}

/** Text of a stream cut into pieces of whole frames, so that an error frame may follow each. */
export function* framePieces(text: string): Generator<string> {
  let start = 0
  while (text.length - start > PIECE) {
    const last = text.lastIndexOf(FRAME_END, start + PIECE)
    const end = last > start ? last : text.indexOf(FRAME_END, start + PIECE)
    if (end === -1) break
    yield text.slice(start, end + FRAME_END.length)
    start = end + FRAME_END.length
  }
  if (start < text.length) yield text.slice(start)
}

const FRAME_END = '\n\n'

/** Bytes cut into pieces. */
export function* bytePieces(bytes: Buffer): Generator<Uint8Array> {
  for (let start = 0; start < bytes.length; start += PIECE) yield bytes.subarray(start, start + PIECE)
}

/** Ends a response, and cuts the connection when the client has not taken the rest within a time. */
export function endWithin(res: ServerResponse, ms: number, text = ''): void {
  res.end(text)
  // Nearly always the kernel has taken all of it by now.
  if (res.writableLength === 0 || res.destroyed) return
  const timer = setTimeout(() => res.destroy(), ms)
  res.once('close', () => clearTimeout(timer))
}

function untilDrained(res: ServerResponse, slowReaderMs: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer)
      res.off('drain', onDrain).off('close', onDrain)
    }
    const onDrain = () => {
      stop()
      resolve()
    }
    const timer = setTimeout(() => {
      stop()
      reject(new ServiceError('slow_reader', 'The connection is read too slowly to keep up with the output.'))
    }, slowReaderMs)
    res.once('drain', onDrain).once('close', onDrain)
  })
}
