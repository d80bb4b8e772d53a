import type { IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import { Busboy, type BusboyInstance } from '@fastify/busboy'
import { ServiceError } from '#shared/lib/error.ts'
import { beginningOf } from './problem.ts'

export interface FormBounds {
  readonly bytesMax: number
  readonly fieldsMax: number
  readonly fieldBytesMax: number
  /** Maximum bytes of all fields other than files, because such fields are in memory. */
  readonly fieldsBytesMax: number
  /**
   * Interval in ms at which progress is checked. A form is refused after one to two intervals without a received byte.
   */
  readonly stallMs: number
  /**
   * Called with the number of bytes of the form that are in memory so far.
   *
   * @throws ServiceError to refuse the form
   */
  onGrowth(bytes: number): void
}

export interface FormField {
  readonly name: string
  readonly value: string
}

export interface FormFile {
  readonly name: string
  /** File name without directories. Undefined if the part has no file name, and empty if the name is empty. */
  readonly filename: string | undefined
  /** Content of the file. Must be read to the end or destroyed. If the form fails, then the stream fails. */
  readonly bytes: Readable
}

export interface FileTaker {
  isFile(name: string, filename: string | undefined): boolean
  /**
   * Consumes one file while it arrives. Files arrive one after the other.
   *
   * @throws ServiceError to refuse the form
   */
  take(file: FormFile): Promise<void>
}

const PART_HEADERS = { headerPairs: 32, headerSize: 16 * 1024 }
const BYTE_ORDER_MARK = /^\uFEFF/
const NAMELESS_PARTS_MAX = 8

/**
 * Reads a form of type multipart/form-data (RFC 7578) while it arrives. Files are passed to the consumer at its own
 * speed and are not buffered.
 *
 * The promise settles only after the consumers of all files have ended. If the form is refused, then the error can be
 * sent at once, and the remaining bytes are discarded while they arrive. If these bytes take too long, then
 * services/ingress/http/server.ts cuts the connection.
 *
 * @returns The fields, in order
 * @throws ServiceError `unsupported_media_type`, `request_too_large`, `request_timeout`, `string_above_max_length`.
 * `invalid_request` if the body is not a form. The errors of the consumer
 */
export async function readForm(req: IncomingMessage, bounds: FormBounds, taker: FileTaker): Promise<FormField[]> {
  refuseOtherTypes(req)
  if (Number(req.headers['content-length']) > bounds.bytesMax) throw tooLarge(bounds.bytesMax)
  const parser = openParser(req, bounds, taker)
  const form = new FormReading(req, parser, bounds, taker)
  try {
    return await form.read()
  } finally {
    req.unpipe(parser)
    await form.close()
    parser.destroy()
    req.resume()
  }
}

function refuseOtherTypes({ headers }: IncomingMessage): void {
  const type = headers['content-type']?.split(';')[0]?.trim().toLowerCase()
  if (type !== 'multipart/form-data') {
    const got = type ? `but got ${type.slice(0, 100)}` : 'but none was given'
    throw new ServiceError('unsupported_media_type', `Expected Content-Type multipart/form-data, ${got}.`)
  }
  const encoding = headers['content-encoding']?.trim().toLowerCase()
  if (encoding === undefined || encoding === '' || encoding === 'identity') return
  throw new ServiceError(
    'unsupported_media_type',
    'Forms cannot be compressed. Send the body without Content-Encoding.',
  )
}

function openParser({ headers }: IncomingMessage, bounds: FormBounds, taker: FileTaker): BusboyInstance {
  const limits = {
    ...PART_HEADERS,
    fields: bounds.fieldsMax,
    fieldSize: bounds.fieldBytesMax,
    parts: bounds.fieldsMax + NAMELESS_PARTS_MAX,
  }
  try {
    const isPartAFile = (name: string | undefined, _type: string | undefined, filename: string | undefined) =>
      taker.isFile(name ?? '', filename)
    return new Busboy({ headers: { ...headers, 'content-type': headers['content-type'] ?? '' }, limits, isPartAFile })
  } catch (cause) {
    throw new ServiceError('invalid_request', 'The Content-Type of a form must name its boundary.', { cause })
  }
}

class FormReading {
  readonly #req: IncomingMessage
  readonly #parser: BusboyInstance
  readonly #bounds: FormBounds
  readonly #taker: FileTaker
  readonly #end = Promise.withResolvers<void>()
  readonly #fields: FormField[] = []
  readonly #files: { readonly bytes: Readable; readonly taken: Promise<void> }[] = []
  #fieldsBytes = 0
  #bytes = 0
  /** Bytes of the form in memory. The content of files is not included, because files are streamed. */
  #heldBytes = 0
  #isInFile = false

  constructor(req: IncomingMessage, parser: BusboyInstance, bounds: FormBounds, taker: FileTaker) {
    this.#req = req
    this.#parser = parser
    this.#bounds = bounds
    this.#taker = taker
  }

  async read(): Promise<FormField[]> {
    const stall = this.#watchStalls()
    const onData = (chunk: Buffer) => this.#count(chunk.length)
    const onClose = () => {
      if (!this.#req.complete) this.#fail(new ServiceError('request_timeout', 'The body ended before it was complete.'))
    }
    this.#listen()
    const { socket } = this.#req
    this.#req.on('data', onData).on('error', onClose).on('close', onClose)
    // After the request was answered, only its socket emits `close`, so the socket is watched too. Pipelined requests
    // share one socket, so Node's limit on listeners is removed.
    socket.setMaxListeners(0).on('close', onClose)
    // If the connection was cut during the check of the key, then its close event was emitted before this listener
    // existed.
    if (this.#req.closed || socket.destroyed) onClose()
    this.#req.pipe(this.#parser)
    try {
      await this.#end.promise
      await Promise.all(this.#files.map(({ taken }) => taken))
      return this.#fields
    } finally {
      clearInterval(stall)
      this.#req.off('data', onData).off('close', onClose)
      socket.off('close', onClose)
    }
  }

  async close(): Promise<void> {
    for (const { bytes } of this.#files) bytes.destroy()
    await Promise.allSettled(this.#files.map(({ taken }) => taken))
  }

  #listen(): void {
    const tooMany = () => {
      const message = `The form has too many parts. Expected at most ${this.#bounds.fieldsMax}.`
      this.#fail(new ServiceError('invalid_request', message))
    }
    this.#parser
      .on('file', (name, bytes, filename: string | undefined) => this.#takeFile({ name, bytes, filename }))
      .on('field', (name: string | undefined, value, _isNameCut, isCut) => this.#takeField(name, value, isCut))
      .on('fieldsLimit', tooMany)
      .on('partsLimit', tooMany)
      .on('finish', () => this.#end.resolve())
      .on('error', (cause) => {
        const message =
          'The form is incomplete: its last boundary is missing, or differs from the boundary in Content-Type.'
        this.#fail(new ServiceError('invalid_request', message, { cause }))
      })
  }

  #takeFile(file: FormFile): void {
    // The consumer of a file handles the error that the file's stream emits when the form fails. This listener only
    // prevents a crash by an unhandled `error` event.
    file.bytes.on('error', () => {})
    this.#isInFile = true
    file.bytes.once('end', () => {
      this.#isInFile = false
    })
    const taken = this.#taker.take(file)
    this.#files.push({ bytes: file.bytes, taken })
    taken.catch((error: unknown) => this.#fail(error))
  }

  #takeField(name: string | undefined, value: string, isCut: boolean): void {
    if (!name) return this.#fail(new ServiceError('invalid_request', 'A part of the form has no name.'))
    const { fieldBytesMax, fieldsBytesMax } = this.#bounds
    if (isCut) {
      const message = `Invalid '${excerpt(name)}': longer than the maximum of ${fieldBytesMax} bytes for a field.`
      return this.#fail(new ServiceError('string_above_max_length', message, { param: excerpt(name) }))
    }
    this.#fieldsBytes += value.length
    if (this.#fieldsBytes > fieldsBytesMax) return this.#fail(tooLarge(fieldsBytesMax))
    this.#fields.push({ name, value: value.replace(BYTE_ORDER_MARK, '') })
  }

  #count(bytes: number): void {
    this.#bytes += bytes
    if (!this.#isInFile) this.#hold(bytes)
    if (this.#bytes > this.#bounds.bytesMax) this.#fail(tooLarge(this.#bounds.bytesMax))
  }

  /**
   * Counts bytes when they arrive instead of when a field is complete, because the parser buffers incomplete fields.
   */
  #hold(bytes: number): void {
    this.#heldBytes += bytes
    try {
      this.#bounds.onGrowth(this.#heldBytes)
    } catch (error) {
      this.#fail(error)
    }
  }

  /**
   * Refuses the form if no bytes arrive. While reading is paused for a slow consumer, no bytes can arrive, so this time
   * does not count.
   */
  #watchStalls(): NodeJS.Timeout {
    const req = this.#req
    let seen = -1
    return setInterval(() => {
      const isWaiting = req.isPaused() || req.complete
      if (this.#bytes === seen && !isWaiting) {
        this.#fail(new ServiceError('request_timeout', 'The upload of the body stalled. Send the request again.'))
      }
      seen = isWaiting ? -1 : this.#bytes
    }, this.#bounds.stallMs)
  }

  #fail(error: unknown): void {
    this.#end.reject(error)
  }
}

const EXCERPT_CHARS_MAX = 64

function excerpt(name: string): string {
  return beginningOf(name, EXCERPT_CHARS_MAX)
}

function tooLarge(bytesMax: number): ServiceError {
  return new ServiceError('request_too_large', `The form is larger than the ${bytesMax} bytes the service accepts.`)
}
