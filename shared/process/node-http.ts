import type * as Http from 'node:http'
import { createRequire } from 'node:module'

/**
 * What is needed of `node:http`. An `import` of that reads each of its exports, and some of them (`WebSocket`, `MessageEvent`)
 * load the HTTP client that Node has inside: 12 MiB of every process, which nobody here uses.
 */
export const { createServer, request, ServerResponse, STATUS_CODES }: typeof Http = createRequire(import.meta.url)(
  'node:http',
)
