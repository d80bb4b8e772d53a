import { Readable } from 'node:stream'
import { TranscribeEvent, TranscribeRequest } from '#schemas/kinds/transcription.ts'
import { ModelConfig } from '#schemas/models.ts'
import type { AudioFile, TranscribeOptions, TranscriptionEngine } from '#shared/engines/engine.ts'
import type { ServiceError } from '#shared/lib/error.ts'

/** Content of an audio file for tests that do not decode it. */
export const CONTENT = Buffer.from('RIFF....WAVE pretend audio')

/** Configuration of a transcription model on the server at `url` (without /v1). */
export function speechModel(url: string, engine: object = {}, model: object = {}): ModelConfig {
  return ModelConfig.parse({
    id: 's1',
    pool: 'transcription',
    engine: { type: 'openai', base_url: `${url}/v1`, ...engine },
    ...model,
  })
}

/** Configuration of a transcription model on the local model server. */
export function localModel(engine: object = {}): ModelConfig {
  return ModelConfig.parse({
    id: 's1',
    pool: 'transcription',
    engine: { type: 'local', model: 'whisper-tiny.en', ...engine },
    transcription: { languages: ['en'] },
  })
}

/** A request to transcribe {@link CONTENT}; `fields` override it. */
export function askTranscript(fields: object = {}): TranscribeRequest {
  const audio = { base64: CONTENT.toString('base64'), sha256: 'ab', bytes: CONTENT.length, format: 'wav' }
  return TranscribeRequest.parse({ model: 's1', audio, ...fields })
}

/** An uploaded file that counts its open streams, so that tests detect a stream that is never closed. */
export function fileOf(content: Buffer = CONTENT): AudioFile & { readonly unclosed: number } {
  let unclosed = 0
  return {
    filename: 'audio.wav',
    bytes: content.length,
    open: () => {
      unclosed += 1
      const stream = Readable.from([content])
      stream.once('close', () => {
        unclosed -= 1
      })
      return Promise.resolve(stream)
    },
    get unclosed() {
      return unclosed
    },
  }
}

/** Options that a worker passes to an engine with the request. */
export function transcribeOptions(options: Partial<TranscribeOptions> = {}): TranscribeOptions {
  return { signal: new AbortController().signal, idempotencyKey: 'job_1:1', ...options }
}

/** All events of a call, each validated by its schema. */
export async function collectTranscript(
  engine: TranscriptionEngine,
  request = askTranscript(),
  options: Partial<TranscribeOptions> = {},
  audio: AudioFile = fileOf(),
): Promise<TranscribeEvent[]> {
  const events: TranscribeEvent[] = []
  for await (const event of engine.transcribe(request, audio, transcribeOptions(options))) {
    events.push(TranscribeEvent.parse(event))
  }
  return events
}

/**
 * The error of a call.
 *
 * @throws Error if the call succeeds
 */
export async function transcriptFailure(...args: Parameters<typeof collectTranscript>): Promise<ServiceError> {
  const events = await collectTranscript(...args).catch((error: ServiceError) => error)
  if (Array.isArray(events)) throw new Error(`expected a failure, got ${JSON.stringify(events)}`)
  return events
}

export function transcriptOf(events: readonly TranscribeEvent[]): string {
  return events.map((event) => (event.type === 'text' ? event.text : '')).join('')
}

export function eventsOf<T extends TranscribeEvent['type']>(
  events: readonly TranscribeEvent[],
  type: T,
): Extract<TranscribeEvent, { type: T }>[] {
  return events.filter((event): event is Extract<TranscribeEvent, { type: T }> => event.type === type)
}
