import type * as Http from 'node:http'
import { createRequire } from 'node:module'

/**
 * The exports of `node:http` that Sluice uses. An `import` statement would evaluate all exports of the module. Two of
 * them, `WebSocket` and `MessageEvent`, load Node's internal HTTP client, which takes 12 MiB per process and is not
 * used by Sluice.
 */
export const { createServer, request, ServerResponse, STATUS_CODES }: typeof Http = createRequire(import.meta.url)(
  'node:http',
)
