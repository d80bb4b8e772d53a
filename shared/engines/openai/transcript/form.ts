import { randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import type { AudioFile } from '#shared/engines/transcription.ts'

/** A form as the body of a call. The caller destroys `body` when it is not read to its end. */
export interface FormBody {
  readonly headers: { readonly 'content-type': string; readonly 'content-length': string }
  readonly body: Readable
}

/**
 * A multipart form (RFC 7578) whose file is read while it is sent. The file comes last, after the fields that say what to
 * do with it: servers that work while they read know all by then.
 *
 * @param fields Name and value of each; a name may repeat.
 * @throws ServiceError when the file is gone
 */
export async function openForm(fields: readonly (readonly [string, string])[], file: AudioFile): Promise<FormBody> {
  const boundary = `sluice-${randomUUID()}`
  const texts = fields.map(([name, value]) => `--${boundary}\r\n${disposition(name)}\r\n\r\n${value}\r\n`)
  const opening = `--${boundary}\r\n${disposition('file', file.filename)}\r\ncontent-type: application/octet-stream\r\n\r\n`
  const head = Buffer.from(texts.join('') + opening)
  const tail = Buffer.from(`\r\n--${boundary}--\r\n`)
  const content = await file.open()
  return {
    headers: {
      'content-type': `multipart/form-data; boundary=${boundary}`,
      // Some servers, whisper.cpp's among them, take no chunked bodies.
      'content-length': String(head.length + file.bytes + tail.length),
    },
    body: between(head, content, tail),
  }
}

/** Destroying the whole destroys the content, also before anything was read. */
function between(head: Buffer, content: Readable, tail: Buffer): Readable {
  async function* join() {
    yield head
    yield* content
    yield tail
  }
  const whole = Readable.from(join(), { objectMode: false })
  whole.once('close', () => content.destroy())
  return whole
}

/** Quotes, and line ends as they would end the header, are escaped as browsers do. */
function disposition(name: string, filename?: string): string {
  const quoted = (text: string) => text.replaceAll('"', '%22').replaceAll('\r', '%0D').replaceAll('\n', '%0A')
  const file = filename === undefined ? '' : `; filename="${quoted(filename)}"`
  return `content-disposition: form-data; name="${quoted(name)}"${file}`
}
