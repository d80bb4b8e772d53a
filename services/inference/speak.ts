import type { SpeakEvent, SpeakRequest } from '#schemas/speech.ts'
import type { EngineRegistry } from '#shared/engines/engine-registry.ts'
import type { SpeechEngine } from '#shared/engines/speech.ts'
import { countText } from '#shared/engines/upstream/usage.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'

/**
 * Yields the audio as it is generated, then the usage. Servers report no tokens, so the tokens of the text are counted here. @throws
 * ServiceError
 */
export async function* speakWith(
  engines: EngineRegistry<SpeechEngine>,
  request: SpeakRequest,
  { signal }: AttemptContext,
): AsyncGenerator<SpeakEvent> {
  for await (const bytes of engines.get(request.model).speak(request, { signal })) {
    yield { type: 'audio', audio: bytes.toString('base64') }
  }
  const input_tokens = await countText(`${request.instructions ?? ''}${request.input}`)
  yield { type: 'usage', usage: { input_tokens, output_tokens: 0 } }
}
