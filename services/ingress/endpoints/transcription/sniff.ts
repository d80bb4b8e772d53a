import type { AudioFormat } from '#schemas/transcription/transcription.ts'
import { ServiceError } from '#shared/lib/error.ts'

/*
 * Detects an audio container by its first bytes (docs/reference/compatibility.md, Uploads). If the bytes are
 * inconclusive, then the file name decides. The worker checks whether the audio can be decoded.
 */

/** Formats by file extension; some extensions are synonyms. */
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

/** Number of bytes that suffice for the detection. */
const HEAD_BYTES = 64
/** Size of an ID3v2 header: `ID3`, version, flags, and the size of the tag in four bytes with seven bits each. */
const ID3_HEAD_BYTES = 10
const ID3_FOOTER_FLAG = 0x10
/** Maximum consecutive ID3v2 tags that are skipped. Real files have one. */
const TAGS_MAX = 4

/**
 * Detects the format of a file while it arrives. ID3v2 tags before the audio are skipped, because they may contain
 * pictures of any size.
 */
export class AudioSniffer {
  readonly #filename: string | undefined
  #head = Buffer.alloc(0)
  #skip = 0
  #tags = 0
  #format: AudioFormat | undefined

  /** @param filename Decides if the content is inconclusive */
  constructor(filename: string | undefined) {
    this.#filename = filename
  }

  /**
   * Reads the next bytes.
   *
   * @throws ServiceError `invalid_audio` as soon as the content cannot be audio
   */
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

  /**
   * The format, after all bytes.
   *
   * @throws ServiceError `invalid_audio`
   */
  end(): AudioFormat {
    this.#format ??= this.#decide()
    return this.#format
  }

  #decide(): AudioFormat {
    const found = this.#tags > TAGS_MAX ? 'other' : formatOf(this.#head)
    // Audio after an ID3v2 tag is MP3, or FLAC from a few programs. A file that ends within the tag contains no audio.
    if (this.#tags > 0 && this.#head.length > 0 && found !== 'other') return found === 'flac' ? 'flac' : 'mp3'
    if (found !== undefined && found !== 'other') return found
    const byName = EXTENSIONS.get(this.#filename?.split('.').at(-1)?.toLowerCase() ?? '')
    if (found === undefined && byName !== undefined && this.#head.length > 0) return byName
    const message =
      'The file is not audio in a known format. Supported are flac, mp3, mp4, mpeg, mpga, m4a, ogg, wav and webm.'
    throw new ServiceError('invalid_audio', message, { param: 'file' })
  }
}

/** Size of the ID3v2 tag at the start; 0 if there is none, or if too few bytes are available. */
function tagBytesOf(head: Buffer): number {
  if (head.length < ID3_HEAD_BYTES || head.toString('latin1', 0, 3) !== 'ID3') return 0
  const [a = 0, b = 0, c = 0, d = 0] = head.subarray(6, ID3_HEAD_BYTES).map((byte) => byte & 0x7f)
  const footer = (head[5] ?? 0) & ID3_FOOTER_FLAG ? ID3_HEAD_BYTES : 0
  return ID3_HEAD_BYTES + ((a << 21) | (b << 14) | (c << 7) | d) + footer
}

/** Format by content; `other` if the content is certainly not audio; undefined if it is inconclusive. */
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

/** First bytes of archives, images, documents and programs, as latin1. */
const OTHERS = ['PK\x03\x04', 'PK\x05\x06', '\x1f\x8b', 'BZh', '\xfd7zXZ', '7z\xbc\xaf', 'Rar!', '\x28\xb5\x2f\xfd']
const MORE_OTHERS = ['%PDF', '\x89PNG', '\xff\xd8\xff', 'GIF8', '\x7fELF', 'MZ', 'SQLite']

/**
 * Whether the content is certainly not audio, whatever its name: archives (which may be decompression bombs), pictures,
 * and text such as an error page.
 */
function isOther(head: Buffer): boolean {
  const text = head.toString('latin1')
  if ([...OTHERS, ...MORE_OTHERS].some((start) => text.startsWith(start))) return true
  return head.length > 0 && head.every((byte) => byte === 9 || byte === 10 || byte === 13 || (byte >= 32 && byte < 127))
}
