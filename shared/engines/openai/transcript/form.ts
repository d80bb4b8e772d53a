import { randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import type { AudioFile } from '#shared/engines/transcription.ts'

/** A form as the body of a call. If `body` is not read to its end, then the caller must destroy it. */
export interface FormBody {
  readonly headers: { readonly 'content-type': string; readonly 'content-length': string }
  readonly body: Readable
}

/**
 * A multipart form (RFC 7578) whose file is read while it is sent. The file comes last, after all options, so that servers can process it
 * while they receive it.
 *
 * @param fields Name and value of each field; names may repeat.
 * @throws ServiceError if the file was deleted
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
      // Some servers, such as whisper.cpp, accept no chunked bodies.
      'content-length': String(head.length + file.bytes + tail.length),
    },
    body: between(head, content, tail),
  }
}

/** A stream of head, content and tail. Destroying the stream destroys the content, even before anything was read. */
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

/** Quotes and line ends are escaped as browsers do, because they would end the header. */
function disposition(name: string, filename?: string): string {
  const quoted = (text: string) => text.replaceAll('"', '%22').replaceAll('\r', '%0D').replaceAll('\n', '%0A')
  const file = filename === undefined ? '' : `; filename="${quoted(filename)}"`
  return `content-disposition: form-data; name="${quoted(name)}"${file}`
}
