import type { ServerResponse } from 'node:http'

/** Of no body, and no trailers. */
const LAST_CHUNK = '0\r\n\r\n'

/**
 * Writes the chunks of a response (RFC 9112 §7.1) as one string each from now on. Node writes a chunk as four pieces, which
 * costs a stream of short messages more than all else that is done for one of them.
 *
 * The head must have been sent. A response that is not chunked, to a client of HTTP/1.0, stays as it is. What is written
 * after this must be text.
 */
export function ownChunks(res: ServerResponse): void {
  if (!res.chunkedEncoding) return
  const write = res.write.bind(res)
  const end = res.end.bind(res)
  res.chunkedEncoding = false
  Object.assign(res, {
    write: (text: string) => (text === '' ? true : writeChunk(write, text)),
    end: (text = '') => end(text === '' ? LAST_CHUNK : chunkOf(text, Buffer.byteLength(text)) + LAST_CHUNK),
  })
}

/** Plain ASCII, as most text, needs no encoding. */
function writeChunk(write: (text: string, encoding: BufferEncoding) => boolean, text: string): boolean {
  const bytes = Buffer.byteLength(text)
  return write(chunkOf(text, bytes), bytes === text.length ? 'latin1' : 'utf8')
}

function chunkOf(text: string, bytes: number): string {
  return `${bytes.toString(16)}\r\n${text}\r\n`
}
