import { createHash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { ModelConfig } from '#schemas/models.ts'
import { REFERENCE_CHARS_MAX, SPEAKERS_MAX, TranslationBody } from '#schemas/transcription/body.ts'
import type { AudioFormat, TranscribeRequest, TranscriptForm } from '#schemas/transcription/transcription.ts'
import { type FormBounds, type FormFile, readForm } from '#services/ingress/body/multipart.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import {
  type Caller,
  getModel,
  isUsable,
  type JobEndpoint,
  type PreparedCall,
} from '#services/ingress/calls/endpoint.ts'
import { readJobFields } from '#services/ingress/calls/job-options.ts'
import { HELD_PER_BYTE } from '#shared/capacity/byte-budgets.ts'
import { transcribe, translate } from '#shared/kinds/transcribe.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newAttachmentKey, newJobId } from '#shared/store/job-id.ts'
import { AudioSniffer, decodeTranscription } from './decode.ts'
import { bodyOfForm } from './form.ts'

const TEXTS: ReadonlySet<string> = new Set(['text', 'srt', 'vtt'])

/** Formats that cannot be streamed (docs/reference/compatibility.md, Transcription fields). */
const WHOLE_ONLY: ReadonlySet<string> = new Set(['srt', 'vtt', 'verbose_json'])

/**
 * POST /v1/audio/transcriptions (docs/guides/transcription.md). The body is a form over HTTP, and JSON in `POST /v1/jobs` and
 * over a WebSocket.
 */
export const transcriptions: JobEndpoint = {
  path: '/v1/audio/transcriptions',
  format: 'openai',
  kind: transcribe,
  canStream: ({ response_format: format }) => !WHOLE_ONLY.has(String(format)),
  readBody: readTranscription,
  prepare(context, caller, body) {
    const { request, form } = decodeTranscription(body, {
      getModel: (id) => getModel(context, caller, id, 'transcription'),
      audioBytesMax: context.config.audioBytesMax,
    })
    return preparedOf(context, request, form)
  },
}

function preparedOf(
  { config }: Pick<IngressContext, 'config'>,
  request: TranscribeRequest,
  form: TranscriptForm,
): PreparedCall {
  const { model, audio, stream = false } = request
  return {
    model,
    body: request,
    ...(audio.blob !== undefined && { attachments: [audio.blob] }),
    stream,
    isText: !stream && TEXTS.has(form.format),
    timeoutMs: config.requestTimeoutMs,
    encode: { transcript: form },
  }
}

/**
 * POST /v1/audio/translations (docs/guides/transcription.md, Translations): transcribes speech in any language into
 * English text.
 */
export const translations: JobEndpoint = {
  path: '/v1/audio/translations',
  format: 'openai',
  kind: translate,
  requireModel: (context, caller, model) => void translatorOf(context, caller, model),
  readBody: readTranscription,
  prepare(context, caller, body) {
    const { file, ...fields } = (body ?? {}) as Record<string, unknown>
    const isObject = typeof body === 'object' && body !== null && !Array.isArray(body)
    const asked = parseBody(TranslationBody, isObject ? fields : body, 'openai')
    const { request, form } = decodeTranscription(
      { ...asked, file },
      {
        getModel: (id) => translatorOf(context, caller, id),
        audioBytesMax: context.config.audioBytesMax,
      },
    )
    return preparedOf(context, request, { ...form, translated: true })
  },
}

/**
 * Finds a model that can translate. If the given model cannot, then the error message lists models that can.
 *
 * @throws ServiceError as `getModel`
 */
function translatorOf(context: IngressContext, caller: Caller, id: string): ModelConfig {
  const model = getModel(context, caller, id, 'transcription')
  if (model.transcription.translates) return model
  const able = context.models.models.filter((one) => one.transcription.translates && isUsable(one, caller.key))
  const others = able.map((one) => one.id).join(', ')
  const what = others
    ? `Models that do: ${others}.`
    : "No model does. Translation needs a model with 'transcription: { translates: true }' in models.yaml, whose server has POST /audio/translations."
  const message = `The model '${model.id}' does not translate. ${what}`
  throw new ServiceError('model_not_supported', message, { param: 'model' })
}

/**
 * Maximum form fields: each field of docs/guides/transcription.md, Fields, the items of lists, and some fields that are
 * ignored.
 */
const FIELDS_MAX = 256
/**
 * Maximum bytes of a field. The voice sample of a speaker is the longest. The margin lets validation report a sample
 * that is slightly too long.
 */
const FIELD_BYTES_MAX = REFERENCE_CHARS_MAX + 64 * 1024
/** Maximum bytes of all fields: the voice samples, and 512 KiB for all others. */
const FIELDS_BYTES_MAX = SPEAKERS_MAX * FIELD_BYTES_MAX + 512 * 1024
/** Maximum bytes of boundaries and part headers. */
const FRAMING_BYTES_MAX = 256 * 1024

/**
 * An uploaded audio file, stored in a blob. JSON contains its hash, so that two uploads of one file have the same
 * fingerprint.
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
async function readTranscription(
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
    // Checked before the stream ends, so that nothing is stored if the file is not audio.
    if (bytes === 0) throw new ServiceError('invalid_audio', 'The audio file is empty.', { param: 'file' })
    sniffer.end()
  }
  // The blob is named after a new job id. If the call becomes a durable job, then the job gets this id.
  const blob = newAttachmentKey(newJobId())
  call.uploads.add(blob)
  await call.storage.over(context.blobs).put(blob, checked())
  return new UploadedAudio({ blob, sha256: hash.digest('hex'), bytes, format: sniffer.end() })
}

export function tooLarge(bytesMax: number): ServiceError {
  const message = `The audio file is larger than the ${bytesMax} bytes the service accepts.`
  return new ServiceError('request_too_large', message, { param: 'file' })
}
