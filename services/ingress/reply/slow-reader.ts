import type { ServerResponse } from 'node:http'
import { ServiceError } from '#shared/error.ts'
import { isHighSurrogate } from '#shared/surrogate-buffer.ts'

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
  let slow: unknown
  for (const piece of pieces) {
    if (res.destroyed) return
    const isTaken = res.write(piece)
    if (!isTaken && !slow) slow = await untilDrained(res, slowReaderMs).catch((error: unknown) => error)
    // The rest of a frame goes along: last words may follow it.
    if (slow && (typeof piece !== 'string' || piece.endsWith(FRAME_END))) break
  }
  if (slow) throw slow
}

/**
 * The same for whole frames of a stream. Nearly all are written at once: then there is nothing to wait for.
 *
 * @returns Settles as {@link writePieces} does; undefined when the client takes more
 */
export function writeFrames(res: ServerResponse, text: string, slowReaderMs: number): Promise<void> | undefined {
  if (text.length > PIECE) return writePieces(res, framePieces(text), slowReaderMs)
  if (text === '' || res.destroyed || res.write(text)) return undefined
  return untilDrained(res, slowReaderMs)
}

/**
 * Text of a stream cut into pieces of whole frames, so that an error frame may follow each. Only a frame that is longer than
 * a piece is cut itself: the plots of a run have megabytes.
 */
export function* framePieces(text: string): Generator<string> {
  let start = 0
  while (text.length - start > PIECE) {
    const last = text.lastIndexOf(FRAME_END, start + PIECE)
    const end = last > start ? last + FRAME_END.length : characterEnd(text, start + PIECE)
    yield text.slice(start, end)
    start = end
  }
  if (start < text.length) yield text.slice(start)
}

const FRAME_END = '\n\n'

/** Half a character is none: it goes along with its other half. */
function characterEnd(text: string, end: number): number {
  return isHighSurrogate(text.charCodeAt(end - 1)) ? end - 1 : end
}

/** Bytes cut into pieces. */
export function* bytePieces(bytes: Buffer): Generator<Uint8Array> {
  for (let start = 0; start < bytes.length; start += PIECE) yield bytes.subarray(start, start + PIECE)
}

/**
 * Ends a response, and cuts the connection when the client has not taken the rest within a time.
 *
 * @param end.onSlow Told before the cut.
 * @param end.encoding Of the text: plain ASCII is quicker as `latin1`. Default: utf8.
 */
export function endWithin(
  res: ServerResponse,
  ms: number,
  text = '',
  end: { readonly onSlow?: (error: ServiceError) => void; readonly encoding?: BufferEncoding | undefined } = {},
): void {
  res.end(text, end.encoding ?? 'utf8')
  // Nearly always the kernel has taken all of it by now.
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
