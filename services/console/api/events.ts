import { EventSourceParserStream } from 'eventsource-parser/stream'

/** The parsed data of each server-sent event, until the stream ends or sends `[DONE]`. */
export async function* eventsOf(response: Response): AsyncGenerator<Record<string, unknown>> {
  if (!response.body) return
  const events = response.body.pipeThrough(new TextDecoderStream() as never).pipeThrough(new EventSourceParserStream())
  const reader = events.getReader()
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done || value.data === '[DONE]') return
      yield JSON.parse(value.data) as Record<string, unknown>
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
}
