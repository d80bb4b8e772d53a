import { createHash } from 'node:crypto'
import {
  JsonAudioBody,
  type TranscribeRequest,
  type TranscriptForm,
  type TranscriptFormat,
  TranscriptionBody,
  VoiceActivity,
} from '#schemas/kinds/transcription.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { refuse, requireBase64 } from '#services/ingress/body/decode.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import { findLanguage } from '#shared/kinds/transcribe/cue-text.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { AudioSniffer, tooLarge, UploadedAudio } from './upload.ts'

/**
 * Beginning of a data URL (RFC 2397): data:<type>/<subtype>[;attribute=value]*;base64,<data>. The type is optional,
 * because the audio format is detected from the content.
 */
const HEAD = /^data:(?:[a-z]+\/[a-z0-9.+-]+)?(?:;[a-z0-9-]+=[^;,]*)*;base64,/i

const HEAD_CHARS_MAX = 256

const NAMES = 'known_speaker_names'
const REFERENCES = 'known_speaker_references'

interface DecodeContext {
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
 * Decodes a body from a form or from JSON (docs/reference/compatibility.md, Transcription fields). The checks are, in
 * order: the shape, the model, the rules between fields, and the audio.
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

/**
 * Returns the form of the answer. `verbose_json` contains segments by default (docs/reference/compatibility.md,
 * Transcripts).
 */
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
    const message = `The response_format '${format}' cannot be streamed. Use json, text or diarized_json, or omit stream.`
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

/**
 * Returns the language of the speech. If the request lists several languages, then none is returned, so that the engine
 * detects the language.
 */
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

/**
 * Returns the prompt for the engine. Keywords are appended to the prompt, because engines have no separate input for
 * them.
 */
function promptOf({ prompt, keywords }: TranscriptionBody): string | undefined {
  const parts = [prompt ?? '', (keywords ?? []).join(', ')].filter((part) => part !== '')
  return parts.length === 0 ? undefined : parts.join('\n')
}

/**
 * Returns the settings of voice activity detection, which is off by default. Diarization always uses it, because
 * diarization works on segments of speech (docs/reference/compatibility.md, Uploads).
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
