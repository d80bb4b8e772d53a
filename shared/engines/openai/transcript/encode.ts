import type { ModelConfig } from '#schemas/models.ts'
import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'

export type AnswerForm = 'verbose_json' | 'json' | 'stream'

/**
 * The most detailed format of the upstream that fits the request. Only verbose_json has segments and words, only json has log
 * probabilities, and a stream has text alone.
 */
export function answerFormOf(request: TranscribeRequest, { transcription }: ModelConfig): AnswerForm {
  if (request.stream && transcription.stream && !request.diarize && !request.words) return 'stream'
  return transcription.segments && !request.logprobs ? 'verbose_json' : 'json'
}

/** Form fields of a translation, which has few options and is never streamed. */
export function encodeTranslation({ prompt, temperature }: TranscribeRequest, model: ModelConfig): [string, string][] {
  const fields: [string, string][] = [['model', upstreamModelOf(model)]]
  fields.push(['response_format', model.transcription.segments ? 'verbose_json' : 'json'])
  if (prompt !== undefined) fields.push(['prompt', prompt])
  if (temperature > 0) fields.push(['temperature', String(temperature)])
  return fields
}

/** Form fields next to the file, in OpenAI's API. Fields with their default value are left out. */
export function encodeFields(request: TranscribeRequest, model: ModelConfig, form: AnswerForm): [string, string][] {
  const { language, prompt, temperature, logprobs } = request
  const fields: [string, string][] = [['model', upstreamModelOf(model)]]
  fields.push(['response_format', form === 'stream' ? 'json' : form])
  if (language !== undefined) fields.push(['language', language])
  if (prompt !== undefined) fields.push(['prompt', prompt])
  // Left out at 0. Servers then raise the temperature by themselves if necessary, but some do not after an explicit 0.
  if (temperature > 0) fields.push(['temperature', String(temperature)])
  if (form === 'verbose_json') fields.push(...granularities(request, model))
  if (form === 'stream') fields.push(['stream', 'true'])
  if (logprobs && form !== 'verbose_json') fields.push(['include[]', 'logprobs'])
  return [...fields, ...vadFields(request)]
}

function granularities({ words, diarize }: TranscribeRequest, { transcription }: ModelConfig): [string, string][] {
  const segment: [string, string] = ['timestamp_granularities[]', 'segment']
  // Diarization assigns speakers word by word.
  return (words || diarize) && transcription.words ? [segment, ['timestamp_granularities[]', 'word']] : [segment]
}

/** An object in a form is one field per member, as the official SDKs send it (docs/reference/compatibility.md, Uploads). */
function vadFields({ vad }: TranscribeRequest): [string, string][] {
  if (!vad) return []
  const members = Object.entries({ type: 'server_vad', ...vad })
  return members.map(([name, value]) => [`chunking_strategy[${name}]`, String(value)])
}

function upstreamModelOf({ id, engine }: ModelConfig): string {
  return 'model' in engine && engine.model !== undefined ? engine.model : id
}
