import type * as Http from 'node:http'
import { createRequire } from 'node:module'

/**
 * The exports of `node:http` that Sluice uses. An `import` statement would evaluate all exports of the module. Two of these, `WebSocket` and
 * `MessageEvent`, load Node's internal HTTP client. Sluice does not use this client, which takes 12 MiB per process.
 */
export const { createServer, maxHeaderSize, request, ServerResponse, STATUS_CODES }: typeof Http = createRequire(
  import.meta.url,
)('node:http')
