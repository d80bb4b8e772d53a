import type { ModelConfig } from '#schemas/models.ts'
import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'

/** How the upstream is asked to answer. */
export type AnswerForm = 'verbose_json' | 'json' | 'stream'

/**
 * The richest form the upstream has for what is wanted: segments and words come in verbose_json only, log probabilities
 * in json only, and a stream brings text alone.
 */
export function answerFormOf(request: TranscribeRequest, { transcription }: ModelConfig): AnswerForm {
  if (request.stream && transcription.stream && !request.diarize && !request.words) return 'stream'
  return transcription.segments && !request.logprobs ? 'verbose_json' : 'json'
}

/** The fields of the form of a translation, which has few, and answers whole. */
export function encodeTranslation({ prompt, temperature }: TranscribeRequest, model: ModelConfig): [string, string][] {
  const fields: [string, string][] = [['model', upstreamModelOf(model)]]
  fields.push(['response_format', model.transcription.segments ? 'verbose_json' : 'json'])
  if (prompt !== undefined) fields.push(['prompt', prompt])
  if (temperature > 0) fields.push(['temperature', String(temperature)])
  return fields
}

/** The fields of the form, beside the file, in OpenAI's dialect. What has its default is left out. */
export function encodeFields(request: TranscribeRequest, model: ModelConfig, form: AnswerForm): [string, string][] {
  const { language, prompt, temperature, logprobs } = request
  const fields: [string, string][] = [['model', upstreamModelOf(model)]]
  fields.push(['response_format', form === 'stream' ? 'json' : form])
  if (language !== undefined) fields.push(['language', language])
  if (prompt !== undefined) fields.push(['prompt', prompt])
  // Left out at 0, where servers raise the temperature by themselves; some do not when they are told 0.
  if (temperature > 0) fields.push(['temperature', String(temperature)])
  if (form === 'verbose_json') fields.push(...granularities(request, model))
  if (form === 'stream') fields.push(['stream', 'true'])
  if (logprobs && form !== 'verbose_json') fields.push(['include[]', 'logprobs'])
  return [...fields, ...vadFields(request)]
}

function granularities({ words, diarize }: TranscribeRequest, { transcription }: ModelConfig): [string, string][] {
  const segment: [string, string] = ['timestamp_granularities[]', 'segment']
  // Speakers are told apart word by word.
  return (words || diarize) && transcription.words ? [segment, ['timestamp_granularities[]', 'word']] : [segment]
}

/** An object in a form is one field a member, as the official SDKs write it (docs/protocol.md, Uploads). */
function vadFields({ vad }: TranscribeRequest): [string, string][] {
  if (!vad) return []
  const members = Object.entries({ type: 'server_vad', ...vad })
  return members.map(([name, value]) => [`chunking_strategy[${name}]`, String(value)])
}

function upstreamModelOf({ id, engine }: ModelConfig): string {
  return 'model' in engine && engine.model !== undefined ? engine.model : id
}
