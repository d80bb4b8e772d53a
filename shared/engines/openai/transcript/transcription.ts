import type { ModelConfig } from '#schemas/models.ts'
import type { TranscribeEvent, TranscribeRequest } from '#schemas/transcription/transcription.ts'
import type { AudioFile, TranscribeOptions, TranscriptionEngine } from '#shared/engines/transcription.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { openReader } from '#shared/engines/upstream/readers.ts'
import { Upstream } from '#shared/engines/upstream/upstream.ts'
import { countText } from '#shared/engines/upstream/usage.ts'
import { audioTokensOf, TranscriptDecoder } from './decode.ts'
import { answerFormOf, encodeFields, encodeTranslation } from './encode.ts'
import { openForm } from './form.ts'

/**
 * Opens a transcription engine for a server with POST /audio/transcriptions: Speaches, vLLM, LocalAI, OpenAI, and whisper.cpp (with
 * `--inference-path /v1/audio/transcriptions --convert`).
 *
 * @param model A model whose engine has type `openai`.
 * @param env Environment with the key that `api_key_env` names. Without `api_key_env` no key is sent.
 * @param share Shares the servers' limits with other workers; default: no sharing.
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
  /** Path of the endpoint; default: that of transcriptions. */
  readonly path?: string
}

/**
 * Sends a file with its form and yields the events of the answer, whole or streamed.
 *
 * @throws ServiceError, or the signal's reason
 */
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
    const { signal, idempotencyKey, traceparent } = options
    const trace: Record<string, string> = traceparent === undefined ? {} : { traceparent }
    const exchange = await upstream.call({
      path,
      headers: { ...headers, 'idempotency-key': idempotencyKey, ...trace },
      body,
      isStream,
      signal,
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
    // The body must be destroyed here if the call failed before sending it.
    body.destroy()
  }
}

function onlyLanguageOf({ transcription: { languages } }: ModelConfig): string {
  return (languages?.length === 1 && languages[0]) || ''
}

/**
 * Usage as the upstream counted it. Otherwise ten tokens per second of audio, and the tokens of the segments or of the
 * text.
 */
async function usageOf({ counted, duration, segmentTokens, text }: TranscriptDecoder) {
  if (counted) {
    const { input, text: ofPrompt, output } = counted
    const details = { input_token_details: { audio_tokens: input - ofPrompt, text_tokens: ofPrompt } }
    return { input_tokens: input, output_tokens: output, ...(ofPrompt > 0 && details) }
  }
  return { input_tokens: audioTokensOf(duration), output_tokens: segmentTokens || (await countText(text)) }
}
