import { SPEECH_BYTES_MAX, type SpeakRequest } from '#schemas/kinds/speech.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { SpeechEngine } from '#shared/engines/engine.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import type { Exchange } from '#shared/engines/upstream/exchange.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { Upstream } from '#shared/engines/upstream/upstream.ts'

/** Bytes per audio event, which are 64 KiB in base64. The number is a multiple of three, so that only the last piece has padding. */
const PIECE_BYTES = 48 * 1024

/** Opens a speech engine for a server with POST /audio/speech: OpenAI, LocalAI, Speaches, Kokoro-FastAPI. */
export function openOpenAiSpeech(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelPartition,
): SpeechEngine {
  const { id, engine } = model
  if (engine.type !== 'openai') throw new Error(`model '${id}' does not run on an OpenAI-dialect upstream`)
  const key = keyOf(model, env)
  const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {}
  const upstream = new Upstream(model, engine, headers, {
    missingKey: missingKeyOf(model, env),
    ...(engine.concurrency !== undefined && { share }),
  })
  return {
    async *speak(request: SpeakRequest, options) {
      const { signal } = options
      const body = JSON.stringify({ ...request, model: engine.model ?? id })
      const exchange = await upstream.call({
        path: '/audio/speech',
        headers: {},
        body,
        isStream: true,
        signal,
        trace: options,
      })
      try {
        yield* audioOf(id, exchange)
        exchange.release(true)
      } finally {
        exchange.release(false)
      }
    },
    close: () => upstream.close(),
  }
}

async function* audioOf(model: string, exchange: Exchange): AsyncGenerator<Buffer> {
  if (/^text\/|json$/.test(exchange.mediaType)) throw answerError(model, 'sent no audio')
  let total = 0
  for (;;) {
    await exchange.waitForBytes()
    const chunks = exchange.take()
    if (chunks.length === 0) break
    const bytes = Buffer.concat(chunks)
    total += bytes.length
    if (total > SPEECH_BYTES_MAX) throw answerError(model, `sent more than ${SPEECH_BYTES_MAX} bytes of audio`)
    for (let at = 0; at < bytes.length; at += PIECE_BYTES) yield bytes.subarray(at, at + PIECE_BYTES)
  }
  if (total === 0) throw answerError(model, 'sent no audio')
}
