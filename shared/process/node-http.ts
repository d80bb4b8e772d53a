import type * as Http from 'node:http'
import { createRequire } from 'node:module'

/**
 * The exports of `node:http` that Sluice uses. An `import` would evaluate every export of the module. Some exports (`WebSocket`, `MessageEvent`) load
 * Node's internal HTTP client, which takes 12 MiB per process and which Sluice does not use.
 */
export const { createServer, request, ServerResponse, STATUS_CODES }: typeof Http = createRequire(import.meta.url)(
  'node:http',
)
