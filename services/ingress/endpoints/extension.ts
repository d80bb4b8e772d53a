import { z } from 'zod'
import { refuse } from '#services/ingress/body/decode.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { JobEndpoint } from '#services/ingress/calls/call.ts'
import type { Extension } from '#shared/ports/extensions.ts'

/**
 * Returns the endpoint of an extension. The body is the request of the extension's kind, plus `stream` and the fields
 * that control the job.
 */
export function endpointOf(extension: Extension): JobEndpoint {
  const { name, path, summary, request, result = z.unknown() } = extension
  const canStream = extension.answer(path).open !== undefined
  return {
    path,
    format: 'openai',
    kind: extension,
    canStream: () => canStream,
    requireModel: () => {},
    describe: async () => ({
      id: name,
      tag: 'Extensions',
      summary,
      body: { [`${name}_request`]: request },
      answer: {
        description: canStream ? 'The result. With `stream: true`, its events.' : 'The result.',
        json: { [`${name}_result`]: result },
        ...(canStream && { events: null }),
      },
    }),
    prepare({ config }, _caller, body) {
      const isObject = typeof body === 'object' && body !== null && !Array.isArray(body)
      const { stream = false, background: _, store: __, ...fields } = (isObject ? body : {}) as Record<string, unknown>
      if (typeof stream !== 'boolean')
        refuse('invalid_type', 'stream', "Invalid type for 'stream': expected a boolean.")
      if (stream && !canStream) refuse('unsupported_value', 'stream', `${path} does not support streaming.`)
      const parsed = parseBody(request, isObject ? fields : body, 'openai')
      return { model: name, body: parsed, stream, timeoutMs: config.requestTimeoutMs }
    },
  }
}
