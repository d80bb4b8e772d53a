import {
  type TranscribeRequest,
  type TranscriptForm,
  TranscriptionBody,
  TranslationBody,
} from '#schemas/kinds/transcription.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { Caller, IngressContext, JobEndpoint, PreparedCall } from '#services/ingress/calls/call.ts'
import { getModel, isUsable } from '#services/ingress/calls/endpoint.ts'
import { transcribe, translate } from '#shared/kinds/transcribe/transcribe.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { decodeTranscription } from './decode.ts'
import { readTranscription } from './upload.ts'

const TEXTS: ReadonlySet<string> = new Set(['text', 'srt', 'vtt'])

const WHOLE_ONLY: ReadonlySet<string> = new Set(['srt', 'vtt', 'verbose_json'])

/**
 * POST /v1/audio/transcriptions (docs/guides/transcription.md). Over HTTP, the body is a form. In `POST /v1/jobs` and
 * over a WebSocket, the body is JSON.
 */
export const transcriptions: JobEndpoint = {
  path: '/v1/audio/transcriptions',
  async describe() {
    const { TranscriptAnswer: Transcript } = await import('#schemas/answers/tools.ts')
    return {
      id: 'createTranscription',
      tag: 'Audio',
      summary: 'Transcribe audio',
      description: 'Supports timestamps, speaker labels and streaming.',
      guide: 'transcription',
      form: 'multipart/form-data',
      body: { TranscriptionForm: TranscriptionBody },
      answer: {
        description:
          'The transcript in the requested `response_format`. With `stream: true`, the text is sent in events.',
        json: { Transcript },
        media: ['text/plain'],
        events: null,
      },
    }
  },
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
  async describe() {
    const { TranscriptAnswer: Transcript } = await import('#schemas/answers/tools.ts')
    return {
      id: 'createTranslation',
      tag: 'Audio',
      summary: 'Translate audio to English text',
      guide: 'transcription#translations',
      form: 'multipart/form-data',
      body: { TranslationForm: TranslationBody },
      answer: {
        description: 'The English text in the requested `response_format`.',
        json: { Transcript },
        media: ['text/plain'],
      },
    }
  },
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

function translatorOf(context: IngressContext, caller: Caller, id: string): ModelConfig {
  const model = getModel(context, caller, id, 'transcription')
  if (model.transcription.translates) return model
  const able = context.models.models.filter((one) => one.transcription.translates && isUsable(one, caller.key))
  const others = able.map((one) => one.id).join(', ')
  const what = others
    ? `Models that support translation: ${others}.`
    : "No model supports translation. Ask the operator of the service for a model with 'transcription: { translates: true }' in models.yaml, whose server has POST /audio/translations."
  const message = `The model '${model.id}' does not translate. ${what}`
  throw new ServiceError('model_not_supported', message, { param: 'model' })
}
