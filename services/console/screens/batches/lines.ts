import { ApiFailure, fetchApi } from '#services/console/api/client.ts'

/** Yields the lines of a response while they arrive, without blank lines. */
export async function* linesOf(path: string, signal?: AbortSignal): AsyncGenerator<string> {
  const { body } = await fetchApi(path, signal ? { signal } : {})
  if (!body) throw new ApiFailure(502, 'The service returned no content.')
  const reader = body
    .pipeThrough(new TextDecoderStream() as never as ReadableWritablePair<string, Uint8Array>)
    .getReader()
  let rest: string[] = []
  try {
    for (;;) {
      const { done, value = '' } = await reader.read()
      const [first = '', ...others] = value.split('\n')
      rest.push(first)
      const last = others.pop()
      if (last !== undefined || done) {
        for (const line of [rest.join(''), ...others]) if (line.trim() !== '') yield line
        rest = [last ?? '']
      }
      if (done) return
    }
  } finally {
    await reader.cancel()
  }
}

export function customIdIn(line: string): string {
  return (JSON.parse(line) as { custom_id: string }).custom_id
}
