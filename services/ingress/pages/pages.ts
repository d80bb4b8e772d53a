import type { IncomingMessage, ServerResponse } from 'node:http'
import type { IngressContext } from '#services/ingress/calls/call.ts'
import { CONSOLE, consoleFiles, findScreen, isAsset, PageFile, pageHeaders } from './files.ts'
import { GUIDE, guideFiles } from './guide.ts'
import { type OpenApi, referenceHtml } from './reference.ts'

/**
 * Pages and their files, by path, except the API reference and the OpenAPI document. No API key is required, because the files
 * contain no data of clients.
 */
const FILES: ReadonlyMap<string, PageFile> = new Map([
  ['/docs/site.css', PageFile.at(new URL('site/site.css', import.meta.url))],
  ['/docs/theme.js', PageFile.at(new URL('site/theme.js', import.meta.url))],
  ['/docs/copy.js', PageFile.at(new URL('site/copy.js', import.meta.url))],
  ['/docs/reference.js', PageFile.at(new URL('reference/reference.js', import.meta.url))],
  ['/docs/reference.css', PageFile.at(new URL('reference/reference.css', import.meta.url))],
  ...guideFiles(),
  ...consoleFiles(),
])

const HOME = FILES.has(CONSOLE) ? CONSOLE : '/docs'

type PageContext = Pick<IngressContext, 'endpoints' | 'log'>

/**
 * Returns a handler that serves the console, the guide, the API reference and the OpenAPI document. `/` redirects
 * browsers to the console, and other clients receive a 404 error of the API. The handler returns false if the path
 * belongs to none of these.
 */
export function openPages({ endpoints, log }: PageContext): (req: IncomingMessage, res: ServerResponse) => boolean {
  const files = new Map([
    ...FILES,
    ['/docs', new PageFile('html', async () => Buffer.from(referenceHtml((await describeApi(endpoints)) as OpenApi)))],
    ['/openapi.json', new PageFile('json', async () => Buffer.from(JSON.stringify(await describeApi(endpoints))))],
  ])
  return (req, res) => answerPage(files, log, req, res)
}

function answerPage(
  files: ReadonlyMap<string, PageFile>,
  log: PageContext['log'],
  req: IncomingMessage,
  res: ServerResponse,
): boolean {
  if (req.method !== 'GET' && req.method !== 'HEAD') return false
  const path = req.url?.split('?')[0] ?? ''
  if (path === '/' && wantsPage(req)) return sendTo(HOME, res)
  if (path === '/docs/') return sendTo('/docs', res)
  if (path === `${GUIDE}/`) return sendTo(GUIDE, res)
  const file = findScreen(files, path)
  if (!file && isAsset(path))
    return sendText(res, 404, 'This file belongs to another build of the console. Reload the page.\n')
  if (!file) return false
  file.send(req, res).catch((error: unknown) => {
    log.error({ err: error, path }, 'page could not be sent to the browser')
    if (res.headersSent) res.destroy()
    else sendText(res, 500, 'Internal error: the page could not be loaded. The log has the cause.')
  })
  return true
}

function sendText(res: ServerResponse, status: number, text: string): true {
  res.writeHead(status, { 'content-type': 'text/plain; charset=utf-8', 'cache-control': 'no-store' }).end(text)
  return true
}

/**
 * Loads the OpenAPI module at the first request. The response schemas need 3 MiB of memory, and nothing else uses them.
 */
async function describeApi(endpoints: PageContext['endpoints']): Promise<unknown> {
  const { openApiDocument } = await import('#services/ingress/openapi/openapi.ts')
  return await openApiDocument(endpoints)
}

/** Whether a browser sends the request. Browsers accept text/html, and SDKs and curl do not. */
function wantsPage({ headers }: IncomingMessage): boolean {
  return String(headers.accept ?? '').includes('text/html')
}

function sendTo(location: string, res: ServerResponse): true {
  pageHeaders(res)
  res.appendHeader('vary', 'accept')
  res.writeHead(302, { location, 'cache-control': 'no-store' }).end()
  return true
}
