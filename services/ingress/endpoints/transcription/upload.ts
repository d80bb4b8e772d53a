import { createHash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { type AudioFormat, REFERENCE_CHARS_MAX, SPEAKERS_MAX } from '#schemas/kinds/transcription.ts'
import { type FormBounds, type FormField, type FormFile, readForm } from '#services/ingress/body/multipart.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { readJobFields } from '#services/ingress/calls/job-options.ts'
import { HELD_PER_BYTE } from '#shared/capacity/byte-budgets.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newAttachmentKey, newJobId } from '#shared/store/jobs.ts'

/**
 * Maximum form fields: each field of docs/guides/transcription.md, Fields, the items of lists, and some fields that are
 * ignored.
 */
const FIELDS_MAX = 256
/**
 * Maximum bytes of a field. The longest field is the voice sample of a speaker. The extra 64 KiB let a slightly too
 * long sample reach validation, which reports the exact error.
 */
const FIELD_BYTES_MAX = REFERENCE_CHARS_MAX + 64 * 1024
/** Maximum bytes of all fields: the voice samples, and 512 KiB for all other fields. */
const FIELDS_BYTES_MAX = SPEAKERS_MAX * FIELD_BYTES_MAX + 512 * 1024
const FRAMING_BYTES_MAX = 256 * 1024

/**
 * An uploaded audio file, stored in a blob. The JSON contains the hash of the file, so that two uploads of one file have
 * equal idempotency fingerprints.
 */
export class UploadedAudio {
  readonly blob: string
  readonly sha256: string
  readonly bytes: number
  readonly format: AudioFormat

  constructor(stored: { blob: string; sha256: string; bytes: number; format: AudioFormat }) {
    this.blob = stored.blob
    this.sha256 = stored.sha256
    this.bytes = stored.bytes
    this.format = stored.format
  }

  toJSON(): object {
    return { sha256: this.sha256 }
  }
}

/**
 * Reads the form of a transcription. The file is written to a blob while it arrives, and the blob is recorded in
 * `call.uploads`. The fields become a body as in JSON, with an {@link UploadedAudio} as `file`. Job options are stored
 * in `call.jobFields`.
 *
 * @throws ServiceError for problems of the form or its fields, and for the file: `request_too_large`, `invalid_audio`
 */
export async function readTranscription(
  context: IngressContext,
  call: Call,
  req: IncomingMessage,
): Promise<Record<string, unknown>> {
  const { audioBytesMax, bodyStallMs } = context.config
  const bounds: FormBounds = {
    bytesMax: audioBytesMax + FIELDS_BYTES_MAX + FRAMING_BYTES_MAX,
    fieldsMax: FIELDS_MAX,
    fieldBytesMax: FIELD_BYTES_MAX,
    fieldsBytesMax: FIELDS_BYTES_MAX,
    stallMs: bodyStallMs,
    onGrowth: (bytes) => call.held.hold(bytes * HELD_PER_BYTE),
  }
  let isTaken = false
  let audio: UploadedAudio | undefined
  const fields = await readForm(req, bounds, {
    // A part named `file` is always streamed to a blob, even without a filename, and never kept in memory.
    isFile: (name, filename) => filename !== undefined || name === 'file',
    take: async (file) => {
      requireAudio(file, isTaken)
      isTaken = true
      audio = await storeAudio(context, call, file)
    },
  })
  const { jobFields, others } = readJobFields(fields)
  Object.assign(call.jobFields, jobFields)
  return { ...bodyOfForm(others), ...(audio && { file: audio }) }
}

function requireAudio({ name, filename }: FormFile, isTaken: boolean): void {
  if (name !== 'file') {
    const shown = excerpt(name ?? '')
    throw new ServiceError(
      'invalid_value',
      `Unexpected file '${shown}': send the audio as 'file', and all other fields without a filename.`,
      {
        param: shown,
      },
    )
  }
  if (isTaken) throw new ServiceError('invalid_value', "Expected one 'file', but got several.", { param: 'file' })
  if (filename === undefined || filename === '') {
    const message = "Invalid 'file': expected the audio file itself, as a part with a filename."
    throw new ServiceError('invalid_type', message, { param: 'file' })
  }
}

async function storeAudio(context: IngressContext, call: Call, file: FormFile): Promise<UploadedAudio> {
  const bytesMax = context.config.audioBytesMax
  const hash = createHash('sha256')
  const sniffer = new AudioSniffer(file.filename)
  let bytes = 0
  async function* checked(): AsyncGenerator<Buffer> {
    for await (const chunk of file.bytes as AsyncIterable<Buffer>) {
      bytes += chunk.length
      if (bytes > bytesMax) throw tooLarge(bytesMax)
      hash.update(chunk)
      sniffer.push(chunk)
      yield chunk
    }
    // An error that is thrown here fails the write of the blob, so that no blob is stored for an empty file.
    if (bytes === 0) throw new ServiceError('invalid_audio', 'The audio file is empty.', { param: 'file' })
    sniffer.end()
  }
  // The blob is named after a new job id, which becomes the id of the job if the call creates a durable job.
  const blob = newAttachmentKey(newJobId())
  call.uploads.add(blob)
  await call.storage.over(context.blobs).put(blob, checked())
  return new UploadedAudio({ blob, sha256: hash.digest('hex'), bytes, format: sniffer.end() })
}

export function tooLarge(bytesMax: number): ServiceError {
  const message = `The audio file is larger than the ${bytesMax} bytes the service accepts.`
  return new ServiceError('request_too_large', message, { param: 'file' })
}

/*
 * Detects an audio container by its first bytes (docs/reference/compatibility.md, Uploads). If the bytes match no known
 * format, then the extension of the file name decides. The worker checks later whether the audio can be decoded.
 */

const EXTENSIONS: ReadonlyMap<string, AudioFormat> = new Map([
  ['flac', 'flac'],
  ['mp3', 'mp3'],
  ['mpga', 'mp3'],
  ['mp4', 'mp4'],
  ['m4a', 'mp4'],
  ['mpeg', 'mpeg'],
  ['mpg', 'mpeg'],
  ['ogg', 'ogg'],
  ['oga', 'ogg'],
  ['opus', 'ogg'],
  ['wav', 'wav'],
  ['webm', 'webm'],
])

const HEAD_BYTES = 64
/** Bytes of an ID3v2 header: `ID3`, version, flags, and the size of the tag in four bytes with seven bits each. */
const ID3_HEAD_BYTES = 10
const ID3_FOOTER_FLAG = 0x10
/** Maximum consecutive ID3v2 tags that are skipped. Real files have one. */
const TAGS_MAX = 4

/**
 * Detects the format of a file while the file arrives. ID3v2 tags before the audio are skipped, because they may
 * contain pictures of any size.
 */
export class AudioSniffer {
  readonly #filename: string | undefined
  #head = Buffer.alloc(0)
  #skip = 0
  #tags = 0
  #format: AudioFormat | undefined

  constructor(filename: string | undefined) {
    this.#filename = filename
  }

  push(chunk: Buffer): void {
    if (this.#format !== undefined) return
    let rest = chunk
    for (;;) {
      const skipped = Math.min(this.#skip, rest.length)
      this.#skip -= skipped
      const taken = rest.subarray(skipped, skipped + HEAD_BYTES - this.#head.length)
      rest = rest.subarray(skipped + taken.length)
      this.#head = Buffer.concat([this.#head, taken])
      const tagBytes = tagBytesOf(this.#head)
      if (tagBytes === 0 || ++this.#tags > TAGS_MAX) break
      this.#skip = Math.max(0, tagBytes - this.#head.length)
      this.#head = this.#head.subarray(tagBytes)
    }
    if (this.#head.length === HEAD_BYTES) this.#format = this.#decide()
  }

  end(): AudioFormat {
    this.#format ??= this.#decide()
    return this.#format
  }

  #decide(): AudioFormat {
    const found = this.#tags > TAGS_MAX ? 'other' : formatOf(this.#head)
    // Audio after an ID3v2 tag is MP3, or in rare cases FLAC. A file that ends within the tag contains no audio.
    if (this.#tags > 0 && this.#head.length > 0 && found !== 'other') return found === 'flac' ? 'flac' : 'mp3'
    if (found !== undefined && found !== 'other') return found
    const byName = EXTENSIONS.get(this.#filename?.split('.').at(-1)?.toLowerCase() ?? '')
    if (found === undefined && byName !== undefined && this.#head.length > 0) return byName
    const message =
      'The file is not audio in a known format. Supported are flac, mp3, mp4, mpeg, mpga, m4a, ogg, wav and webm.'
    throw new ServiceError('invalid_audio', message, { param: 'file' })
  }
}

function tagBytesOf(head: Buffer): number {
  if (head.length < ID3_HEAD_BYTES || head.toString('latin1', 0, 3) !== 'ID3') return 0
  const [a = 0, b = 0, c = 0, d = 0] = head.subarray(6, ID3_HEAD_BYTES).map((byte) => byte & 0x7f)
  const footer = (head[5] ?? 0) & ID3_FOOTER_FLAG ? ID3_HEAD_BYTES : 0
  return ID3_HEAD_BYTES + ((a << 21) | (b << 14) | (c << 7) | d) + footer
}

/**
 * Returns the format according to the content. `other` means that the content is certainly not audio, and undefined
 * that it matches no known format.
 */
function formatOf(head: Buffer): AudioFormat | 'other' | undefined {
  const four = head.toString('latin1', 0, 4)
  if (four === 'RIFF' || four === 'RF64') return head.toString('latin1', 8, 12) === 'WAVE' ? 'wav' : 'other'
  if (four === 'fLaC') return 'flac'
  if (four === 'OggS') return 'ogg'
  if (head.toString('latin1', 4, 8) === 'ftyp') return 'mp4'
  if (head.length >= 4) {
    const word = head.readUInt32BE(0)
    if (word === 0x1a45dfa3) return 'webm'
    if (word === 0x000001ba || word === 0x000001b3) return 'mpeg'
    // A frame of MPEG audio begins with eleven set bits.
    if (word >>> 21 === 0x7ff) return 'mp3'
  }
  return isOther(head) ? 'other' : undefined
}

const OTHERS = ['PK\x03\x04', 'PK\x05\x06', '\x1f\x8b', 'BZh', '\xfd7zXZ', '7z\xbc\xaf', 'Rar!', '\x28\xb5\x2f\xfd']
const MORE_OTHERS = ['%PDF', '\x89PNG', '\xff\xd8\xff', 'GIF8', '\x7fELF', 'MZ', 'SQLite']

/**
 * Whether the content is certainly not audio, whatever the name of the file. Examples are an archive (perhaps a
 * decompression bomb), a picture, or plain text such as an error page.
 */
function isOther(head: Buffer): boolean {
  const text = head.toString('latin1')
  if ([...OTHERS, ...MORE_OTHERS].some((start) => text.startsWith(start))) return true
  return head.length > 0 && head.every((byte) => byte === 9 || byte === 10 || byte === 13 || (byte >= 32 && byte < 127))
}

/*
 * Converts the fields of a transcription form to a JSON body (docs/reference/compatibility.md, Uploads). Clients write
 * lists and objects in several ways:
 *
 *   name[]=a name[]=b · name=a name=b · name[0]=a name[1]=b
 *   chunking_strategy=auto · chunking_strategy={"type":"server_vad"} · chunking_strategy[type]=server_vad
 *
 * An empty field counts as absent. An invalid number or boolean stays text, so that validation of the body reports it.
 * Unknown fields are dropped.
 */

const LISTS: ReadonlySet<string> = new Set([
  ...['languages', 'keywords', 'timestamp_granularities', 'include'],
  ...['known_speaker_names', 'known_speaker_references'],
])
const TEXTS: ReadonlySet<string> = new Set(['model', 'language', 'prompt', 'response_format'])
const STRATEGY = 'chunking_strategy'
/** Maximum characters of `chunking_strategy` as JSON, which has four members. Longer JSON could be nested deeply. */
const STRATEGY_CHARS_MAX = 1_024
const FLAGS: ReadonlySet<string> = new Set(['stream', 'background', 'store'])

/** Field name: `name`, `name[]` or `name[key]`. */
const NAME = /^([a-z_]{1,64})(?:\[([a-z_]{0,64}|\d{1,3})\])?$/

export function bodyOfForm(fields: readonly FormField[]): Record<string, unknown> {
  const body: Record<string, unknown> = {}
  const lists = new Map<string, Item[]>()
  for (const { name, value } of fields) {
    const [, field = '', key] = NAME.exec(name) ?? []
    if (value === '') continue
    if (LISTS.has(field)) addItem(lists, field, key, value)
    else if (field === STRATEGY && key) addMember(body, key, value)
    else if (key === undefined) addValue(body, field, value)
  }
  for (const [field, items] of lists) {
    body[field] = items.sort((a, b) => a.index - b.index).map(({ value }) => value)
  }
  return body
}

interface Item {
  readonly index: number
  readonly value: string
}

function addItem(lists: Map<string, Item[]>, field: string, key: string | undefined, value: string): void {
  const items = lists.get(field) ?? []
  items.push({ index: key ? Number(key) : items.length, value })
  lists.set(field, items)
}

function addValue(body: Record<string, unknown>, field: string, value: string): void {
  const read = readValue(field, value)
  if (read === undefined) return
  if (field in body) throw twice(field)
  body[field] = read
}

function readValue(field: string, value: string): unknown {
  if (TEXTS.has(field)) return value
  if (FLAGS.has(field)) return readFlag(value)
  if (field === 'temperature') return readNumber(value)
  if (field === STRATEGY) return value.trimStart().startsWith('{') ? readStrategy(value) : value
  return undefined
}

function addMember(body: Record<string, unknown>, key: string, value: string): void {
  const members = body[STRATEGY] ?? {}
  if (typeof members !== 'object' || Object.hasOwn(members, key)) throw twice(`${STRATEGY}[${key}]`)
  body[STRATEGY] = { ...members, [key]: key === 'type' ? value : readNumber(value) }
}

/** Reads a boolean, written as `true` (JSON) or `True` (Python). */
function readFlag(value: string): boolean | string {
  const lower = value.toLowerCase()
  return lower === 'true' || lower === 'false' ? lower === 'true' : value
}

function readNumber(value: string): number | string {
  return /^[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i.test(value.trim()) ? Number(value) : value
}

function readStrategy(value: string): unknown {
  try {
    if (value.length <= STRATEGY_CHARS_MAX) return JSON.parse(value)
  } catch {
    // If the value is not JSON, then the error below is thrown.
  }
  throw new ServiceError('invalid_value', `Invalid '${STRATEGY}': expected 'auto' or a JSON object.`, {
    param: STRATEGY,
  })
}

function twice(field: string): ServiceError {
  const param = excerpt(field)
  return new ServiceError('invalid_value', `The field '${param}' is given more than once.`, { param })
}
