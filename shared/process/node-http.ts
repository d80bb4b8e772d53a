import type * as Http from 'node:http'
import { createRequire } from 'node:module'

/**
 * The used exports of `node:http`. An `import` evaluates each export of the module, and some (`WebSocket`, `MessageEvent`) load Node's internal HTTP
 * client. That costs 12 MiB per process, and Sluice does not use it.
 */
export const { createServer, request, ServerResponse, STATUS_CODES }: typeof Http = createRequire(import.meta.url)(
  'node:http',
)
