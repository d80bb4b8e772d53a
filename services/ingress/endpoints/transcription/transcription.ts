import type { TranscribeRequest, TranscriptForm } from '#schemas/transcription/transcription.ts'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { getModel, type JobEndpoint, type PreparedCall } from '#services/ingress/calls/endpoint.ts'
import { transcribe } from '#shared/kinds/transcribe.ts'
import { decodeTranscription } from './decode.ts'
import { readTranscription } from './upload.ts'

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

export function preparedOf(
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
