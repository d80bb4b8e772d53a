import type { ServerResponse } from 'node:http'
import { ServiceError } from '#shared/lib/error.ts'
import { isHighSurrogate } from '#shared/lib/surrogate-buffer.ts'

/** Maximum characters or bytes per write. A client must read each piece within `slowReaderMs`. */
const PIECE = 64 * 1024

/**
 * Writes pieces to a response whose client may read slowly. Each piece has its own time limit, so every client must
 * reach the same minimum rate. Resolves when the response accepts more, or at once if the client disconnected.
 *
 * @param pieces Iterated lazily, as the client reads
 * @throws ServiceError `slow_reader` if the client read less than a piece in `slowReaderMs`
 */
export async function writePieces(
  res: ServerResponse,
  pieces: Iterable<string | Uint8Array>,
  slowReaderMs: number,
): Promise<void> {
  let slow: unknown
  for (const piece of pieces) {
    if (res.destroyed) return
    const isTaken = res.write(piece)
    if (!isTaken && !slow) slow = await untilDrained(res, slowReaderMs).catch((error: unknown) => error)
    // The frame is first completed, so that an error frame can follow.
    if (slow && (typeof piece !== 'string' || piece.endsWith(FRAME_END))) break
  }
  if (slow) throw slow
}

/**
 * Writes whole frames of a stream. Frames nearly always fit into the send buffer without waiting.
 *
 * @returns undefined if the client accepts more; otherwise a promise as of {@link writePieces}
 */
export function writeFrames(res: ServerResponse, text: string, slowReaderMs: number): Promise<void> | undefined {
  if (text.length > PIECE) return writePieces(res, framePieces(text), slowReaderMs)
  if (text === '' || res.destroyed || res.write(text)) return undefined
  return untilDrained(res, slowReaderMs)
}

/**
 * Splits the text of a stream into pieces of whole frames, so that an error frame can follow each piece. Only a frame
 * longer than a piece is itself split, such as a plot of several megabytes.
 */
export function* framePieces(text: string): Generator<string> {
  let start = 0
  while (text.length - start > PIECE) {
    const piece = text.slice(start, start + PIECE)
    const last = piece.lastIndexOf(FRAME_END)
    const end = last > 0 ? start + last + FRAME_END.length : characterEnd(text, start + PIECE)
    yield text.slice(start, end)
    start = end
  }
  if (start < text.length) yield text.slice(start)
}

const FRAME_END = '\n\n'

/** End of a piece, moved so that it does not split a surrogate pair. */
function characterEnd(text: string, end: number): number {
  return isHighSurrogate(text.charCodeAt(end - 1)) ? end - 1 : end
}

export function* bytePieces(bytes: Buffer): Generator<Uint8Array> {
  for (let start = 0; start < bytes.length; start += PIECE) yield bytes.subarray(start, start + PIECE)
}

/**
 * Ends a response. If the client does not read the rest in time, then the connection is cut.
 *
 * @param end.onSlow Called before the cut
 * @param end.encoding Encoding of the text: `latin1` is faster for plain ASCII. Default: utf8
 */
export function endWithin(
  res: ServerResponse,
  ms: number,
  text = '',
  end: { readonly onSlow?: (error: ServiceError) => void; readonly encoding?: BufferEncoding | undefined } = {},
): void {
  res.end(text, end.encoding ?? 'utf8')
  // Usually all bytes have already been passed to the kernel.
  if (res.writableLength === 0 || res.destroyed) return
  const timer = setTimeout(() => {
    end.onSlow?.(tooSlow())
    res.destroy()
  }, ms)
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
      reject(tooSlow())
    }, slowReaderMs)
    res.once('drain', onDrain).once('close', onDrain)
  })
}

function tooSlow(): ServiceError {
  return new ServiceError('slow_reader', 'The connection is read too slowly to keep up with the output.')
}
