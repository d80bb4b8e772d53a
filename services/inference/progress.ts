import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import type { Progress } from '#shared/kinds/kind.ts'

/** Progress is told at most twice a second (docs/protocol.md, Job events). */
const PROGRESS_MS = 500
/** Characters of a token, while the engine has not counted. */
const CHARS_PER_TOKEN = 4

/** Tells how many tokens have been made while events pass through, and of how many at most. */
export async function* withProgress(
  events: AsyncIterable<GenerateEvent>,
  request: GenerateRequest,
  onProgress: (progress: Progress) => void,
): AsyncGenerator<GenerateEvent> {
  let chars = 0
  let toldAt = performance.now()
  for await (const event of events) {
    if ('text' in event) chars += event.text.length
    if (chars > 0 && performance.now() - toldAt >= PROGRESS_MS) {
      toldAt = performance.now()
      const tokens = Math.ceil(chars / CHARS_PER_TOKEN)
      const most = request.max_tokens === undefined ? undefined : request.max_tokens * request.n
      const percent = most === undefined ? null : Math.min(99, Math.floor((100 * tokens) / most))
      onProgress({ phase: 'generating', percent, message: `About ${tokens} tokens` })
    }
    yield event
  }
}
