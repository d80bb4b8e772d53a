import type { Call, IngressContext, WireFormat } from './call.ts'
import { chatProtocol } from './chat.ts'
import { countTokens } from './count-tokens.ts'
import { generate } from './generate.ts'
import { messagesProtocol, parseVersion } from './messages.ts'
import { listModels, retrieveModel } from './models.ts'

/** One endpoint: a row of the table. */
export interface Route {
  readonly method: 'GET' | 'POST'
  /** A path ending in `/*` matches everything below it. */
  readonly path: string
  readonly format: WireFormat
  /** Answers the call. @throws ServiceError as long as nothing was sent */
  handle(context: IngressContext, call: Call, body: unknown): Promise<void> | void
}

/** Every endpoint of the API. A request goes from its row to a job and back; README lists the same. */
export const ROUTES: readonly Route[] = [
  {
    method: 'POST',
    path: '/v1/chat/completions',
    format: 'openai',
    handle: (context, call, body) => {
      const includeUsage =
        (body as { stream_options?: { include_usage?: unknown } } | null)?.stream_options?.include_usage === true
      return generate(context, call, chatProtocol, body, { includeUsage, version: '' })
    },
  },
  {
    method: 'POST',
    path: '/v1/messages',
    format: 'anthropic',
    handle: (context, call, body) => {
      const version = parseVersion(call.req.headers)
      return generate(context, call, messagesProtocol, body, { includeUsage: true, version })
    },
  },
  { method: 'POST', path: '/v1/messages/count_tokens', format: 'anthropic', handle: countTokens },
  { method: 'GET', path: '/v1/models', format: 'openai', handle: listModels },
  { method: 'GET', path: '/v1/models/*', format: 'openai', handle: retrieveModel },
]
