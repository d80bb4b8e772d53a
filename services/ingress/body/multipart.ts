import type { IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import { Busboy, type BusboyInstance } from '@fastify/busboy'
import { ServiceError } from '#shared/error.ts'
import { beginningOf } from './problem.ts'

/** How much of a form is read, and how long a pause in it may last. */
export interface FormBounds {
  /** Most bytes of the whole body. */
  readonly bytesMax: number
  readonly fieldsMax: number
  /** Most bytes of one field that is no file. */
  readonly fieldBytesMax: number
  /** Most bytes of all such fields together: they are held in memory. */
  readonly fieldsBytesMax: number
  /** The form is given up after one to two times this long without a byte. */
  readonly stallMs: number
  /** Hears how many bytes that belong to no file have come. @throws ServiceError To refuse the form */
  onGrowth(bytes: number): void
}

/** A field that is no file. */
export interface FormField {
  readonly name: string
  readonly value: string
}

/** A part that is a file, while it arrives. */
export interface FormFile {
  readonly name: string
  /** Without directories; undefined when the part has none, empty when it is empty. */
  readonly filename: string | undefined
  /** To be read to its end, or destroyed. It fails when the form does. */
  readonly bytes: Readable
}

/** What takes the files of a form. Its failure is the form's: nothing more is read. */
export interface FileTaker {
  /** Whether a part is a file; the others are fields, which are kept in memory. */
  isFile(name: string, filename: string | undefined): boolean
  /** Takes one file while it arrives. Files come one after the other. @throws ServiceError To refuse the form */
  take(file: FormFile): Promise<void>
}

/** Headers of a part: a name, a type, a length. */
const PART_HEADERS = { headerPairs: 32, headerSize: 16 * 1024 }
/** Some clients put one before the JSON of a field. */
const BYTE_ORDER_MARK = /^\uFEFF/
/** Parts that may be skipped because they say no name. */
const NAMELESS_PARTS_MAX = 8

/**
 * Reads a form of type multipart/form-data (RFC 7578) while it arrives. Files are handed on at the pace at which they are
 * taken, and nothing of them is kept.
 *
 * When it settles no file is being taken any more. What is left of a refused form is thrown away as it comes: the caller can
 * answer at once, and the server cuts the connection if the rest does not end soon (services/ingress/server.ts).
 *
 * @returns The fields in their order.
 * @throws ServiceError `unsupported_media_type`, `request_too_large`, `request_timeout`, `string_above_max_length`,
 *   `invalid_request` for what is no form, and what the taker throws
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
  throw new ServiceError('unsupported_media_type', 'A form may not be compressed: send it without Content-Encoding.')
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

/** One form under way. It fails once, with the first problem. */
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
  /** Of them, those that are held: all but the file's. */
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
    // A request that was answered meanwhile does not close with its connection. Pipelined ones are read side by side.
    socket.setMaxListeners(0).on('close', onClose)
    // It may have been cut while its key was looked up: then it closes no more.
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

  /** Ends the files that are still being taken, and waits until nobody works on them. */
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
          'The body is not a whole form: its last boundary is missing, or is not the one Content-Type names.'
        this.#fail(new ServiceError('invalid_request', message, { cause }))
      })
  }

  #takeFile(file: FormFile): void {
    // An aborted form ends its file with an error; whoever reads it hears of it, and so does close().
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
      const message = `Invalid '${excerpt(name)}': longer than the ${fieldBytesMax} bytes a field may have.`
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

  /** They are counted as they come: the parser keeps a field that is not whole yet. */
  #hold(bytes: number): void {
    this.#heldBytes += bytes
    try {
      this.#bounds.onGrowth(this.#heldBytes)
    } catch (error) {
      this.#fail(error)
    }
  }

  /** Bytes that wait for a slow taker are not the client's fault: while nothing is read from the socket, none can come. */
  #watchStalls(): NodeJS.Timeout {
    const req = this.#req
    let seen = -1
    return setInterval(() => {
      const isWaiting = req.isPaused() || req.complete
      if (this.#bytes === seen && !isWaiting) {
        this.#fail(new ServiceError('request_timeout', 'The body stopped arriving.'))
      }
      seen = isWaiting ? -1 : this.#bytes
    }, this.#bounds.stallMs)
  }

  #fail(error: unknown): void {
    this.#end.reject(error)
  }
}

const EXCERPT_CHARS_MAX = 64

/** Shortens a name before it is shown back. */
function excerpt(name: string): string {
  return beginningOf(name, EXCERPT_CHARS_MAX)
}

function tooLarge(bytesMax: number): ServiceError {
  return new ServiceError('request_too_large', `The form is larger than the ${bytesMax} bytes the service accepts.`)
}
