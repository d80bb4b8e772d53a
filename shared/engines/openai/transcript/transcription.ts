import { randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import type { TranscribeEvent, TranscribeRequest } from '#schemas/kinds/transcription.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { AudioFile, TranscribeOptions, TranscriptionEngine } from '#shared/engines/engine.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { openReader } from '#shared/engines/upstream/readers.ts'
import { Upstream } from '#shared/engines/upstream/upstream.ts'
import { countText } from '#shared/engines/upstream/usage.ts'
import { audioTokensOf, TranscriptDecoder } from './decode.ts'

/**
 * Opens a transcription engine for a server with POST /audio/transcriptions: Speaches, vLLM, LocalAI, OpenAI, and whisper.cpp (with
 * `--inference-path /v1/audio/transcriptions --convert`).
 */
export function openOpenAiTranscription(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelPartition,
): TranscriptionEngine {
  const { engine } = model
  if (engine.type !== 'openai') throw new Error(`model '${model.id}' does not run on an OpenAI-dialect upstream`)
  const key = keyOf(model, env)
  const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {}
  const upstream = new Upstream(model, engine, headers, { missingKey: missingKeyOf(model, env), share })
  return {
    get places() {
      return upstream.permits
    },
    transcribe(request, audio, options) {
      if (options.translates) {
        const call = { fields: encodeTranslation(request, model), isStream: false, path: '/audio/translations' }
        return callTranscription(upstream, model, { ...request, language: 'en' }, audio, options, call)
      }
      const form = answerFormOf(request, model)
      const call = { fields: encodeFields(request, model, form), isStream: form === 'stream' }
      return callTranscription(upstream, model, request, audio, options, call)
    },
    close: () => upstream.close(),
  }
}

interface FormCall {
  readonly fields: readonly (readonly [string, string])[]
  readonly isStream: boolean
  readonly path?: string
}

export async function* callTranscription(
  upstream: Upstream,
  model: ModelConfig,
  request: TranscribeRequest,
  audio: AudioFile,
  options: TranscribeOptions,
  { fields, isStream, path = '/audio/transcriptions' }: FormCall,
): AsyncGenerator<TranscribeEvent, void, undefined> {
  const decoder = new TranscriptDecoder({
    model: model.id,
    language: request.language ?? onlyLanguageOf(model),
    duration: options.duration,
    onSeconds: options.onSeconds,
  })
  const { headers, body } = await openForm(fields, audio)
  try {
    const { signal, idempotencyKey } = options
    const exchange = await upstream.call({
      path,
      headers: { ...headers, 'idempotency-key': idempotencyKey },
      body,
      isStream,
      signal,
      trace: options,
    })
    try {
      const reader = openReader(exchange, decoder)
      const out: TranscribeEvent[] = []
      for (let isOver = false; !isOver; ) {
        await exchange.waitForBytes()
        isOver = await reader.read(exchange.take(), out)
        if (isOver) exchange.release(decoder.isDone)
        if (isOver) decoder.end(out)
        yield* out
        out.length = 0
      }
    } finally {
      exchange.release(decoder.isDone)
    }
    yield { type: 'usage', usage: await usageOf(decoder) }
    yield { type: 'finish' }
  } finally {
    body.destroy()
  }
}

function onlyLanguageOf({ transcription: { languages } }: ModelConfig): string {
  return (languages?.length === 1 && languages[0]) || ''
}

/**
 * Returns the usage that the upstream counted. Without such usage, the input is estimated as ten tokens per second of audio. The output is estimated
 * from the segments or the text.
 */
async function usageOf({ counted, duration, segmentTokens, text }: TranscriptDecoder) {
  if (counted) {
    const { input, text: ofPrompt, output } = counted
    const details = { input_token_details: { audio_tokens: input - ofPrompt, text_tokens: ofPrompt } }
    return { input_tokens: input, output_tokens: output, ...(ofPrompt > 0 && details) }
  }
  return { input_tokens: audioTokensOf(duration), output_tokens: segmentTokens || (await countText(text)) }
}

/** A multipart form as the body of a call. A caller that does not read `body` to its end must destroy it. */
interface FormBody {
  readonly headers: { readonly 'content-type': string; readonly 'content-length': string }
  readonly body: Readable
}

/**
 * Opens a multipart form (RFC 7578) whose file is read while it is sent. The file comes after all options, so that servers can process it while they
 * receive it.
 *
 * @param fields Name and value of each field. Names may repeat.
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
      // Some servers, such as whisper.cpp, reject chunked bodies, so the length is sent.
      'content-length': String(head.length + file.bytes + tail.length),
    },
    body: between(head, content, tail),
  }
}

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

/** Makes the header of a part. Quotes and line ends would end the value early, so they are escaped as in browsers. */
function disposition(name: string, filename?: string): string {
  const quoted = (text: string) => text.replaceAll('"', '%22').replaceAll('\r', '%0D').replaceAll('\n', '%0A')
  const file = filename === undefined ? '' : `; filename="${quoted(filename)}"`
  return `content-disposition: form-data; name="${quoted(name)}"${file}`
}

type AnswerForm = 'verbose_json' | 'json' | 'stream'

/**
 * Selects the format to request from the upstream. A stream has only text, so it is selected if the caller streams and needs neither speakers nor
 * words. Otherwise verbose_json is selected, the only format with segments and words. Exceptions with json: the caller wants log probabilities, which
 * only json has, or the upstream has no segments.
 */
function answerFormOf(request: TranscribeRequest, { transcription }: ModelConfig): AnswerForm {
  if (request.stream && transcription.stream && !request.diarize && !request.words) return 'stream'
  return transcription.segments && !request.logprobs ? 'verbose_json' : 'json'
}

function encodeTranslation({ prompt, temperature }: TranscribeRequest, model: ModelConfig): [string, string][] {
  const fields: [string, string][] = [['model', upstreamModelOf(model)]]
  fields.push(['response_format', model.transcription.segments ? 'verbose_json' : 'json'])
  if (prompt !== undefined) fields.push(['prompt', prompt])
  if (temperature > 0) fields.push(['temperature', String(temperature)])
  return fields
}

/** Encodes the form fields other than the file, in OpenAI's API. Fields with their default value are left out. */
export function encodeFields(request: TranscribeRequest, model: ModelConfig, form: AnswerForm): [string, string][] {
  const { language, prompt, temperature, logprobs } = request
  const fields: [string, string][] = [['model', upstreamModelOf(model)]]
  fields.push(['response_format', form === 'stream' ? 'json' : form])
  if (language !== undefined) fields.push(['language', language])
  if (prompt !== undefined) fields.push(['prompt', prompt])
  // A temperature of 0 is not sent. Without the field, servers start at 0 and raise the temperature when decoding fails. With an explicit 0, some
  // servers never raise it.
  if (temperature > 0) fields.push(['temperature', String(temperature)])
  if (form === 'verbose_json') fields.push(...granularities(request, model))
  if (form === 'stream') fields.push(['stream', 'true'])
  if (logprobs && form !== 'verbose_json') fields.push(['include[]', 'logprobs'])
  return [...fields, ...vadFields(request)]
}

function granularities({ words, diarize }: TranscribeRequest, { transcription }: ModelConfig): [string, string][] {
  const segment: [string, string] = ['timestamp_granularities[]', 'segment']
  // Diarization assigns speakers word by word. The times of words are therefore requested, even if the caller does not want them.
  return (words || diarize) && transcription.words ? [segment, ['timestamp_granularities[]', 'word']] : [segment]
}

/** Encodes the voice activity settings as one field per member, as the official SDKs do (docs/reference/compatibility.md, Uploads). */
function vadFields({ vad }: TranscribeRequest): [string, string][] {
  if (!vad) return []
  const members = Object.entries({ type: 'server_vad', ...vad })
  return members.map(([name, value]) => [`chunking_strategy[${name}]`, String(value)])
}

function upstreamModelOf({ id, engine }: ModelConfig): string {
  return 'model' in engine && engine.model !== undefined ? engine.model : id
}
