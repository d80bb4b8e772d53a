import { SpeechBody } from '#schemas/kinds/speech.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { Caller, IngressContext, JobEndpoint } from '#services/ingress/calls/call.ts'
import { getModel } from '#services/ingress/calls/endpoint.ts'
import { speak } from '#shared/kinds/speak/speak.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * POST /v1/audio/speech (docs/guides/speech.md): sends audio bytes while they are generated. With `stream_format: sse`,
 * each event contains some of the bytes.
 */
export const speech: JobEndpoint = {
  path: '/v1/audio/speech',
  async describe() {
    const { SpeechAnswer: Speech } = await import('#schemas/answers/tools.ts')
    return {
      id: 'createSpeech',
      tag: 'Audio',
      summary: 'Generate speech from text',
      guide: 'speech',
      body: { SpeechRequest: SpeechBody },
      answer: {
        description:
          'The audio in the requested `response_format`, sent while it is generated. With `stream_format: sse`, the audio is sent in events. The result of a durable job is JSON.',
        json: { Speech },
        media: ['audio/mpeg', 'audio/ogg', 'audio/aac', 'audio/flac', 'audio/wav', 'audio/pcm'],
        events: null,
      },
    }
  },
  format: 'openai',
  kind: speak,
  requireModel: (context, caller, model) => void speakerOf(context, caller, model),
  prepare(context, caller, body) {
    const asked = parseBody(SpeechBody, body, 'openai')
    const model = speakerOf(context, caller, asked.model)
    const { input, voice, instructions, response_format, speed } = asked
    const request = {
      model: model.id,
      input: input.toWellFormed(),
      ...(voice != null && { voice }),
      ...(instructions != null && { instructions: instructions.toWellFormed() }),
      response_format,
      ...(speed != null && { speed }),
    }
    const isStream = asked.stream_format === 'sse'
    return {
      model: model.id,
      body: request,
      stream: isStream,
      isBytes: !isStream,
      timeoutMs: context.config.requestTimeoutMs,
      encode: { speech: { format: response_format } },
    }
  },
}

function speakerOf(context: IngressContext, caller: Caller, id: string): ModelConfig {
  if (context.models.models.some(({ task }) => task === 'speech')) return getModel(context, caller, id, 'speech')
  const message =
    `The model '${excerpt(id)}' does not support speech, and no other model does. Ask the operator of the service to add a ` +
    "model with 'task: speech' to models.yaml, whose server has POST /audio/speech."
  throw new ServiceError('model_not_found', message, { param: 'model' })
}
