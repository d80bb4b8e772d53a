import { createHash } from 'node:crypto'
import type { ModelConfig } from '#schemas/models.ts'
import { JsonAudioBody, TranscriptionBody } from '#schemas/transcription/body.ts'
import {
  type AudioFormat,
  type TranscribeRequest,
  type TranscriptForm,
  type TranscriptFormat,
  VoiceActivity,
} from '#schemas/transcription/transcription.ts'
import { refuse, requireBase64 } from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { findLanguage } from '#shared/protocols/transcript/languages.ts'
import { tooLarge, UploadedAudio } from './transcription.ts'

/**
 * Beginning of a data URL (RFC 2397): data:<type>/<subtype>[;attribute=value]*;base64,<data>. The type is optional,
 * because the content determines the format.
 */
const HEAD = /^data:(?:[a-z]+\/[a-z0-9.+-]+)?(?:;[a-z0-9-]+=[^;,]*)*;base64,/i

/** Maximum characters before the data; a longer URL is refused. */
const HEAD_CHARS_MAX = 256

const NAMES = 'known_speaker_names'
const REFERENCES = 'known_speaker_references'

interface DecodeContext {
  /** @throws ServiceError `model_not_found`, `model_not_allowed`, `model_not_supported` */
  readonly getModel: (id: string) => ModelConfig
  readonly audioBytesMax: number
}

interface DecodedTranscription {
  readonly request: TranscribeRequest
  readonly form: TranscriptForm
}

const STREAMABLE: ReadonlySet<TranscriptFormat> = new Set(['json', 'text', 'diarized_json'])

const SUBTITLES: ReadonlySet<TranscriptFormat> = new Set(['srt', 'vtt'])

/**
 * Decodes a body from a form or from JSON (docs/reference/compatibility.md, Transcription fields). Checks the shape,
 * the model, the rules between fields, and last the audio.
 *
 * @throws ServiceError with the path of the first problem
 */
export function decodeTranscription(body: unknown, context: DecodeContext): DecodedTranscription {
  const { file, ...fields } = (body ?? {}) as Record<string, unknown>
  const asked = parseBody(TranscriptionBody, isObject(body) ? fields : body, 'openai')
  const model = context.getModel(asked.model)
  const form = formOf(asked)
  requireCombination(asked, form)
  requireWithinModel(asked, form, model)
  const diarize = form.format === 'diarized_json'
  const language = languageOf(asked, model)
  const prompt = promptOf(asked)
  const vad = vadOf(asked, diarize)
  const request = {
    model: model.id,
    audio: file instanceof UploadedAudio ? { ...file } : audioOfJson(file, context.audioBytesMax),
    ...(language !== undefined && { language }),
    ...(prompt !== undefined && { prompt }),
    temperature: asked.temperature ?? 0,
    words: form.words || (SUBTITLES.has(form.format) && model.transcription.words),
    logprobs: form.logprobs,
    diarize,
    speakers: decodeSpeakers(asked, diarize),
    ...(vad && { vad }),
    stream: asked.stream ?? false,
  }
  return { request, form }
}

function isObject(body: unknown): boolean {
  return typeof body === 'object' && body !== null && !Array.isArray(body)
}

/** Form of the answer. `verbose_json` contains segments by default (docs/reference/compatibility.md, Transcripts). */
function formOf(asked: TranscriptionBody): TranscriptForm {
  const format = asked.response_format ?? 'json'
  const granularities = asked.timestamp_granularities ?? []
  const isVerbose = format === 'verbose_json'
  return {
    format,
    words: isVerbose && granularities.includes('word'),
    segments: isVerbose && (granularities.length === 0 || granularities.includes('segment')),
    logprobs: format === 'json' && (asked.include ?? []).includes('logprobs'),
  }
}

function requireCombination(asked: TranscriptionBody, { format }: TranscriptForm): void {
  if (asked.stream && !STREAMABLE.has(format)) {
    const message = `The response_format '${format}' cannot be streamed. Use json, text or diarized_json, or no stream.`
    refuse('unsupported_value', 'stream', message)
  }
  if (format !== 'verbose_json' && (asked.timestamp_granularities ?? []).length > 0) {
    const message = "timestamp_granularities need response_format 'verbose_json'."
    refuse('unsupported_value', 'timestamp_granularities', message)
  }
  if (format !== 'json' && (asked.include ?? []).length > 0) {
    refuse('unsupported_value', 'include', "Log probabilities need response_format 'json'.")
  }
}

function requireWithinModel(asked: TranscriptionBody, form: TranscriptForm, model: ModelConfig): void {
  const { words, diarize } = model.transcription
  if (form.format === 'diarized_json' && !diarize) {
    refuse('unsupported_value', 'response_format', `The model '${model.id}' does not support speaker diarization.`)
  }
  if (form.words && !words) {
    refuse('unsupported_value', 'timestamp_granularities', `The model '${model.id}' does not support word timestamps.`)
  }
  if (form.logprobs && !model.capabilities.logprobs) {
    refuse('unsupported_value', 'include', `The model '${model.id}' does not support log probabilities.`)
  }
  for (const [index, hint] of (asked.languages ?? []).entries()) requireLanguage(hint, `languages[${index}]`)
}

/** Language of the speech. If the request lists several, then the engine detects the language. */
function languageOf({ language, languages }: TranscriptionBody, model: ModelConfig): string | undefined {
  const given = language ?? (languages?.length === 1 ? languages[0] : undefined)
  if (given == null) return undefined
  const code = requireLanguage(given, 'language')
  const known = model.transcription.languages
  if (known && !known.some((each) => findLanguage(each) === code)) {
    const message = `The model '${model.id}' does not support the language '${code}'. Supported are ${known.join(', ')}.`
    refuse('unsupported_value', 'language', message)
  }
  return code
}

function requireLanguage(code: string, param: string): string {
  const known = findLanguage(code)
  if (known !== undefined) return known
  const message = `Invalid '${param}': '${excerpt(code)}' is not a language code. Use ISO-639-1, such as 'en'.`
  return refuse('invalid_language_format', param, message)
}

/** Prompt for the engine. Keywords are appended, because engines accept them only as text before the transcript. */
function promptOf({ prompt, keywords }: TranscriptionBody): string | undefined {
  const parts = [prompt ?? '', (keywords ?? []).join(', ')].filter((part) => part !== '')
  return parts.length === 0 ? undefined : parts.join('\n')
}

/**
 * Voice activity detection. Default: none. Diarization always needs it, because it works on segments of speech
 * (docs/reference/compatibility.md, Uploads).
 */
function vadOf({ chunking_strategy: strategy }: TranscriptionBody, diarize: boolean): VoiceActivity | undefined {
  if (strategy == null) return diarize ? VoiceActivity.parse({}) : undefined
  if (strategy === 'auto') return VoiceActivity.parse({})
  if (typeof strategy === 'string') {
    const message = `Invalid value: '${excerpt(strategy)}'. Expected 'auto' or an object of the type 'server_vad'.`
    refuse('invalid_value', 'chunking_strategy', message)
  }
  const { type: _type, ...given } = strategy
  return VoiceActivity.parse(Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null)))
}

/**
 * Pairs the names of known speakers with samples of their voices (docs/reference/compatibility.md, Transcription
 * fields). The worker checks the duration of a sample when it decodes the sample.
 *
 * @throws ServiceError `invalid_value`, `unsupported_value`, `invalid_audio` with the path of the first problem
 */
function decodeSpeakers(asked: TranscriptionBody, diarize: boolean): TranscribeRequest['speakers'] {
  const names = asked.known_speaker_names ?? []
  const references = asked.known_speaker_references ?? []
  if (!diarize && names.length + references.length > 0) {
    const message = "Known speakers need response_format 'diarized_json'."
    refuse('unsupported_value', names.length > 0 ? NAMES : REFERENCES, message)
  }
  if (names.length !== references.length) {
    const message = `Expected a reference for each name, but got ${names.length} names and ${references.length} references.`
    refuse('invalid_value', names.length > references.length ? REFERENCES : NAMES, message)
  }
  requireUnique(names)
  return references.map((url, index) => ({ name: names[index] as string, reference: referenceOf(url, index) }))
}

function requireUnique(names: readonly string[]): void {
  const second = names.findIndex((name, index) => names.indexOf(name) !== index)
  if (second === -1) return
  const message = `Names of speakers must be unique, but '${excerpt(names[second] as string)}' occurs twice.`
  refuse('invalid_value', `${NAMES}[${second}]`, message)
}

function referenceOf(url: string, index: number): string {
  const param = `${REFERENCES}[${index}]`
  const base64 = base64OfUrl(url, param)
  const sniffer = new AudioSniffer(undefined)
  try {
    sniffer.push(Buffer.from(base64, 'base64'))
    sniffer.end()
  } catch (cause) {
    throw new ServiceError('invalid_audio', `Invalid '${param}': not audio in a known format.`, { cause, param })
  }
  return base64
}

/**
 * Audio in a JSON body: `data:audio/wav;base64,…`, or an object with the base64 text and the file name.
 *
 * @param file Field `file` of the body
 * @throws ServiceError `missing_required_parameter`, `invalid_type`, `invalid_value`, `request_too_large`,
 * `invalid_audio`
 */
function audioOfJson(file: unknown, bytesMax: number): TranscribeRequest['audio'] {
  const given = parseBody(JsonAudioBody, { file }, 'openai').file
  const { data, filename } = typeof given === 'string' ? { data: base64OfUrl(given, 'file'), filename: null } : given
  if (data === '') throw new ServiceError('invalid_audio', 'The audio file is empty.', { param: 'file' })
  if (typeof given !== 'string') requireBase64(data, 'file.data')
  if (data.length > Math.ceil(bytesMax / 3) * 4) throw tooLarge(bytesMax)
  const bytes = Buffer.from(data, 'base64')
  if (bytes.length > bytesMax) throw tooLarge(bytesMax)
  const sniffer = new AudioSniffer(filename ?? undefined)
  sniffer.push(bytes)
  const format = sniffer.end()
  return { base64: data, sha256: createHash('sha256').update(bytes).digest('hex'), bytes: bytes.length, format }
}

/**
 * Base64 content of a data URL.
 *
 * @throws ServiceError `invalid_value`
 */
function base64OfUrl(url: string, param: string): string {
  const [head] = HEAD.exec(url.slice(0, HEAD_CHARS_MAX)) ?? []
  if (head === undefined) {
    const message = `Invalid '${param}': expected a base64-encoded data URL, such as data:audio/wav;base64,UklGRg….`
    throw new ServiceError('invalid_value', message, { param })
  }
  const data = url.slice(head.length)
  requireBase64(data, param)
  return data
}

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
